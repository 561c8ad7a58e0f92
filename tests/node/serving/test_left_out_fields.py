"""Requests of a stranger's client: fields that it leaves out are sensible, also after failovers."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from tests.node.coordination.stubs import SETTINGS, Stubs
from tidemark.errors import (
    ErrorCode,
    InvalidRequestError,
    OutOfOrderSequenceNumberError,
)
from tidemark.testing import Cluster
from tidemark.v1 import admin_pb2, common_pb2, log_pb2

Story = Callable[[Stubs], Coroutine[Any, Any, None]]


def told(story: Story) -> None:
    """Runs a story on three brokers with the topic t of one partition."""
    with Cluster(seed=1, brokers=3, settings=SETTINGS) as cluster:
        cluster.create_topic("t", 1, min_insync_replicas="2")
        cluster.run(story(Stubs(cluster)))


def produce(*values: str, **fields: Any) -> log_pb2.ProduceRequest:
    request = log_pb2.ProduceRequest(timeout_ms=5_000)
    records = [common_pb2.Record(value=value.encode()) for value in values]
    request.partition_data.add(topic="t", plain_records=records, **fields)
    return request


async def sent(stubs: Stubs, request: log_pb2.ProduceRequest) -> Any:
    return await stubs.led("t", 0, request, lambda answer: answer.responses[0])


async def fail_over(stubs: Stubs) -> None:
    """Kills the leader; returns when its session is over, and another one leads."""
    old = stubs.cluster.leader("t")
    assert old is not None
    stubs.cluster.kill(old)
    await asyncio.sleep(20)
    assert stubs.cluster.leader("t") not in (None, old)


def test_fetches_and_look_ups_that_name_no_epoch_go_on_after_failovers() -> None:
    async def story(stubs: Stubs) -> None:
        await sent(stubs, produce("before"))
        await fail_over(stubs)
        await sent(stubs, produce("after"))
        assert await stubs.read("t") == ["before", "after"]
        request = log_pb2.ListOffsetsRequest()
        request.partitions.add(topic="t", timestamp=-1)
        found = await stubs.led("t", 0, request, lambda answer: answer.partitions[0])
        assert found.offset == 2

    told(story)


def test_an_epoch_that_is_named_is_checked_zero_as_well() -> None:
    async def story(stubs: Stubs) -> None:
        await sent(stubs, produce("before"))
        await fail_over(stubs)
        await sent(stubs, produce("after"))
        request = log_pb2.FetchRequest(plain_records=True)
        request.partitions.add(topic="t", current_leader_epoch=0)
        leader = stubs.cluster.leader("t")
        assert leader is not None
        answer = await stubs.call(leader, request)
        assert answer.responses[0].error_code == ErrorCode.FENCED_LEADER_EPOCH

    told(story)


def test_acks_that_are_left_out_mean_all_in_sync_replicas_and_zero_means_none() -> None:
    async def story(stubs: Stubs) -> None:
        await sent(stubs, produce("x"))
        leader = stubs.cluster.leader("t")
        assert leader is not None
        for node in stubs.cluster.brokers:
            if node.node_id != leader:
                stubs.cluster.kill(node.node_id)
        request = produce("on one replica")
        answer = await stubs.call(leader, request)
        assert answer.responses[0].error_code == ErrorCode.REQUEST_TIMED_OUT
        request.acks = 0
        answer = await stubs.call(leader, request)
        assert answer.responses[0].error_code == ErrorCode.NONE

    told(story)


def test_plain_records_of_an_idempotent_producer_are_appended_once() -> None:
    async def story(stubs: Stubs) -> None:
        made = await stubs.call(stubs.any_node(), log_pb2.InitProducerIdRequest())
        assert made.error_code == ErrorCode.NONE
        ids = {"producer_id": made.producer_id, "producer_epoch": made.producer_epoch}
        first = await sent(stubs, produce("a", "b", **ids, base_sequence=0))
        await fail_over(stubs)
        again = await sent(stubs, produce("a", "b", **ids, base_sequence=0))
        assert again.base_offset == first.base_offset
        await sent(stubs, produce("c", **ids, base_sequence=2))
        with pytest.raises(OutOfOrderSequenceNumberError):
            await sent(stubs, produce("e", **ids, base_sequence=4))
        with pytest.raises(InvalidRequestError, match="set all three, or none"):
            await sent(stubs, produce("f", producer_id=made.producer_id))
        assert await stubs.read("t") == ["a", "b", "c"]

    told(story)


def test_an_answer_that_names_another_leader_has_its_address() -> None:
    async def story(stubs: Stubs) -> None:
        leader = stubs.cluster.leader("t")
        other = next(node.node_id for node in stubs.cluster.brokers if node.node_id != leader)
        fetch = log_pb2.FetchRequest(plain_records=True)
        fetch.partitions.add(topic="t")
        for request in (produce("x"), fetch):
            answer = await stubs.call(other, request)
            (part,) = answer.responses
            assert part.error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER
            assert part.current_leader.leader_id == leader
            (node,) = answer.node_endpoints
            assert (node.node_id, node.host, node.port) == (leader, f"node-{leader}", 9092)

    told(story)


def test_a_topic_without_numbers_has_the_clusters_defaults() -> None:
    async def story(stubs: Stubs) -> None:
        request = admin_pb2.CreateTopicsRequest(timeout_ms=10_000)
        request.topics.add(name="plain")
        answer = await stubs.call(stubs.any_node(), request)
        assert [(topic.error_code, topic.num_partitions) for topic in answer.topics] == [(0, 1)]

    told(story)
