"""Problems of disks and of the tier that `cluster health` tells."""

from __future__ import annotations

from dataclasses import replace

from tidemark.cli.disk_health import disk_problems
from tidemark.client.models import LogDirDescription, ReplicaDescription
from tidemark.types import TopicPartition

REPLICA = ReplicaDescription(
    TopicPartition("tale", 0), 10, 0, True, 0, 0, None, 9, 9, 0, 1_000, 2, False, ""
)
DIRECTORY = LogDirDescription(4, "/d1", None, 1_000, 100, (REPLICA,))


def told(directory: LogDirDescription) -> list[tuple[str, str, str]]:
    found = disk_problems({4: [DIRECTORY, directory]}, 1_000, 10)
    assert {one.severity for one in found} <= {"warning"}
    return [(one.kind, one.where, one.detail) for one in found]


def test_limits_themselves_are_healthy() -> None:
    assert told(DIRECTORY) == []


def test_a_directory_that_failed_is_told_with_its_error() -> None:
    lost = replace(
        DIRECTORY, error="KAFKA_STORAGE_ERROR", error_message="read /d1: EIO", replicas=()
    )
    assert told(lost) == [("directory offline", "broker 4: /d1", "read /d1: EIO")]


def test_a_disk_is_nearly_full_below_the_wanted_part() -> None:
    full = replace(DIRECTORY, usable_bytes=99)
    assert told(full) == [("disk nearly full", "broker 4: /d1", "9 % free, 99 bytes of 1,000")]
    assert told(replace(DIRECTORY, total_bytes=0, usable_bytes=0)) == []  # unknown to an old node


def test_a_log_that_is_not_compacted_is_told_with_the_reason() -> None:
    replica = replace(REPLICA, uncleanable_reason="a batch is damaged")
    assert told(replace(DIRECTORY, replicas=(replica,))) == [
        ("log not compacted", "broker 4: tale-0", "a batch is damaged")
    ]


def test_the_tier_lags_where_a_leader_has_more_than_allowed_to_copy() -> None:
    behind = replace(REPLICA, remote_copy_lag_bytes=1_001)
    ((kind, where, detail),) = told(replace(DIRECTORY, replicas=(behind,)))
    assert (kind, where) == ("tier lags", "broker 4: tale-0")
    assert detail.startswith("2 segments, 1,001 bytes are not copied")
    follower = replace(behind, is_leader=False)
    assert told(replace(DIRECTORY, replicas=(follower,))) == []
