"""`tidemark groups` and `tidemark consume --group` on a running broker."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from tests.cli.fake_admin import is_refusal
from tidemark.cli.group_offsets import Destination, offsets_in, resets
from tidemark.cli.local_cluster import LocalCluster
from tidemark.cli.main import app
from tidemark.cli.self_test import SelfTest
from tidemark.client import Admin, Consumer, NewTopic, OffsetAndMetadata, OffsetSpec, Producer
from tidemark.errors import ConfigError
from tidemark.types import TopicPartition

runner = CliRunner()
FIRST, SECOND = TopicPartition("events", 0), TopicPartition("events", 1)


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalCluster]:
    directory = tmp_path_factory.mktemp("groups")
    settings = {"offsets.topic.num.partitions": "3", "group.consumer.heartbeat.interval.ms": "200"}
    with LocalCluster(directory, controllers=1, brokers=1, overrides=settings) as cluster:
        cluster.wait_ready(60)
        with Admin(cluster.bootstrap_servers) as admin:
            admin.create_topics([NewTopic("events", 2, 1)])
        with Producer(cluster.bootstrap_servers) as producer:
            for number in range(20):
                producer.send(
                    "events", b"%d" % number, partition=number % 2, timestamp_ms=1_000 + number
                )
            producer.flush()
        yield cluster


@pytest.fixture
def admin(cluster: LocalCluster) -> Iterator[Admin]:
    with Admin(cluster.bootstrap_servers) as admin:
        yield admin


def run(cluster: LocalCluster, *arguments: str, code: int = 0) -> str:
    result = runner.invoke(
        app, [*arguments, "--bootstrap-server", cluster.bootstrap_servers], prog_name="tidemark"
    )
    assert result.exit_code == code, result.output
    return result.output


def read(cluster: LocalCluster, *arguments: str) -> Any:
    return json.loads(run(cluster, "groups", *arguments, "--json"))


def test_a_group_of_the_command_line_goes_on_where_it_was(cluster: LocalCluster) -> None:
    arguments = ("consume", "events", "--group", "shell", "--from-beginning", "--timeout", "5")
    first = run(cluster, *arguments, "--max-messages", "12").split()
    rest = run(cluster, *arguments, "--max-messages", "8").split()
    assert sorted(map(int, first + rest)) == list(range(20))
    assert {"group_id": "shell", "state": "Empty", "type": "consumer"} in read(cluster, "list")
    described = read(cluster, "describe", "shell")
    assert [row["lag"] for row in described["partitions"]] == [0, 0]
    assert "shell\tEmpty\tconsumer" in run(cluster, "groups", "list", "--state", "empty")
    run(cluster, "consume", "events", "--group", "shell", "--partition", "0", code=1)


def test_members_and_their_lag_are_described(cluster: LocalCluster, admin: Admin) -> None:
    admin.groups.alter_offsets("busy", {FIRST: OffsetAndMetadata(4), SECOND: OffsetAndMetadata(7)})
    with Consumer(
        cluster.bootstrap_servers, group_id="busy", client_id="me", enable_auto_commit=False
    ) as consumer:
        consumer.subscribe(["events"])
        while len(consumer.assignment()) < 2:
            consumer.poll(100)
        described = read(cluster, "describe", "busy")
        assert [
            (row["offset"], row["log_end_offset"], row["lag"], row["client_id"])
            for row in described["partitions"]
        ] == [(4, 10, 6, "me"), (7, 10, 3, "me")]
        (member,) = read(cluster, "describe", "busy", "--members")["members"]
        assert member["subscribed_topic_names"] == ["events"]
        assert len(member["assignment"]) == 2
        for arguments in (
            ("delete", "busy"),
            ("reset-offsets", "busy", "--all-topics", "--to-latest"),
        ):
            assert "(NON_EMPTY_GROUP)" in run(cluster, "groups", *arguments, code=1)
        assert "(GROUP_SUBSCRIBED_TO_TOPIC)" in run(
            cluster, "groups", "delete-offsets", "busy", "events-0", code=1
        )
    assert run(cluster, "groups", "describe", "busy", "--members").splitlines()[1:] == []
    run(cluster, "groups", "delete-offsets", "busy", "events-0")
    assert [row["partition"] for row in read(cluster, "describe", "busy")["partitions"]] == [1]
    assert read(cluster, "delete", "busy") == [{"group": "busy", "error": None}]
    assert "(GROUP_ID_NOT_FOUND)" in run(cluster, "groups", "describe", "busy", code=1)
    assert "(GROUP_ID_NOT_FOUND)" in run(cluster, "groups", "delete", "busy", code=1)


@pytest.mark.parametrize(
    ("way", "offsets"),
    [
        (["--to-earliest"], [0, 0]),
        (["--to-latest"], [10, 10]),
        (["--to-current"], [3, 10]),
        (["--to-offset", "5"], [5, 5]),
        (["--to-offset", "500"], [10, 10]),
        (["--shift-by", "-2"], [1, 8]),
        (["--shift-by", "-5"], [0, 5]),
        (["--to-datetime", "1010"], [5, 5]),
        (["--to-datetime", "2030-01-01"], [10, 10]),
        (["--by-duration", "7d"], [10, 10]),
    ],
)
def test_offsets_are_reset_within_the_log(
    cluster: LocalCluster, admin: Admin, way: list[str], offsets: list[int]
) -> None:
    before = {FIRST: OffsetAndMetadata(3), SECOND: OffsetAndMetadata(10)}
    admin.groups.alter_offsets("reset", before)
    arguments = ("reset-offsets", "reset", "--topic", "events", *way)
    planned = read(cluster, *arguments, "--dry-run")
    assert [row["offset"] for row in planned] == offsets
    assert [row["before"] for row in planned] == [3, 10]
    assert admin.groups.offsets("reset") == before
    assert read(cluster, *arguments) == planned
    assert [found.offset for found in admin.groups.offsets("reset").values()] == offsets


def test_offsets_come_from_a_file_or_of_one_partition(
    cluster: LocalCluster, admin: Admin, tmp_path: Path
) -> None:
    path = tmp_path / "offsets.csv"
    path.write_text("# topic, partition, offset\nevents, 1, 4\n", encoding="utf-8")
    run(cluster, "groups", "reset-offsets", "filed", "--from-file", str(path))
    run(cluster, "groups", "reset-offsets", "filed", "--topic", "events-0", "--to-offset", "2")
    found = admin.groups.offsets("filed")
    assert found == {FIRST: OffsetAndMetadata(2), SECOND: OffsetAndMetadata(4)}
    for wrong in (
        ("--to-latest",),
        ("--topic", "events"),
        ("--topic", "events", "--to-latest", "--to-earliest"),
        ("--topic", "events", "--from-file", str(path)),
        ("--topic", "events", "--by-duration", "soon"),
    ):
        assert is_refusal(run(cluster, "groups", "reset-offsets", "filed", *wrong, code=1))
    assert "(UNKNOWN_TOPIC_OR_PARTITION)" in run(
        cluster, "groups", "reset-offsets", "filed", "--topic", "no-3", "--to-latest", code=1
    )
    assert "no offset of events-0" in run(
        cluster, "groups", "reset-offsets", "new", "--topic", "events", "--to-current", code=1
    )


def test_ways_to_reset_and_files() -> None:
    nothing = (False, False, False, None, None, None, None, None)
    with pytest.raises(ConfigError, match="once"):
        resets(*nothing)
    assert resets(True, *nothing[1:]) == Destination(spec=OffsetSpec.EARLIEST)
    assert list(offsets_in("a,0,5\n\n#x\nb, 1, 6")) == [
        (TopicPartition("a", 0), 5),
        (TopicPartition("b", 1), 6),
    ]
    with pytest.raises(ConfigError, match="line 2"):
        list(offsets_in("a,0,5\na,0"))


def test_a_live_cluster_tests_itself_and_leaves_nothing(cluster: LocalCluster) -> None:
    before = run(cluster, "topics", "list"), run(cluster, "groups", "list")
    steps = json.loads(run(cluster, "self-test", "--records", "50", "--json"))
    assert [step["error"] for step in steps] == [None] * 6
    assert (run(cluster, "topics", "list"), run(cluster, "groups", "list")) == before


def test_a_record_that_is_another_fails_the_self_test_which_cleans_up_still(
    cluster: LocalCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = run(cluster, "topics", "list")
    read = SelfTest._read

    def damaged(self: SelfTest, consumer: Any, each: int) -> dict[TopicPartition, list[bytes]]:
        found = read(self, consumer, each)
        next(iter(found.values()))[3] = b"another"
        return found

    monkeypatch.setattr(SelfTest, "_read", damaged)
    told = run(cluster, "self-test", "--records", "50", code=1).splitlines()
    assert [line.split("\t")[1].split(":")[0] for line in told[1:]] == ["ok", "ok", "failed", "ok"]
    assert "50 records came, not those that were sent" in told[3]
    assert run(cluster, "topics", "list") == before
