"""AsyncConsumer against the fake cluster: every record once, in order, from the requested
position.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import replace
from typing import Any

import pytest

from tests.client.fake_cluster import FakeCluster, cluster_with
from tidemark import records
from tidemark.client import AsyncConsumer, ClientClosedError, NoOffsetForPartitionError
from tidemark.client.records import RawBatches, without_aborted
from tidemark.errors import (
    ConfigError,
    ErrorCode,
    InvalidTopicError,
    OffsetOutOfRangeError,
    UnknownTopicOrPartitionError,
)
from tidemark.records import EndTransactionMarker, Record, encode_batch
from tidemark.types import TopicPartition

ONE = TopicPartition("t", 0)
FAST: dict[str, Any] = {
    "retry_backoff_ms": 1,
    "retry_backoff_max_ms": 5,
    "fetch_max_wait_ms": 20,
    "random_seed": 1,
}


def fill(cluster: FakeCluster, count: int, per_batch: int = 10, topic: str = "t") -> None:
    """Appends records 0..count-1 with timestamps 1000 + number, batch by batch to each partition in
    turn.
    """
    partitions = sorted(p for p in cluster.partitions if p.topic == topic)
    for step, begin in enumerate(range(0, count, per_batch)):
        state = cluster.partitions[partitions[step % len(partitions)]]
        rows = [
            Record(i, 1000 + begin + i, b"k", b"%d" % (begin + i), (("h", b"x"),))
            for i in range(min(per_batch, count - begin))
        ]
        state.append(encode_batch(rows))


def run(
    scenario: Callable[[FakeCluster, AsyncConsumer], Awaitable[None]],
    *,
    partitions: int = 1,
    nodes: int = 1,
    **settings: Any,
) -> None:
    async def main() -> None:
        async with (
            cluster_with("t", partitions, nodes) as cluster,
            AsyncConsumer(cluster.bootstrap_servers, **(FAST | settings)) as consumer,
        ):
            await scenario(cluster, consumer)

    asyncio.run(main())


async def values(consumer: AsyncConsumer, count: int, **poll: Any) -> list[bytes | None]:
    found: list[bytes | None] = []
    while len(found) < count:
        polled = await consumer.poll(10_000, **poll)
        assert len(polled), f"nothing came after {found}"
        found += [record.value for record in polled]
    return found


def numbered(count: int, begin: int = 0) -> list[bytes]:
    return [b"%d" % number for number in range(begin, begin + count)]


def test_poll_gives_every_record_with_all_its_fields() -> None:
    async def scenario(cluster: FakeCluster, consumer: AsyncConsumer) -> None:
        fill(cluster, 25)
        consumer.assign([ONE])
        consumer.seek_to_beginning()
        polled = await consumer.poll(10_000, max_records=7)
        assert len(polled) == 7
        assert polled.partitions() == [ONE]
        first = next(iter(polled))
        assert first == ("t", 0, 0, 1000, b"k", b"0", (("h", b"x"),))
        assert polled.records(ONE)[6].offset == 6
        assert await consumer.position(ONE) == 7
        assert await values(consumer, 18) == numbered(18, 7)
        assert await consumer.position(ONE) == 25

    run(scenario)


def test_an_offset_within_a_batch_skips_the_records_before_it() -> None:
    async def scenario(cluster: FakeCluster, consumer: AsyncConsumer) -> None:
        fill(cluster, 30)
        consumer.assign([ONE])
        consumer.seek(ONE, 17)
        assert await values(consumer, 13) == numbered(13, 17)

    run(scenario)


def test_a_torn_tail_is_ignored_and_fetched_again() -> None:
    async def scenario(cluster: FakeCluster, consumer: AsyncConsumer) -> None:
        fill(cluster, 300)
        consumer.assign([ONE])
        consumer.seek_to_beginning()
        assert await values(consumer, 300) == numbered(300)

    run(scenario, max_partition_fetch_bytes=700)


def test_poll_arrow_reads_many_partitions_of_many_nodes() -> None:
    async def scenario(cluster: FakeCluster, consumer: AsyncConsumer) -> None:
        fill(cluster, 600)
        consumer.assign(await consumer.partitions_for("t"))
        consumer.seek_to_beginning()
        found: dict[TopicPartition, list[int]] = {}
        while sum(map(len, found.values())) < 600:
            for partition, batch in (await consumer.poll_arrow(10_000)).items():
                assert batch.schema.equals(records.RECORDS_SCHEMA)
                found.setdefault(partition, []).extend(batch.column("offset").to_pylist())
        assert sorted(found) == [TopicPartition("t", p) for p in range(6)]
        assert all(offsets == list(range(100)) for offsets in found.values())

    run(scenario, partitions=6, nodes=3)


def test_fetch_batches_gives_raw_bytes_and_moves_the_position() -> None:
    async def scenario(cluster: FakeCluster, consumer: AsyncConsumer) -> None:
        fill(cluster, 20)
        consumer.assign([ONE])
        consumer.seek(ONE, 3)
        (raw,) = await consumer.fetch_batches(10_000)
        assert (raw.first_offset, raw.next_offset, raw.high_watermark) == (3, 20, 20)
        assert [h.base_offset for _, h in records.iter_batches(raw.buffer)] == [0, 10]
        assert await consumer.position(ONE) == 20

    run(scenario)


def test_poll_gives_nothing_after_its_timeout_and_wakes_for_what_comes() -> None:
    async def scenario(cluster: FakeCluster, consumer: AsyncConsumer) -> None:
        consumer.assign([ONE])
        consumer.seek_to_end()
        assert len(await consumer.poll(5)) == 0
        assert await consumer.position(ONE) == 0
        fill(cluster, 10)
        cluster.changed.set()
        assert await values(consumer, 10) == numbered(10)

    run(scenario)


@pytest.mark.parametrize(("reset", "expected"), [("earliest", 4), ("latest", 30)])
def test_without_a_position_the_reset_decides(reset: str, expected: int) -> None:
    async def scenario(cluster: FakeCluster, consumer: AsyncConsumer) -> None:
        fill(cluster, 30)
        cluster.partitions[ONE].start_offset = 4
        consumer.assign([ONE])
        assert await consumer.position(ONE) == expected

    run(scenario, auto_offset_reset=reset)


def test_out_of_range_is_the_users_business_with_reset_none() -> None:
    async def scenario(cluster: FakeCluster, consumer: AsyncConsumer) -> None:
        fill(cluster, 30)
        consumer.assign([ONE])
        with pytest.raises(NoOffsetForPartitionError, match="t-0"):
            await consumer.poll(10_000)
        consumer.seek(ONE, 99)
        with pytest.raises(OffsetOutOfRangeError, match="99"):
            await consumer.poll(10_000)
        consumer.seek(ONE, 29)
        assert await values(consumer, 1) == [b"29"]

    run(scenario, auto_offset_reset="none")


def test_out_of_range_is_reset_by_policy() -> None:
    async def scenario(cluster: FakeCluster, consumer: AsyncConsumer) -> None:
        fill(cluster, 30)
        cluster.partitions[ONE].start_offset = 10
        consumer.assign([ONE])
        consumer.seek(ONE, 2)
        assert await values(consumer, 20) == numbered(20, 10)

    run(scenario, auto_offset_reset="earliest")


def test_retriable_errors_and_leader_changes_are_hidden() -> None:
    async def scenario(cluster: FakeCluster, consumer: AsyncConsumer) -> None:
        fill(cluster, 10)
        cluster.fetch_errors[ONE].extend(
            [ErrorCode.OFFSET_NOT_AVAILABLE, ErrorCode.UNKNOWN_LEADER_EPOCH]
        )
        consumer.assign([ONE])
        consumer.seek_to_beginning()
        assert await values(consumer, 10) == numbered(10)
        cluster.move(ONE, 2)
        fill(cluster, 10)
        assert len(await values(consumer, 10)) == 10
        cluster.move(ONE, 1)
        await cluster.stop_node(2)
        cluster.known_nodes = [1]
        fill(cluster, 10)
        assert len(await values(consumer, 10)) == 10

    run(scenario, nodes=2)


@pytest.mark.parametrize("reset", ["earliest", "latest"])
def test_a_leader_that_does_not_know_its_epoch_yet_moves_no_position(reset: str) -> None:
    """It was suspended, and leads again before it learned what it missed.

    Its log ends below the position. Taken for an offset out of range, that would repeat records,
    or skip those that come.
    """

    async def scenario(cluster: FakeCluster, consumer: AsyncConsumer) -> None:
        fill(cluster, 10)
        cluster.outdated[1, ONE] = replace(cluster.partitions[ONE])
        cluster.move(ONE, 2)
        fill(cluster, 10)
        consumer.assign([ONE])
        consumer.seek(ONE, 0)
        assert len(await values(consumer, 20)) == 20
        cluster.move(ONE, 1)
        asked = len(cluster.calls)
        assert not len(await consumer.poll(300))
        assert "Fetch" in cluster.calls[asked:]
        assert await consumer.position(ONE) == 20
        ends = asyncio.ensure_future(consumer.end_offsets([ONE]))
        await asyncio.sleep(0)
        fill(cluster, 10)
        del cluster.outdated[1, ONE]
        assert (await ends)[ONE] >= 20
        assert len(await values(consumer, 10)) == 10
        assert await consumer.position(ONE) == 30

    run(scenario, nodes=2, auto_offset_reset=reset)


def test_an_error_that_retrying_does_not_cure_is_raised() -> None:
    async def scenario(cluster: FakeCluster, consumer: AsyncConsumer) -> None:
        fill(cluster, 10)
        cluster.fetch_errors[ONE].append(ErrorCode.INVALID_TOPIC_EXCEPTION)
        consumer.assign([ONE])
        consumer.seek_to_beginning()
        with pytest.raises(InvalidTopicError, match="t-0"):
            await consumer.poll(10_000)
        assert await values(consumer, 10) == numbered(10)

    run(scenario)


def test_seek_forgets_what_was_fetched_ahead() -> None:
    async def scenario(cluster: FakeCluster, consumer: AsyncConsumer) -> None:
        fill(cluster, 100)
        consumer.assign([ONE])
        consumer.seek_to_beginning()
        assert await values(consumer, 5, max_records=5) == numbered(5)
        consumer.seek(ONE, 50)
        assert await values(consumer, 50) == numbered(50, 50)

    run(scenario)


def test_paused_partitions_give_nothing_and_keep_their_position() -> None:
    async def scenario(cluster: FakeCluster, consumer: AsyncConsumer) -> None:
        fill(cluster, 40)
        two = TopicPartition("t", 1)
        consumer.assign([ONE, two])
        consumer.seek_to_beginning()
        consumer.pause(two)
        assert consumer.paused() == [two]
        assert await values(consumer, 20) == [*numbered(10), *numbered(10, 20)]
        assert len(await consumer.poll(5)) == 0
        consumer.resume(two)
        assert await values(consumer, 20) == [*numbered(10, 10), *numbered(10, 30)]

    run(scenario, partitions=2)


def test_offsets_by_time_and_seek_to_timestamp() -> None:
    async def scenario(cluster: FakeCluster, consumer: AsyncConsumer) -> None:
        fill(cluster, 40)
        two = TopicPartition("t", 1)
        found = await consumer.offsets_for_times({ONE: 1005, two: 1015})
        assert found[ONE] is not None
        assert found[ONE][:2] == (5, 1005)
        assert found[two] is not None
        assert found[two].offset == 5
        assert (await consumer.offsets_for_times({ONE: 9999}))[ONE] is None
        assert await consumer.end_offsets([ONE, two]) == {ONE: 20, two: 20}
        assert await consumer.beginning_offsets([ONE]) == {ONE: 0}
        consumer.assign([ONE, two])
        await consumer.seek_to_timestamp(1025)
        assert await consumer.position_and_epoch(ONE) == (15, 0), "with the epoch of the answer"
        assert await consumer.position(two) == 10
        await consumer.seek_to_timestamp({ONE: 99_999})
        assert await consumer.position_and_epoch(ONE) == (20, 0)
        with pytest.raises(ValueError, match="negative"):
            await consumer.offsets_for_times({ONE: -1})

    run(scenario, partitions=2, nodes=2)


def test_a_topic_that_is_no_longer_assigned_is_not_asked_for() -> None:
    async def scenario(cluster: FakeCluster, consumer: AsyncConsumer) -> None:
        cluster.create_topic("other", 1)
        fill(cluster, 10)
        consumer.assign([ONE, TopicPartition("other", 0)])
        consumer.seek_to_beginning()
        assert await values(consumer, 10) == numbered(10)
        assert set(consumer._metadata.topics()) == {"t", "other"}
        calls = len(cluster.calls)
        under_way = asyncio.ensure_future(consumer._metadata.refresh())
        while len(cluster.calls) == calls:  # noqa: ASYNC110
            await asyncio.sleep(0)
        consumer.assign([ONE])  # while a request for both is under way
        await under_way
        assert set(consumer._metadata.topics()) == {"t"}
        assert await consumer.end_offsets([TopicPartition("other", 0)]) == {("other", 0): 0}

    run(scenario)


def test_what_is_buffered_is_bounded() -> None:
    async def scenario(cluster: FakeCluster, consumer: AsyncConsumer) -> None:
        fill(cluster, 4000)
        consumer.assign([ONE])
        consumer.seek_to_beginning()
        assert await values(consumer, 1, max_records=1) == [b"0"]
        calls = len(cluster.calls)
        for _ in range(50):
            await asyncio.sleep(0)
        assert consumer._assignment.ahead_bytes < 4 * 2000
        assert len(cluster.calls) - calls <= 3
        assert await values(consumer, 3999) == numbered(3999, 1)

    run(scenario, max_partition_fetch_bytes=2000)


def test_unknown_topics_partitions_and_settings_are_named() -> None:
    async def scenario(cluster: FakeCluster, consumer: AsyncConsumer) -> None:
        with pytest.raises(UnknownTopicOrPartitionError, match="nowhere"):
            await consumer.partitions_for("nowhere")
        with pytest.raises(UnknownTopicOrPartitionError, match="t-7"):
            await consumer.end_offsets([TopicPartition("t", 7)])
        with pytest.raises(ValueError, match="not assigned"):
            consumer.seek(ONE, 1)
        consumer.assign([ONE])
        with pytest.raises(ValueError, match="negative"):
            consumer.seek(ONE, -1)
        await consumer.close()
        with pytest.raises(ClientClosedError):
            await consumer.poll(10)
        with pytest.raises(ConfigError, match=r"auto\.offset\.reset"):
            AsyncConsumer("127.0.0.1:1", auto_offset_reset="never")
        with pytest.raises(ConfigError, match=r"isolation\.level"):
            AsyncConsumer("127.0.0.1:1", isolation_level="dirty")

    run(scenario, default_api_timeout_ms=50)


def test_read_committed_drops_what_was_aborted() -> None:
    def data(base: int, producer: int, value: bytes) -> bytes:
        return encode_batch(
            [Record(base, 0, None, value)],
            base_offset=base,
            producer_id=producer,
            producer_epoch=0,
            base_sequence=0,
            transactional=True,
        )

    def marker(base: int, producer: int, committed: bool) -> bytes:
        return records.encode_control_batch(
            [EndTransactionMarker(committed, 0)],
            base_offset=base,
            timestamp_ms=0,
            partition_leader_epoch=0,
            producer_id=producer,
            producer_epoch=0,
        )

    log = b"".join(
        [
            data(0, 1, b"aborted"),
            data(1, 2, b"kept"),
            marker(2, 1, committed=False),
            data(3, 1, b"kept too"),
            marker(4, 2, committed=True),
            marker(5, 1, committed=True),
        ]
    )
    raw = RawBatches(ONE, memoryview(log), 0, 6, 6, 0, aborted=((1, 0),))
    kept = records.decode_arrow(without_aborted(raw))
    assert kept.column("value").to_pylist() == [b"kept", b"kept too"]


def test_a_control_batch_without_records_ends_no_transaction() -> None:
    """Compaction leaves only the header of a marker (KIP-98's last batch of a producer)."""
    empty = records.encode_batch(
        [], last_offset=0, control=True, producer_id=1, producer_epoch=0, transactional=True
    )
    data = records.encode_batch(
        [records.Record(0, 0, None, b"aborted")],
        base_offset=1,
        producer_id=1,
        producer_epoch=0,
        base_sequence=0,
        transactional=True,
    )
    raw = RawBatches(ONE, memoryview(empty + data), 0, 2, 2, 0, aborted=((1, 0),))
    assert records.decode_arrow(without_aborted(raw)).num_rows == 0
