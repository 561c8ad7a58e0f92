"""Decisions of a controller are in its log, once, and not in those of the others."""

from __future__ import annotations

import logging
import re
from collections.abc import Iterator

import pytest

from tidemark.testing import Cluster

NAME = "quorum.controller.quorum_controller"


@pytest.fixture
def told(caplog: pytest.LogCaptureFixture) -> Iterator[pytest.LogCaptureFixture]:
    with caplog.at_level(logging.DEBUG, NAME):
        yield caplog


def lines(told: pytest.LogCaptureFixture, pattern: str) -> list[tuple[str, str]]:
    """Levels and messages of the controllers' lines since the last call that match."""
    found = [
        (record.levelname, record.getMessage()) for record in told.records if record.name == NAME
    ]
    return [line for line in found if re.search(pattern, line[1])]


def test_decisions_are_told_by_the_active_controller(told: pytest.LogCaptureFixture) -> None:
    with Cluster(seed=3, controllers=3, brokers=3) as cluster:
        brokers = [node.node_id for node in cluster.brokers]
        for broker in brokers:
            assert [level for level, _ in lines(told, f"broker {broker} registers")] == ["INFO"]
            assert lines(told, f"broker {broker} is unfenced") == [
                ("INFO", f"broker {broker} is unfenced")
            ]
        cluster.create_topic("tale", 2, min_insync_replicas="2", retention_ms="4711")
        assert lines(told, "created") == [("INFO", "created tale (2 partitions)")]
        assert lines(told, "settings of topic") == [
            ("INFO", "settings of topic tale change: min.insync.replicas, retention.ms")
        ]
        told.clear()
        leader = cluster.leader("tale")
        assert leader is not None
        cluster.kill(leader)
        cluster.advance(30)
        assert lines(told, "is fenced") == [("INFO", f"broker {leader} is fenced")]
        (moved,) = lines(told, "^leaders: ")
        assert re.search(rf"tale-0 {leader} to \d", moved[1]), moved
        isrs = lines(told, "in-sync replicas")
        assert len(isrs) == 2
        assert {level for level, _ in isrs} == {"DEBUG"}
        assert not lines(told, "unclean")


def test_lost_leaders_and_unclean_elections_are_warnings(told: pytest.LogCaptureFixture) -> None:
    with Cluster(seed=3, controllers=1, brokers=2) as cluster:
        unclean = {"unclean_leader_election_enable": "true"}
        cluster.create_topic("tale", 1, replication_factor=2, **unclean)
        first = cluster.leader("tale")
        other = next(node.node_id for node in cluster.brokers if node.node_id != first)
        assert first is not None
        cluster.kill(other)
        cluster.advance(30)
        cluster.kill(first)
        cluster.advance(30)
        assert lines(told, "without a leader") == [("WARNING", "without a leader: tale-0")]
        cluster.start_node(other)
        cluster.advance(60)
        (line,) = lines(told, "unclean elections")
        assert line[0] == "WARNING"
        assert f"tale-0 nobody to {other}" in line[1]
