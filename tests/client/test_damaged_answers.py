"""Answers whose bytes outside the CRC are flipped, and answers that are no batches.

They give an error, never a record at a wrong offset, and no record is left out in silence.
"""

from __future__ import annotations

from typing import Any

import pytest

from tests.client.fake_cluster import FakeCluster
from tests.client.test_consumer import ONE, fill, numbered, run
from tidemark.client import AsyncConsumer
from tidemark.errors import CorruptMessageError, ErrorCode
from tidemark.records.header import (
    ATTRIBUTES_AT,
    CRC_AT,
    HEADER_BYTES,
    PATCH_BYTES,
    patch_header,
    read_header,
)
from tidemark.types import TopicPartition

EPOCH_AT = 12


def flipped(batch: bytes, bit: int) -> bytes:
    changed = bytearray(batch)
    changed[bit // 8] ^= 1 << bit % 8
    return bytes(changed)


def answer_with(cluster: FakeCluster, batches: list[bytes]) -> None:
    """Makes the node answer each fetch with these batches, from the one that holds the offset."""
    whole = list(cluster.partitions[ONE].log)
    read = cluster._read

    def answer(node: int, asked: Any) -> Any:
        found = read(node, asked)
        first = next(
            (i for i, b in enumerate(whole) if read_header(b).last_offset >= asked.fetch_offset),
            len(whole),
        )
        last = None if asked.partition_max_bytes > 1000 else first + 1
        found.records = b"".join(batches[first:last])
        return found

    cluster._read = answer  # type: ignore[method-assign]


async def outcome(consumer: AsyncConsumer, begin: int, end: int) -> tuple[list[Any], bool]:
    """Returns (offset, value) of all records from `begin` on, and whether an error ended them."""
    consumer.seek(ONE, begin)
    found: list[Any] = []
    while len(found) < end - begin:
        try:
            polled = await consumer.poll(10_000)
        except CorruptMessageError:
            return found, True
        assert len(polled), f"nothing came after {found}"
        found += [(record.offset, record.value) for record in polled]
    return found, False


@pytest.mark.parametrize("number", [0, 2, 4], ids=["first", "middle", "last"])
@pytest.mark.parametrize("at_once", [1 << 20, 400], ids=["one answer", "a batch each"])
def test_no_flipped_bit_outside_the_crc_is_delivered(number: int, at_once: int) -> None:
    """Only the leader epoch may be wrong: records do not show it.

    A batch in an answer of its own that moved up is left to the node. The client can not tell
    the gap before it from one that compaction left.
    """
    wanted = list(enumerate(numbered(50)))

    async def scenario(cluster: FakeCluster, consumer: AsyncConsumer) -> None:
        fill(cluster, 50)
        served, refused = list(cluster.partitions[ONE].log), set()
        answer_with(cluster, served)
        consumer.assign([ONE])
        whole = served[number]
        for bit in range(8 * ATTRIBUTES_AT):
            served[number] = flipped(whole, bit)
            moved_up = int.from_bytes(served[number][:8], "big", signed=True) > 10 * number
            if moved_up and at_once == 400:
                continue
            found, failed = await outcome(consumer, 0, 50)
            assert found == wanted[: len(found)], bit
            if failed:
                refused.add(bit)
        if at_once > 400:
            assert refused >= set(range(8 * EPOCH_AT)) | set(range(8 * PATCH_BYTES, 8 * CRC_AT))
        served[number] = whole
        assert await outcome(consumer, 0, 50) == (wanted, False)

    run(scenario, max_partition_fetch_bytes=at_once)


def test_an_answer_that_ends_before_the_position_is_an_error_and_a_gap_is_not() -> None:
    async def scenario(cluster: FakeCluster, consumer: AsyncConsumer) -> None:
        fill(cluster, 30)
        log = cluster.partitions[ONE].log
        cluster.partitions[ONE].next_offset = 60
        behind_a_gap = patch_header(log[2], 40, 0) + log[2][PATCH_BYTES:]
        answer_with(cluster, [log[0], behind_a_gap, b""])
        consumer.assign([ONE])
        consumer.seek(ONE, 15)
        assert [r.offset for r in await consumer.poll(10_000)] == list(range(40, 50))
        answer_with(cluster, [log[0], log[0], b""])
        consumer.seek(ONE, 15)
        with pytest.raises(CorruptMessageError, match="ends at 9"):
            await consumer.poll(10_000)

    run(scenario)


def test_bytes_that_are_no_batch_and_an_error_of_the_node_are_raised_not_repeated() -> None:
    async def scenario(cluster: FakeCluster, consumer: AsyncConsumer) -> None:
        fill(cluster, 20)
        served = list(cluster.partitions[ONE].log)
        consumer.assign([ONE])
        consumer.seek(ONE, 0)
        cluster.fetch_errors[ONE].append(ErrorCode.CORRUPT_MESSAGE)
        with pytest.raises(CorruptMessageError):
            await consumer.poll(10_000)
        assert len(await consumer.poll(10_000)) == 20, "the next poll asks again"
        answer_with(cluster, [served[0][: HEADER_BYTES - 1], b""])
        consumer.seek(ONE, 0)
        with pytest.raises(CorruptMessageError, match="no whole batch"):
            await consumer.poll(10_000)

    run(scenario)


def test_a_damaged_batch_is_an_error_again_and_hides_no_record_of_others() -> None:
    """The batches before it, and other partitions, are returned; a repeated poll does not skip."""

    async def scenario(cluster: FakeCluster, consumer: AsyncConsumer) -> None:
        fill(cluster, 60)
        log = cluster.partitions[ONE].log
        log[2] = flipped(log[2], 8 * (HEADER_BYTES + 5))
        consumer.assign([ONE, TopicPartition("t", 1)])
        for partition in consumer.assignment():
            consumer.seek(partition, 0)
        found, errors = [], 0
        while errors < 3:
            try:
                found += [(r.partition, r.offset) for r in await consumer.poll(100)]
            except CorruptMessageError:
                errors += 1
        assert [offset for partition, offset in found if partition == 1] == list(range(30))
        assert [offset for partition, offset in found if partition == 0] == list(range(20))[
            : len(found) - 30
        ]
        assert await consumer.position(ONE) == len(found) - 30

    run(scenario, partitions=2)
