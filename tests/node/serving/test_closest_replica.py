"""Consumers read from the closest replica (KIP-392): who is named, and what a follower answers."""

from __future__ import annotations

import asyncio

import pytest

from node.partition.core import BrokerView, Partition, Registration
from node.partition.replica_state import ReplicaState
from node.serving.closest_replica import closest_replica
from tests.node.cluster import Cluster, values_of
from tests.node.replication.test_replication import scenario
from tidemark.errors import ErrorCode
from tidemark.types import TopicIdPartition, random_uuid

RACKS = {1: "a", 2: "b", 3: "c"}


def racks(cluster: Cluster, selector: str = "RackAwareReplicaSelector") -> None:
    for node, rack in RACKS.items():
        cluster.start(node, broker_rack=rack, replica_selector_class=selector)


def leading(**views: BrokerView) -> Partition:
    """Node 1 in rack a leads; its log ends at 10, those of nodes 2 and 3 in rack b at 10 and 8."""
    brokers = {n: BrokerView(1, True, rack) for n, rack in ((1, "a"), (2, "b"), (3, "b"))}
    brokers |= {int(name[1:]): view for name, view in views.items()}
    core = Partition(TopicIdPartition(random_uuid(), "t", 0), 1, lambda: brokers)
    core.apply(Registration((1, 2, 3), (1, 2, 3), 1, 0, 0), 10, 0)
    core.remotes[2].on_fetch(10, 0, 1, 10, 5)
    core.remotes[3].on_fetch(8, 3, 1, 10, 5)
    return core


def test_the_longest_log_of_the_rack_that_has_the_offset_is_named() -> None:
    assert closest_replica(leading(), "b", 8) == 2
    assert closest_replica(leading(), "b", 0) == 2
    assert closest_replica(leading(n2=BrokerView(1, False, "b")), "b", 8) == 3, "2 is fenced"
    assert closest_replica(leading(n2=BrokerView(1, False, "b")), "b", 9) is None, "beyond its end"
    assert closest_replica(leading(n2=BrokerView(1, False, "b")), "b", 2) is None, "below its start"


def test_of_equal_logs_the_one_that_was_caught_up_last_is_named() -> None:
    core = leading()
    core.remotes[3].on_fetch(10, 0, 1, 10, 6)
    assert closest_replica(core, "b", 10) == 3


def test_the_leader_answers_its_own_rack_a_rack_without_replica_and_unheard_ones() -> None:
    assert closest_replica(leading(n2=BrokerView(1, True, "a")), "a", 8) is None
    assert closest_replica(leading(), "c", 8) is None
    core = leading()
    core.remotes = {2: ReplicaState(), 3: ReplicaState()}
    assert closest_replica(core, "b", 0) is None
    core.apply(Registration((1, 2, 3), (1, 2, 3), 2, 1, 1), 10, 0)
    assert closest_replica(core, "b", 0) is None, "a follower names nobody"


def test_a_leader_names_the_replica_of_the_rack_at_once_and_sends_no_records() -> None:
    async def test(cluster: Cluster) -> None:
        racks(cluster)
        cluster.create_topic()
        await cluster.nodes[1].produce("a", "b")
        await cluster.settle()
        begun = asyncio.get_running_loop().time()
        answer = await cluster.nodes[1].fetch(2, rack="b", max_wait_ms=500)
        assert asyncio.get_running_loop().time() == begun
        assert (answer.preferred_read_replica, answer.error_code) == (2, 0)
        assert (await cluster.nodes[1].fetch(0, rack="b")).payload == b""
        for rack in ("a", "d", ""):
            own = await cluster.nodes[1].fetch(0, rack=rack)
            assert own.preferred_read_replica is None
            assert values_of(own.payload) == ["a", "b"]

    scenario(test, nodes=())


def test_without_the_setting_the_leader_answers_every_rack() -> None:
    async def test(cluster: Cluster) -> None:
        racks(cluster, selector="LeaderSelector")
        cluster.create_topic()
        await cluster.nodes[1].produce("a")
        await cluster.settle()
        answer = await cluster.nodes[1].fetch(0, rack="b")
        assert answer.preferred_read_replica is None
        assert values_of(answer.payload) == ["a"]

    scenario(test, nodes=())


