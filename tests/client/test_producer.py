"""AsyncProducer against the fake cluster: every acknowledged record is in the log once, in
order.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pyarrow as pa
import pytest

from tests.client.fake_cluster import FakeCluster, Fault, cluster_with
from tidemark.client import AsyncProducer, BufferExhaustedError, ClientClosedError, watch
from tidemark.errors import (
    ConfigError,
    ErrorCode,
    InvalidPartitionsError,
    InvalidRecordError,
    InvalidTimestampError,
    MessageTooLargeError,
    NotEnoughReplicasError,
    UnknownTopicOrPartitionError,
)
from tidemark.records import partition_for_key
from tidemark.types import TopicPartition

ONE = TopicPartition("t", 0)
FAST: dict[str, Any] = {"retry_backoff_ms": 1, "retry_backoff_max_ms": 5, "random_seed": 1}


def run(
    scenario: Callable[[FakeCluster, AsyncProducer], Awaitable[None]],
    *,
    partitions: int = 1,
    nodes: int = 1,
    **settings: Any,
) -> None:
    """Runs a scenario with a topic `t` and a producer."""

    async def main() -> None:
        async with (
            cluster_with("t", partitions, nodes) as cluster,
            AsyncProducer(cluster.bootstrap_servers, **(FAST | settings)) as producer,
        ):
            await scenario(cluster, producer)
            producer._core.validate()

    asyncio.run(main())


def numbered(count: int, begin: int = 0) -> list[bytes]:
    return [b"%d" % number for number in range(begin, begin + count)]


def test_a_record_gets_its_offset_and_timestamp() -> None:
    async def scenario(cluster: FakeCluster, producer: AsyncProducer) -> None:
        first = await producer.send("t", b"a", key=b"k", timestamp_ms=5, headers=[("h", b"x")])
        assert first == ("t", 0, 0, 5)
        second = await producer.send("t", None)
        assert second.offset == 1
        assert cluster.values("t") == [b"a", None]

    run(scenario, linger_ms=0)


def test_many_sends_without_awaiting_become_few_batches_in_order() -> None:
    async def scenario(cluster: FakeCluster, producer: AsyncProducer) -> None:
        deliveries = [producer.send("t", value) for value in numbered(5000)]
        await producer.flush()
        assert [d.metadata().offset for d in deliveries] == list(range(5000))
        assert cluster.values("t") == numbered(5000)
        assert len(cluster.produced) < 10

    run(scenario)


def test_a_topic_that_grows_is_noticed_by_partition_number_and_by_age() -> None:
    async def scenario(cluster: FakeCluster, producer: AsyncProducer) -> None:
        await producer.send("t", b"before", key=b"k")
        cluster.create_topic("t", 3)
        by_number = await producer.send("t", b"named", partition=2)
        assert by_number.partition == 2
        keys = numbered(50)
        chosen = [await producer.send("t", b"v", key=key) for key in keys]
        assert [c.partition for c in chosen] == [partition_for_key(key, 3) for key in keys]
        with pytest.raises(InvalidPartitionsError):
            await producer.send("t", b"beyond", partition=3)
        cluster.create_topic("t", 4)
        producer._metadata.mark_stale()  # as after metadata.max.age.ms
        await producer.send("t", b"asks anew", partition=0)
        await producer._metadata.refresh()  # joins the one under way
        table = pa.RecordBatch.from_pydict({"value": keys, "key": keys})
        batches = await producer.send_arrow("t", table)
        assert {b.partition for b in batches} == {0, 1, 2, 3}

    run(scenario, linger_ms=0, enable_idempotence=False)


def test_keys_choose_partitions_as_kafka_does_and_requests_carry_many_partitions() -> None:
    async def scenario(cluster: FakeCluster, producer: AsyncProducer) -> None:
        deliveries = {key: producer.send("t", b"v", key=key) for key in numbered(200)}
        await producer.flush()
        for key, delivery in deliveries.items():
            assert delivery.metadata().partition == partition_for_key(key, 8)
        assert max(len(partitions) for _, partitions in cluster.produced) > 1

    run(scenario, partitions=8, nodes=2)


def test_a_lost_answer_does_not_write_twice() -> None:
    async def scenario(cluster: FakeCluster, producer: AsyncProducer) -> None:
        cluster.faults[ONE].extend([Fault(), Fault(lose=True), Fault(lose=True)])
        for number, value in enumerate(numbered(5)):
            assert (await producer.send("t", value)).offset == number
        assert cluster.values("t") == numbered(5)

    run(scenario, linger_ms=0)


def test_without_idempotence_a_lost_answer_may_write_twice() -> None:
    async def scenario(cluster: FakeCluster, producer: AsyncProducer) -> None:
        cluster.faults[ONE].append(Fault(lose=True))
        await producer.send("t", b"a")
        assert cluster.values("t") == [b"a", b"a"]

    run(scenario, enable_idempotence=False)


def test_retriable_errors_keep_the_order_of_a_partition() -> None:
    async def scenario(cluster: FakeCluster, producer: AsyncProducer) -> None:
        cluster.faults[ONE].extend(
            [
                Fault(ErrorCode.NOT_ENOUGH_REPLICAS),
                Fault(drop=True),
                Fault(),
                Fault(ErrorCode.LEADER_NOT_AVAILABLE),
                Fault(lose=True),
            ]
        )
        for begin in range(0, 100, 10):
            for value in numbered(10, begin):
                producer.send("t", value)
            await asyncio.sleep(0)
        await producer.flush()
        assert cluster.values("t") == numbered(100)

    run(scenario, linger_ms=0, batch_size=200)


@pytest.mark.parametrize("hint", [True, False])
def test_a_leader_change_is_hidden(hint: bool) -> None:
    async def scenario(cluster: FakeCluster, producer: AsyncProducer) -> None:
        cluster.hint_leaders = hint
        await producer.send("t", b"0")
        cluster.faults[ONE].append(Fault(move_to=2))
        await producer.send("t", b"1")
        cluster.move(ONE, 1)
        await producer.send("t", b"2")
        assert cluster.values("t") == numbered(3)

    run(scenario, nodes=2)


def test_a_node_that_dies_and_a_leader_that_takes_over_are_hidden() -> None:
    async def scenario(cluster: FakeCluster, producer: AsyncProducer) -> None:
        await producer.send("t", b"0")
        await cluster.stop_node(1)
        delivery = producer.send("t", b"1")
        cluster.move(ONE, 2)
        cluster.known_nodes = [2]
        assert (await delivery).offset == 1
        assert cluster.values("t") == numbered(2)

    run(scenario, nodes=2)


def test_a_leader_that_hangs_is_left_when_another_one_takes_over(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(watch, "SLOW_CALL_S", 0.01)

    async def scenario(cluster: FakeCluster, producer: AsyncProducer) -> None:
        await producer.send("t", b"0")
        hung = Fault(wait_for=asyncio.Event(), reached=asyncio.Event(), drop=True)
        cluster.faults[ONE].append(hung)
        delivery = producer.send("t", b"1")
        assert hung.reached is not None
        await hung.reached.wait()
        cluster.move(ONE, 2)
        assert (await delivery).offset == 1
        assert cluster.values("t") == numbered(2)

    run(scenario, nodes=2)


def test_a_fatal_error_fails_its_batch_only_and_later_ones_are_accepted() -> None:
    async def scenario(cluster: FakeCluster, producer: AsyncProducer) -> None:
        await producer.send("t", b"0")
        cluster.faults[ONE].append(Fault(ErrorCode.INVALID_TIMESTAMP))
        refused = producer.send("t", b"bad")
        await asyncio.wait_for(producer.flush(), 10)
        with pytest.raises(InvalidTimestampError, match="t-0"):
            await refused
        await producer.send("t", b"1")  # its sequence begins again: no gap
        assert cluster.values("t") == numbered(2)

    run(scenario)


def test_a_forgotten_producer_bumps_its_epoch_and_goes_on() -> None:
    async def scenario(cluster: FakeCluster, producer: AsyncProducer) -> None:
        await producer.send("t", b"0")
        await producer.send("t", b"1")
        cluster.partitions[ONE].producers.clear()
        await producer.send("t", b"2")
        assert cluster.values("t") == numbered(3)
        (epoch, _), *_ = cluster.partitions[ONE].producers.values()
        assert epoch == 1

    run(scenario)


def test_a_batch_too_large_for_the_node_is_cut() -> None:
    async def scenario(cluster: FakeCluster, producer: AsyncProducer) -> None:
        cluster.max_batch_bytes = 300
        deliveries = [producer.send("t", value * 20) for value in numbered(60)]
        await producer.flush()
        assert [d.metadata().offset for d in deliveries] == list(range(60))
        assert cluster.values("t") == [value * 20 for value in numbered(60)]
        with pytest.raises(MessageTooLargeError):
            await producer.send("t", b"x" * 400)
        assert (await producer.send("t", b"after")).offset == 60

    run(scenario)


def test_a_refused_record_whose_next_try_would_come_too_late_fails_with_the_refusal() -> None:
    async def scenario(cluster: FakeCluster, producer: AsyncProducer) -> None:
        cluster.faults[ONE].append(Fault(ErrorCode.NOT_ENOUGH_REPLICAS))
        with pytest.raises(NotEnoughReplicasError, match="t-0"):
            await producer.send("t", b"a")
        assert (await producer.send("t", b"b")).offset == 0

    late: dict[str, Any] = {"retry_backoff_ms": 600_000, "retry_backoff_max_ms": 600_000}
    run(scenario, delivery_timeout_ms=60_000, **late)


@pytest.mark.parametrize("size", [10, 20_000])  # encoded on the loop, and in a thread
def test_a_batch_that_can_not_be_encoded_fails_at_once_and_the_next_goes(
    size: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    def no_memory(*_: object) -> bytes:
        raise MemoryError("no room for a batch")

    async def scenario(cluster: FakeCluster, producer: AsyncProducer) -> None:
        assert (await producer.send("t", b"a")).offset == 0
        with monkeypatch.context() as broken:
            broken.setattr("tidemark.client.encoding.encode", no_memory)
            with pytest.raises(MemoryError, match="no room"):
                await producer.send("t", b"x" * size)
        assert (await producer.send("t", b"b")).offset == 1

    run(scenario, delivery_timeout_ms=3_600_000)


def test_a_failure_that_nobody_foresaw_fails_what_waits_and_the_next_record_goes(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def broken_wire(_: object) -> bytes:
        raise RuntimeError("no such field")

    async def scenario(cluster: FakeCluster, producer: AsyncProducer) -> None:
        assert (await producer.send("t", b"a")).offset == 0
        with monkeypatch.context() as broken:
            broken.setattr("tidemark.wire.encode_produce_request", broken_wire)
            with pytest.raises(RuntimeError, match="no such field"):
                await producer.send("t", b"lost")
        assert (await producer.send("t", b"b")).offset == 1

    run(scenario, delivery_timeout_ms=3_600_000)
    assert "the producer failed: RuntimeError" in caplog.text


def test_a_full_buffer_holds_sends_back_and_then_refuses_them() -> None:
    async def scenario(cluster: FakeCluster, producer: AsyncProducer) -> None:
        await producer.send("t", b"warm")
        gate = asyncio.Event()
        cluster.faults[ONE].append(Fault(wait_for=gate))
        accepted = [producer.send("t", b"x" * 900) for _ in range(4)]
        parked = producer.send("t", b"y" * 900)
        assert producer.buffered_bytes > 2048
        with pytest.raises(BufferExhaustedError, match="drain"):
            for _ in range(10):
                producer.send("t", b"z" * 900)
        with pytest.raises(BufferExhaustedError, match=r"max\.block\.ms"):
            await parked
        gate.set()
        await producer.drain()
        await producer.flush()
        assert all(d.exception() is None for d in accepted[:2])
        assert (await producer.send("t", b"after")).offset > 0

    run(scenario, buffer_memory=2048, max_block_ms=50, linger_ms=0)


def test_drain_waits_for_room() -> None:
    async def scenario(cluster: FakeCluster, producer: AsyncProducer) -> None:
        for value in numbered(300):
            producer.send("t", value * 10)
            await producer.drain()
        await producer.flush()
        assert cluster.values("t") == [value * 10 for value in numbered(300)]

    run(scenario, buffer_memory=1000)


def test_an_unknown_topic_fails_after_max_block_ms() -> None:
    async def scenario(cluster: FakeCluster, producer: AsyncProducer) -> None:
        delivery = producer.send("nowhere", b"a")
        with pytest.raises(UnknownTopicOrPartitionError, match="nowhere"):
            await delivery
        assert (await producer.send("t", b"a")).offset == 0

    run(scenario, max_block_ms=30)


def test_a_partition_that_does_not_exist_is_refused() -> None:
    async def scenario(cluster: FakeCluster, producer: AsyncProducer) -> None:
        with pytest.raises(InvalidPartitionsError, match=r"0\.\.1"):
            await producer.send("t", b"a", partition=2)
        assert (await producer.send("t", b"a", partition=1)).partition == 1

    run(scenario, partitions=2)


@pytest.mark.parametrize("acks", [0, 1])
def test_acks_0_and_1(acks: int) -> None:
    async def scenario(cluster: FakeCluster, producer: AsyncProducer) -> None:
        found = await producer.send("t", b"a")
        assert found.offset == (-1 if acks == 0 else 0)
        assert cluster.values("t") == [b"a"]
        assert "InitProducerId" not in cluster.calls

    run(scenario, acks=acks)


def test_close_flushes_and_then_refuses() -> None:
    async def scenario(cluster: FakeCluster, producer: AsyncProducer) -> None:
        delivery = producer.send("t", b"a")
        await producer.close()
        assert delivery.metadata().offset == 0
        with pytest.raises(ClientClosedError):
            producer.send("t", b"b")

    run(scenario, linger_ms=60_000)


def test_close_with_a_time_limit_fails_what_is_left() -> None:
    async def scenario(cluster: FakeCluster, producer: AsyncProducer) -> None:
        cluster.faults[ONE].append(Fault(wait_for=asyncio.Event()))
        delivery = producer.send("t", b"a")
        await producer.close(timeout_ms=100)
        with pytest.raises(ClientClosedError):
            await delivery

    run(scenario)


def test_settings_that_contradict_each_other_are_refused() -> None:
    async def main() -> None:
        for settings in (
            {"acks": 2},
            {"acks": 1, "enable_idempotence": True},
            {"compression_type": "brotli"},
            {"batch_size": 0},
            {"linger_ms": -1},
            {"delivery_timeout_ms": -1},
            {"max_block_ms": float("nan")},
        ):
            with pytest.raises(ConfigError):
                AsyncProducer("127.0.0.1:1", **settings)  # type: ignore[arg-type]
        with pytest.raises(ConfigError, match="host:port"):
            AsyncProducer("nowhere")

    asyncio.run(main())


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        ({}, 120_000),
        ({"request_timeout_ms": 119_995}, 120_000),
        ({"request_timeout_ms": 119_996}, 120_001),
        ({"request_timeout_ms": 119_995, "linger_ms": 5.5}, 120_001),
        ({"linger_ms": float("inf")}, 2**31 - 1),
        ({"delivery_timeout_ms": 30_005}, 30_005),
        ({"delivery_timeout_ms": 30_004}, None),
        ({"delivery_timeout_ms": 30_000, "linger_ms": 0}, 30_000),
        ({"delivery_timeout_ms": 120_000, "request_timeout_ms": 120_000}, None),
        ({"delivery_timeout_ms": float("nan")}, None),
    ],
)
def test_the_delivery_timeout_holds_linger_and_one_request(
    settings: dict[str, Any], expected: int | None, caplog: pytest.LogCaptureFixture
) -> None:
    """A stated one that is shorter is refused; the default gives way, with a warning."""

    async def main() -> None:
        if expected is None:
            with pytest.raises(ConfigError, match=r"equal to or larger than linger\.ms"):
                AsyncProducer("127.0.0.1:1", **settings)
            return
        producer = AsyncProducer("127.0.0.1:1", **settings)
        assert producer._core.accumulator._retry.timeout_ms == expected
        await producer.close()

    asyncio.run(main())
    is_raised = "delivery_timeout_ms" not in settings and expected != 120_000
    assert [r.levelname for r in caplog.records] == ["WARNING"] * is_raised
    assert not is_raised or f"Setting it to {expected}." in caplog.text


# Arrow.


def table(count: int, **columns: Any) -> pa.RecordBatch:
    names = {"value": pa.array(numbered(count), pa.binary())} | columns
    return pa.RecordBatch.from_pydict(names)


def test_arrow_rows_go_where_their_keys_say_in_order() -> None:
    async def scenario(cluster: FakeCluster, producer: AsyncProducer) -> None:
        keys = [b"%d" % (number % 17) for number in range(4000)]
        data = table(4000, key=pa.array(keys, pa.binary()), timestamp=pa.array(range(4000)))
        found = await producer.send_arrow("t", data)
        assert sum(batch.record_count for batch in found) == 4000
        for partition, state in cluster.partitions.items():
            expected = [
                value
                for key, value in zip(keys, numbered(4000), strict=True)
                if partition_for_key(key, 4) == partition.partition
            ]
            assert state.values() == expected

    run(scenario, partitions=4, nodes=2, batch_size=5000)


def test_arrow_rows_without_keys_stay_together_and_use_all_partitions() -> None:
    async def scenario(cluster: FakeCluster, producer: AsyncProducer) -> None:
        await producer.send_arrow("t", pa.Table.from_batches([table(3000)]))
        assert sorted(cluster.values("t")) == sorted(numbered(3000))  # type: ignore[type-var]
        assert all(state.log for state in cluster.partitions.values())
        assert len(cluster.produced) < 40

    run(scenario, partitions=3, batch_size=4000)


def test_arrow_partition_column_null_keys_and_headers() -> None:
    async def scenario(cluster: FakeCluster, producer: AsyncProducer) -> None:
        data = table(
            4,
            key=pa.array([None, b"k", None, "k"[0:1].encode()], pa.binary()),
            partition=pa.array([1, 1, 0, None], pa.int32()),
            headers=pa.array(
                [[{"key": "a", "value": b"1"}], [], None, []],
                pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())])),
            ),
        )
        await producer.send_arrow("t", data)
        assert cluster.partitions[TopicPartition("t", 1)].values()[:2] == [b"0", b"1"]
        assert len(cluster.values("t")) == 4

    run(scenario, partitions=2)


@pytest.mark.parametrize(
    "data",
    [
        pa.RecordBatch.from_pydict({"key": ["a"]}),
        pa.RecordBatch.from_pydict({"value": ["a"], "what": [1]}),
        pa.RecordBatch.from_pydict({"value": ["a"], "partition": [7]}),
        pa.RecordBatch.from_pydict({"value": [1.5]}),
    ],
)
def test_arrow_of_a_wrong_shape_is_refused(data: pa.RecordBatch) -> None:
    async def scenario(cluster: FakeCluster, producer: AsyncProducer) -> None:
        with pytest.raises(InvalidRecordError):
            await producer.send_arrow("t", data)
        assert cluster.values("t") == []

    run(scenario)


def test_arrow_waits_for_room_and_survives_lost_answers() -> None:
    async def scenario(cluster: FakeCluster, producer: AsyncProducer) -> None:
        cluster.faults[ONE].extend([Fault(lose=True), Fault(drop=True), Fault(), Fault(lose=True)])
        deliveries = []
        for _ in range(20):
            delivery = producer.send_arrow("t", table(500))
            await delivery.accepted()
            deliveries.append(delivery)
        for delivery in deliveries:
            await delivery
        assert cluster.values("t") == numbered(500) * 20

    run(scenario, buffer_memory=30_000, batch_size=3000)


def test_compressed_batches_are_what_the_node_gets() -> None:
    async def scenario(cluster: FakeCluster, producer: AsyncProducer) -> None:
        for value in numbered(100):
            producer.send("t", value)
        await producer.flush()
        assert cluster.values("t") == numbered(100)
        from tidemark.records import read_header

        assert read_header(cluster.partitions[ONE].log[0]).compression == "zstd"

    run(scenario, compression_type="zstd")
