"""Pages of a small cluster: a broker is fenced, a partition has no leader, a disk has failed."""

from __future__ import annotations

from tests.console.facts import CLUSTER, LOG_DIRS, QUORUM, TOPICS
from tidemark.client.models import (
    GroupDescription,
    GroupListing,
    GroupMemberDescription,
    OffsetAndMetadata,
)
from tidemark.console import group_views, views
from tidemark.console.views import ClusterFacts
from tidemark.types import TopicPartition

FACTS = ClusterFacts(CLUSTER, TOPICS, LOG_DIRS)
BLIND = ClusterFacts(CLUSTER, TOPICS, {}, "denied", topics_left_out=3)
EVENTS = TopicPartition("events", 0)


def test_the_overview_counts_what_is_wrong() -> None:
    found = views.overview(FACTS, 2, "v")
    assert (found["brokers"], found["fenced"], found["failed_directories"]) == (2, 1, 1)
    assert (found["topics"], found["internal_topics"], found["groups"]) == (1, 1, 2)
    assert (found["partitions"], found["offline"], found["under_replicated"]) == (3, 1, 2)
    # Only the replica of a leader counts: broker 5 leads nothing.
    assert (found["bytes"], found["remote_bytes"]) == (1_000, 400)


def test_unknown_is_not_zero() -> None:
    found = views.overview(BLIND, None, "v")
    assert found["bytes"] is None and found["groups"] is None
    assert found["log_dirs_error"] == "denied" and found["topics_left_out"] == 3
    assert views.topics(BLIND)["topics"]["rows"][1]["records"] is None
    assert [row["bytes"] for row in views.brokers(BLIND)["brokers"]["rows"]] == [None, None]
    (row, lost) = views.tier(BLIND)["partitions"]["rows"]
    assert row["tiered_to"] is None and row["lag_bytes"] is None and lost["leader"] is None


def test_brokers_have_their_partitions_and_directories() -> None:
    found = views.brokers(FACTS)
    first, second = found["brokers"]["rows"]
    assert (first["leads"], first["replicas"], first["in_sync"]) == (2, 3, 2)
    assert (second["state"], second["leads"], second["bytes"]) == ("fenced", 0, 3)
    states = [(row["directory"], row["state"]) for row in found["directories"]["rows"]]
    assert states == [("/d1", "online"), ("/d2", "KAFKA_STORAGE_ERROR"), ("/d", "online")]
    unknown = found["directories"]["rows"][2]
    assert unknown["usable_bytes"] is None  # a broker that does not tell says 0


def test_a_topic_has_the_offsets_of_its_leaders() -> None:
    found = views.topic(ClusterFacts(CLUSTER, TOPICS[1:], LOG_DIRS))
    led, lost = found["rows"]["rows"]
    assert (led["log_start"], led["high_watermark"], led["log_end"]) == (10, 90, 95)
    assert lost["leader"] is None and lost["log_end"] is None
    assert found["configs"] == [{"name": "remote.storage.enable", "value": "true"}]
    assert views.topics(FACTS)["topics"]["rows"][1]["records"] == 80


def test_the_tier_has_partitions_that_are_tiered_or_are_to_be() -> None:
    found = views.tier(FACTS)
    led, lost = found["partitions"]["rows"]
    assert (led["local_start"], led["tiered_to"], led["lag_segments"]) == (50, 49, 1)
    assert lost["tiered_to"] is None and found["topics"] == 1


def test_rows_beyond_the_limit_are_counted() -> None:
    many = ClusterFacts(CLUSTER, TOPICS[:1] * (views.ROWS_MAX + 5), {})
    found = views.topics(many)["topics"]
    assert len(found["rows"]) == views.ROWS_MAX and found["rows_left_out"] == 5


def test_the_quorum_has_lags_behind_the_leader_where_they_are_known() -> None:
    found = views.quorum(QUORUM, {"changes": []}, now_ms=1_000)
    rows = {row["node"]: row for row in found["replicas"]["rows"]}
    assert [rows[n]["role"] for n in (1, 2, 3, 4)] == ["leader", "voter", "voter", "observer"]
    assert [rows[n]["lag"] for n in (1, 2, 3, 4)] == [0, 10, None, 0]
    assert (rows[2]["fetched_ms_ago"], rows[2]["caught_up_ms_ago"]) == (600, None)
    assert views.quorum(QUORUM, {}, now_ms=0)["replicas"]["rows"][0]["fetched_ms_ago"] == 0


def test_the_lag_of_groups_counts_what_is_known() -> None:
    listed = [GroupListing(name, "Empty", "consumer") for name in ("g", "h", "i")]
    gone = TopicPartition("gone", 0)
    committed = {"g": {EVENTS: OffsetAndMetadata(90), gone: OffsetAndMetadata(5)}, "h": {}}
    found = group_views.groups(listed, committed, {EVENTS: 95}, left_out=4)["groups"]
    assert [(row["partitions"], row["lag"]) for row in found["rows"]] == [
        (2, 5),
        (0, None),
        (None, None),
    ]
    assert found["rows_left_out"] == 4


def test_a_group_has_a_row_for_what_is_owned_or_committed() -> None:
    other = TopicPartition("events", 1)
    member = GroupMemberDescription(
        "m", None, None, "<b>", "/h", 3, ("events",), None, (other,), (other, EVENTS)
    )
    described = GroupDescription("g", "Stable", 3, 3, "uniform", (member,))
    found = group_views.group("g", described, {EVENTS: OffsetAndMetadata(99)}, {EVENTS: 95})
    left, owned = found["partitions"]["rows"]
    assert (left["lag"], left["member"]) == (0, None)  # the end may be older than the commit
    assert (owned["offset"], owned["lag"], owned["client"]) == (None, None, "<b>")
    assert found["members"]["rows"][0]["target"] == 2
    alone = group_views.group("g", None, {EVENTS: OffsetAndMetadata(90)}, {EVENTS: 95})
    assert alone["state"] is None and alone["lag"] == 5
