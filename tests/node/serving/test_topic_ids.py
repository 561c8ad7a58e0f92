"""Produce and Fetch that name a topic id: of a topic not known yet, deleted, or made anew."""

from __future__ import annotations

from tests.node.cluster import TOPIC, Cluster, Node, batch, values_of
from tests.node.fakes import FakeContext
from tests.node.replication.test_replication import scenario
from tidemark import wire
from tidemark.errors import ErrorCode
from tidemark.types import random_uuid
from tidemark.v1 import log_pb2

NONE = ErrorCode.NONE
ZEROS = bytes(16)


async def produce(
    node: Node, topic: str, topic_id: bytes
) -> log_pb2.ProduceResponse.PartitionProduceResponse:
    data = [wire.PartitionProduceData(topic, 0, batch("a"), topic_id)]
    request = wire.encode_produce_request(wire.ProduceRequest(1, 1000, data))
    answer = log_pb2.ProduceResponse.FromString(await node.service.produce(request, None))
    assert answer.throttle_time_ms == 0
    return answer.responses[0]


async def fetch(node: Node, topic: str, topic_id: bytes) -> wire.FetchPartitionData:
    request = log_pb2.FetchRequest(min_bytes=1)
    request.partitions.add(
        topic=topic,
        topic_id=topic_id,
        current_leader_epoch=-1,
        last_fetched_epoch=-1,
        partition_max_bytes=1000,
    )
    response = wire.decode_fetch_response(await node.service.fetch(request, FakeContext()))
    assert response.throttle_time_ms == 0
    return response.responses[0]


async def expect(node: Node, topic: str, topic_id: bytes, code: ErrorCode) -> None:
    """Both calls answer with `code`, under the name or id that they were asked for."""
    produced, fetched = await produce(node, topic, topic_id), await fetch(node, topic, topic_id)
    assert (produced.error_code, fetched.error_code) == (code, code)
    assert bool(produced.error_message) == bool(fetched.error_message) == (code != NONE)
    if topic:
        assert (produced.topic, fetched.topic) == (topic, topic)
    else:
        assert (produced.topic_id, fetched.topic_id) == (topic_id, topic_id)
    redirected = code == ErrorCode.NOT_LEADER_OR_FOLLOWER
    assert produced.HasField("current_leader") == redirected
    assert (fetched.current_leader is not None) == redirected


def test_a_topic_is_found_by_its_id_alone_and_with_its_name() -> None:
    async def test(cluster: Cluster) -> None:
        cluster.create_topic(replicas=(1,))
        node, known = cluster.nodes[1], cluster.topic_id.bytes
        for topic, topic_id in (("", known), (TOPIC, known), (TOPIC, b""), (TOPIC, ZEROS)):
            await expect(node, topic, topic_id, NONE)
        answer = await fetch(node, "", known)
        assert (answer.topic, values_of(answer.payload)[0]) == (TOPIC, "a")
        await expect(cluster.nodes[2], "", known, ErrorCode.NOT_LEADER_OR_FOLLOWER)
        await expect(cluster.nodes[2], TOPIC, known, ErrorCode.NOT_LEADER_OR_FOLLOWER)

    scenario(test, nodes=(1, 2))


def test_a_broker_that_has_not_learned_of_a_topic_says_so() -> None:
    async def test(cluster: Cluster) -> None:
        for topic_id in (random_uuid().bytes, b"short", b"\1" * 17):
            await expect(cluster.nodes[1], "", topic_id, ErrorCode.UNKNOWN_TOPIC_ID)
            await expect(cluster.nodes[1], TOPIC, topic_id, ErrorCode.UNKNOWN_TOPIC_ID)
        for topic, topic_id in ((TOPIC, b""), (TOPIC, ZEROS), ("", b""), ("", ZEROS)):
            await expect(cluster.nodes[1], topic, topic_id, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)

    scenario(test, nodes=(1,))


def test_a_topic_that_was_deleted_and_made_anew_is_another_one() -> None:
    async def test(cluster: Cluster) -> None:
        cluster.create_topic(replicas=(1,))
        node, old = cluster.nodes[1], cluster.topic_id.bytes
        await expect(node, TOPIC, old, NONE)
        cluster.delete_topic()
        await expect(node, "", old, ErrorCode.UNKNOWN_TOPIC_ID)
        await expect(node, TOPIC, old, ErrorCode.UNKNOWN_TOPIC_ID)
        new = cluster.topic_id.bytes
        cluster.create_topic(replicas=(1,))
        for either in (node, cluster.nodes[2]):  # 2 hosts no replica, and knows the new id
            await expect(either, "", old, ErrorCode.UNKNOWN_TOPIC_ID)
            await expect(either, TOPIC, old, ErrorCode.INCONSISTENT_TOPIC_ID)
        assert node.hosted().log.log_end_offset == 0
        await expect(node, TOPIC, new, NONE)

    scenario(test, nodes=(1, 2))


def test_a_broker_that_still_knows_the_topic_before_refuses_the_new_one() -> None:
    async def test(cluster: Cluster) -> None:
        cluster.create_topic(replicas=(1,))
        new = random_uuid().bytes
        await expect(cluster.nodes[1], "", new, ErrorCode.UNKNOWN_TOPIC_ID)
        await expect(cluster.nodes[1], TOPIC, new, ErrorCode.INCONSISTENT_TOPIC_ID)
        assert cluster.nodes[1].hosted().log.log_end_offset == 0

    scenario(test, nodes=(1,))


def test_the_id_of_one_topic_and_the_name_of_another_are_refused() -> None:
    async def test(cluster: Cluster) -> None:
        cluster.create_topic(replicas=(1,))
        known = cluster.topic_id.bytes
        await expect(cluster.nodes[1], "nobody", known, ErrorCode.INCONSISTENT_TOPIC_ID)

    scenario(test, nodes=(1,))
