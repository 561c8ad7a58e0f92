"""Metrics of a controller: gauges that follow deltas equal a count of the whole image."""

from __future__ import annotations

import asyncio
import random

import pytest

from quorum.controller.metrics import ControllerMetrics
from quorum.image import EMPTY_IMAGE, MetadataImage, diff
from quorum.image.image import ELR_VERSION
from tests.quorum.controller.fake_raft import FakeQuorum
from tests.quorum.controller.scenario import Scenario
from tests.quorum.controller.test_quorum_controller import (
    Node,
    broker_in_service,
    creation,
    in_virtual_time,
)
from tidemark.errors import RequestTimedOutError
from tidemark.v1 import admin_pb2, controller_pb2

KAFKAS = {
    "ActiveControllerCount",
    "FencedBrokerCount",
    "ActiveBrokerCount",
    "GlobalTopicCount",
    "GlobalPartitionCount",
    "OfflinePartitionsCount",
    "PreferredReplicaImbalanceCount",
    "LastAppliedRecordOffset",
    "LastAppliedRecordTimestamp",
    "LastAppliedRecordLagMs",
    "MetadataErrorCount",
    "TimedOutBrokerHeartbeatCount",
    "EventQueueTimeMsAvg",
    "EventQueueProcessingTimeMsAvg",
    "ElectionFromEligibleLeaderReplicasPerSec",
    "UncleanLeaderElectionsPerSec",
    "NewActiveControllersCount",
}


def counted(image: MetadataImage) -> dict[str, int]:
    """Counts the gauges by looking at everything."""
    partitions = [p for topic in image.topics for p in topic.partitions.values()]
    brokers = image.brokers.values()
    return {
        "ActiveBrokerCount": sum(not b.fenced for b in brokers),
        "FencedBrokerCount": sum(b.fenced for b in brokers),
        "ControlledShutdownBrokerCount": sum(
            b.in_controlled_shutdown and not b.fenced for b in brokers
        ),
        "GlobalTopicCount": len(image.topics),
        "GlobalPartitionCount": len(partitions),
        "OfflinePartitionsCount": sum(p.leader is None for p in partitions),
        "PreferredReplicaImbalanceCount": sum(not p.has_preferred_leader for p in partitions),
    }


class Followed:
    """Metrics that follow the image of a scenario."""

    def __init__(self, s: Scenario) -> None:
        self.s = s
        self.metrics = ControllerMetrics()
        self.seen = EMPTY_IMAGE

    def follow(self) -> dict[str, int | float]:
        self.metrics.on_metadata_update(diff(self.seen, self.s.image), self.s.now_ms)
        self.seen = self.s.image
        return self.metrics.read(self.s.now_ms)


@pytest.mark.parametrize("seed", range(20))
def test_the_gauges_equal_a_count_of_the_image_after_any_history(seed: int) -> None:
    rng, s = random.Random(seed), Scenario()
    followed = Followed(s)
    s.start_brokers(1, 2, 3)
    for number in range(40):
        choice = rng.randrange(6)
        if choice == 0:
            s.try_create(f"t{number}", *[tuple(rng.sample((1, 2, 3), 2)) for _ in range(3)])
        elif choice == 1 and len(s.image.topics):
            name = rng.choice(s.image.topics.names())
            s.ask(admin_pb2.DeleteTopicsRequest(topic_names=[name]))
        elif choice == 2:
            s.keep_alive(12_000, *rng.sample((1, 2, 3), rng.randrange(3)))
        elif choice == 3:
            s.heartbeat(rng.choice((1, 2, 3)), want_shut_down=rng.random() < 0.3)
        else:
            for broker_id in (1, 2, 3):
                s.heartbeat(broker_id)
        if rng.random() < 0.5:
            read = followed.follow()
            assert {name: read[name] for name in counted(s.image)} == counted(s.image)


def test_elections_beyond_the_isr_are_counted_by_their_kind() -> None:
    s = Scenario()
    s.set_feature(ELR_VERSION, 1)
    s.start_brokers(1, 2, 3)
    s.create("t", (1, 2, 3), min_insync_replicas="2")
    s.alter("t", (1,))
    followed = Followed(s)
    assert followed.follow()["ElectionFromEligibleLeaderReplicasTotal"] == 0
    s.keep_alive(18_000, 2, 3)
    read = followed.follow()
    assert s.partition("t").leader == 2
    assert read["ElectionFromEligibleLeaderReplicasTotal"] == 1
    assert read["ElectionFromEligibleLeaderReplicasPerSec"] > 0
    assert read["UncleanLeaderElectionsTotal"] == 0

    s.create("v", (2, 3), unclean_leader_election_enable="true")
    s.alter("v", (2,))
    assert followed.follow()["UncleanLeaderElectionsTotal"] == 0
    s.keep_alive(18_000, 3)
    read = followed.follow()
    assert s.partition("v").leader == 3
    assert read["UncleanLeaderElectionsTotal"] == 1


def test_a_controller_reports_its_role_its_queue_and_its_lag() -> None:
    async def scenario(quorum: FakeQuorum, first: Node, second: Node) -> None:
        epoch = await broker_in_service(first, 7)
        await first.controller.handle(creation("t"))
        read, standby = first.controller.metrics(5_000), second.controller.metrics(5_000)
        assert set(read) >= KAFKAS
        assert (read["ActiveControllerCount"], standby["ActiveControllerCount"]) == (1, 0)
        for of_both in (read, standby):
            assert (of_both["GlobalTopicCount"], of_both["GlobalPartitionCount"]) == (1, 2)
            assert (of_both["ActiveBrokerCount"], of_both["NewActiveControllersCount"]) == (1, 1)
        assert read["LastAppliedRecordOffset"] == first.loader.image.offset
        assert (read["LastAppliedRecordLagMs"], standby["LastAppliedRecordLagMs"]) == (0, 5_000)
        assert read["EventQueueOperationsStartedCount"] == 3
        assert read["EventQueueSize"] == 0

        quorum.auto_commit = False
        await asyncio.sleep(1)
        heartbeat = controller_pb2.BrokerHeartbeatRequest(
            broker_id=7, broker_epoch=epoch, current_metadata_offset=1_000, want_fence=True
        )
        with pytest.raises(RequestTimedOutError):
            await first.controller.handle(heartbeat)
        with pytest.raises(RequestTimedOutError):
            await first.controller.handle(creation("u", timeout_ms=100))
        read = first.controller.metrics(5_000)
        assert read["TimedOutBrokerHeartbeatCount"] == 1
        assert read["EventQueueOperationsTimedOutCount"] == 2

        quorum.elect(2)
        await asyncio.sleep(1)
        assert first.controller.metrics(0)["ActiveControllerCount"] == 0
        assert second.controller.metrics(0)["ActiveControllerCount"] == 1
        assert second.controller.metrics(0)["NewActiveControllersCount"] == 2

    in_virtual_time(scenario)


def test_only_a_new_leader_from_outside_the_isr_is_counted() -> None:
    s = Scenario()
    s.start_brokers(1, 2)
    s.create("t", (1, 2))
    followed = Followed(s)
    followed.follow()
    s.keep_alive(18_000, 2)
    assert s.partition("t").leader == 2
    followed.follow()
    s.keep_alive(18_000)
    assert s.partition("t").leader is None
    read = followed.follow()
    assert read["UncleanLeaderElectionsTotal"] == 0
    assert read["ElectionFromEligibleLeaderReplicasTotal"] == 0
