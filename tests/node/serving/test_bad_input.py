"""Answers to wrong requests: a code of the error table per partition, and nothing is written."""

from __future__ import annotations

import pytest

from node.serving.fetch_session import FetchingReplica
from tests import virtual_time
from tests.node.cluster import Cluster, batch
from tests.node.fakes import WALL_START_MS
from tests.node.replication.test_replication import scenario
from tidemark.errors import ErrorCode
from tidemark.records import EndTransactionMarker, encode_control_batch
from tidemark.v1 import log_pb2
from tidemark.wire import PartitionProduceData

assert virtual_time  # the scenarios below run on it


def corrupt() -> bytes:
    raw = bytearray(batch("a"))
    raw[-2] ^= 0xFF  # the value: only the CRC shows the damage
    return bytes(raw)


def marker() -> bytes:
    return encode_control_batch(
        [EndTransactionMarker(False, 0)],
        base_offset=0,
        timestamp_ms=WALL_START_MS,
        partition_leader_epoch=-1,
        producer_id=7,
        producer_epoch=0,
    )


BAD_BATCHES = {
    "of no transaction": (
        batch("a", producer_id=7, producer_epoch=0, base_sequence=0, transactional=True),
        ErrorCode.INVALID_TXN_STATE,
    ),
    "a transaction's end": (marker(), ErrorCode.INVALID_RECORD),
    "corrupt CRC": (corrupt(), ErrorCode.CORRUPT_MESSAGE),
    "cut short": (batch("a")[:-3], ErrorCode.CORRUPT_MESSAGE),
    "nothing": (b"", ErrorCode.CORRUPT_MESSAGE),
    "no batch at all": (b"\0" * 80, ErrorCode.CORRUPT_MESSAGE),
    "oversized": (batch("x" * 2_000), ErrorCode.MESSAGE_TOO_LARGE),
    "too far ahead": (
        batch("a", timestamp_ms=WALL_START_MS + 7_200_000),
        ErrorCode.INVALID_TIMESTAMP,
    ),
    "too old": (batch("a", timestamp_ms=WALL_START_MS - 7_200_000), ErrorCode.INVALID_TIMESTAMP),
}


@pytest.mark.parametrize("name", BAD_BATCHES)
def test_a_bad_batch_is_refused_and_leaves_no_trace(name: str) -> None:
    raw, code = BAD_BATCHES[name]

    async def test(cluster: Cluster) -> None:
        cluster.create_topic(
            replicas=(1,),
            max_message_bytes="1000",
            message_timestamp_before_max_ms="3600000",
            message_timestamp_after_max_ms="3600000",
        )
        result = await cluster.nodes[1].produce(raw=raw)
        assert result.error_code == code, result
        assert result.base_offset == -1
        assert result.error_message
        log = cluster.nodes[1].hosted().log
        assert (log.log_end_offset, log.first_unstable_offset) == (0, None)
        assert (await cluster.nodes[1].produce("good")).base_offset == 0

    scenario(test, nodes=(1,))


def test_unknown_topics_other_leaders_and_wrong_acks_have_their_errors() -> None:
    async def test(cluster: Cluster) -> None:
        cluster.create_topic(replicas=(1, 2), leader=2)
        producer = cluster.nodes[1].handlers.produce
        wanted = [
            PartitionProduceData("nobody", 0, batch("a")),
            PartitionProduceData("flights", 9, batch("a")),
            PartitionProduceData("flights", 0, batch("a")),
            PartitionProduceData("flights", 0, batch("a"), topic_id=b"\1" * 16),
        ]
        results = await producer.produce(-1, 1000, wanted)
        assert [r.error_code for r in results] == [
            ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
            ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
            ErrorCode.NOT_LEADER_OR_FOLLOWER,
            ErrorCode.INCONSISTENT_TOPIC_ID,
        ]
        assert results[2].current_leader == (2, 0)
        (wrong,) = await producer.produce(3, 1000, wanted[:1])
        assert wrong.error_code == ErrorCode.INVALID_REQUIRED_ACKS

    scenario(test, nodes=(1, 2))


def test_fetches_of_old_and_future_epochs_and_strangers_are_refused() -> None:
    async def test(cluster: Cluster) -> None:
        cluster.create_topic(replicas=(1, 2))
        cluster.change(leader=1)
        node = cluster.nodes[1]
        codes = [
            (await node.fetch(0, current_leader_epoch=0)).error_code,
            (await node.fetch(0, current_leader_epoch=9)).error_code,
            (await node.fetch(0, replica=FetchingReplica(9, 1), current_leader_epoch=1)).error_code,
            (await node.fetch(5)).error_code,
            (await cluster.nodes[2].fetch(0)).error_code,
            (await node.fetch(0, topic="nobody")).error_code,
        ]
        assert codes == [
            ErrorCode.FENCED_LEADER_EPOCH,
            ErrorCode.UNKNOWN_LEADER_EPOCH,
            ErrorCode.UNKNOWN_LEADER_EPOCH,
            ErrorCode.OFFSET_OUT_OF_RANGE,
            ErrorCode.NOT_LEADER_OR_FOLLOWER,
            ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        ]

    scenario(test, nodes=(1, 2))


def test_a_follower_of_another_cluster_is_told_so() -> None:
    async def test(cluster: Cluster) -> None:
        from tidemark.wire import decode_fetch_response

        request = log_pb2.ReplicaFetchRequest(replica_id=2, cluster_id="another")
        payload = await cluster.nodes[1].service.replica_fetch(request, None)
        assert decode_fetch_response(payload).error_code == ErrorCode.INCONSISTENT_CLUSTER_ID

    scenario(test, nodes=(1,))


def test_list_offsets_answers_special_values_and_refuses_nonsense() -> None:
    async def test(cluster: Cluster) -> None:
        cluster.create_topic(replicas=(1,))
        node = cluster.nodes[1]
        await node.produce(raw=batch("a", timestamp_ms=1_000))
        await node.produce(raw=batch("b", timestamp_ms=3_000))
        await node.produce(raw=batch("c", timestamp_ms=2_000))
        request = log_pb2.ListOffsetsRequest()
        for timestamp in (-1, -2, -3, -4, -5, 1_500, 9_000, -99):
            request.partitions.add(
                topic="flights", partition_index=0, current_leader_epoch=-1, timestamp=timestamp
            )
        answers = (await node.service.list_offsets(request, None)).partitions
        assert [a.offset for a in answers] == [3, 0, 1, 0, -1, 1, -1, -1]
        assert [a.error_code for a in answers[:-1]] == [ErrorCode.NONE] * 7
        assert answers[-1].error_code == ErrorCode.INVALID_REQUEST

    scenario(test, nodes=(1,))


def test_a_full_disk_is_a_retriable_error_and_the_log_goes_on_afterwards() -> None:
    async def test(cluster: Cluster) -> None:
        cluster.create_topic(replicas=(1,))
        node = cluster.nodes[1]
        await node.produce("a")
        node.directory.set_capacity(5_000)
        result = await node.produce("b" * 10_000)
        assert result.error_code == ErrorCode.KAFKA_STORAGE_ERROR
        assert "full" in result.error_message
        node.directory.set_capacity(1 << 40)
        assert (await node.produce("c")).base_offset == 1
        assert await node.read_all() == ["a", "c"]

    scenario(test, nodes=(1,))