def test_a_follower_serves_what_is_committed_to_those_who_name_a_rack() -> None:
    async def test(cluster: Cluster) -> None:
        racks(cluster)
        cluster.create_topic()
        await cluster.nodes[1].produce("a")
        await cluster.settle()
        follower = cluster.nodes[2]
        assert values_of((await follower.fetch(0, rack="b")).payload) == ["a"]
        assert (await follower.fetch(0)).error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER
        assert (await follower.fetch(2, rack="b")).error_code == ErrorCode.OFFSET_OUT_OF_RANGE
        cluster.cut |= {(3, 1)}  # nothing is committed any more
        await cluster.nodes[1].produce("b", acks=1)
        await asyncio.sleep(0.1)
        assert follower.hosted().log.log_end_offset == 2
        held = await follower.fetch(1, rack="b", last_fetched_epoch=0)
        assert (held.error_code, held.payload, held.high_watermark) == (0, b"", 1)

    scenario(test, nodes=())


@pytest.mark.parametrize("selector", ["RackAwareReplicaSelector", ""])
def test_an_idle_follower_hears_the_high_watermark_at_once(selector: str) -> None:
    """Without consumers at followers it goes with the next answer, half a second later."""

    async def test(cluster: Cluster) -> None:
        racks(cluster, selector)
        cluster.create_topic()
        await cluster.nodes[1].produce("a")
        await cluster.settle()
        await asyncio.sleep(2)
        reader = asyncio.ensure_future(cluster.nodes[2].fetch(1, rack="b", max_wait_ms=5_000))
        await asyncio.sleep(0.1)
        begun = asyncio.get_running_loop().time()
        await cluster.nodes[1].produce("b")
        assert values_of((await reader).payload) == ["b"]
        waited_s = asyncio.get_running_loop().time() - begun
        assert (waited_s < 0.02) == bool(selector), waited_s

    scenario(test, nodes=())


def test_a_follower_that_a_new_leader_did_not_confirm_serves_nobody() -> None:
    """Its log may hold records that the new leader lacks."""

    async def test(cluster: Cluster) -> None:
        racks(cluster)
        cluster.create_topic()
        await cluster.nodes[1].produce("a")
        await cluster.settle()
        cluster.cut |= {(2, 3)}
        cluster.change(leader=3)
        follower = cluster.nodes[2]
        answer = await follower.fetch(0, rack="b")
        assert answer.error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER
        assert answer.current_leader == (3, 1)
        cluster.cut.clear()
        await cluster.settle()
        await asyncio.sleep(1)
        assert values_of((await follower.fetch(0, rack="b")).payload) == ["a"]

    scenario(test, nodes=())


def test_a_lagging_follower_takes_no_position_for_diverged() -> None:
    """A consumer read further at the leader than the follower's log goes."""

    async def test(cluster: Cluster) -> None:
        racks(cluster)
        cluster.create_topic()
        await cluster.nodes[1].produce("a")
        await cluster.settle()
        cluster.cut |= {(2, 1)}
        cluster.change(isr=(1, 3))
        await cluster.nodes[1].produce("b")
        answer = await cluster.nodes[2].fetch(2, rack="b", last_fetched_epoch=0)
        assert answer.diverging_epoch is None
        assert answer.error_code == ErrorCode.OFFSET_OUT_OF_RANGE

    scenario(test, nodes=())


def test_a_change_of_leader_ends_a_wait_at_a_follower() -> None:
    async def test(cluster: Cluster) -> None:
        racks(cluster)
        cluster.create_topic()
        await cluster.nodes[1].produce("a")
        await cluster.settle()
        waiting = asyncio.ensure_future(
            cluster.nodes[2].fetch(1, rack="b", max_wait_ms=60_000, current_leader_epoch=0)
        )
        await asyncio.sleep(0.1)
        begun = asyncio.get_running_loop().time()
        cluster.change(leader=3)
        assert (await waiting).error_code == ErrorCode.FENCED_LEADER_EPOCH
        assert asyncio.get_running_loop().time() == begun

    scenario(test, nodes=())
