"""Faults around the producer, in virtual time: what each may cost, and whom it concerns."""

from __future__ import annotations

import asyncio
import itertools
from typing import Any

import pyarrow as pa
import pytest

from tests.client.fake_cluster import Fault
from tests.client.virtual_cluster import Make, VirtualCluster, now_s, scenario
from tidemark.client import AsyncProducer, BufferExhaustedError, ClientClosedError
from tidemark.client.delivery import Delivery
from tidemark.errors import (
    ErrorCode,
    InvalidTimestampError,
    InvalidTopicError,
    MessageTooLargeError,
    NotEnoughReplicasError,
    NotLeaderOrFollowerError,
    RequestTimedOutError,
    UnknownTopicOrPartitionError,
)
from tidemark.records import read_header
from tidemark.types import TopicPartition

ZERO, ONE = TopicPartition("t", 0), TopicPartition("t", 1)


async def outcome(delivery: Any) -> Any:
    """Metadata, or the exception; within five virtual minutes."""
    try:
        async with asyncio.timeout(300):
            return await delivery
    except TimeoutError:
        raise AssertionError("no outcome") from None
    except Exception as error:
        return error


def test_a_batch_above_the_limit_of_its_topic_is_cut_once_while_others_are_sent() -> None:
    async def play(cluster: VirtualCluster, make: Make) -> None:
        async with make() as producer:
            await producer.send("t", b"warm", partition=0)
            cluster.max_batch_bytes = 300
            large = [producer.send("t", b"%02d" % n * 20, partition=0) for n in range(30)]
            others: list[Delivery] = []
            while not all(delivery.done() for delivery in large):
                others.append(producer.send("t", b"x", partition=1))
                await asyncio.sleep(0.0005)
            assert [d.metadata().offset for d in large] == list(range(1, 31))
            await producer.flush()
            assert all(delivery.exception() is None for delivery in others)
            producer._core.validate()

    scenario(play, partitions=2)


def test_a_request_that_can_not_be_encoded_fails_its_batches_and_frees_its_node(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def broken(_: object) -> bytes:
        raise RuntimeError("no such field")

    async def play(cluster: VirtualCluster, make: Make) -> None:
        async with make(max_in_flight_requests_per_connection=2) as producer:
            await producer.send("t", b"warm")
            for _ in range(6):
                with monkeypatch.context() as patched:
                    patched.setattr("tidemark.wire.encode_produce_request", broken)
                    bad = producer.send("t", b"bad")
                    assert isinstance(await outcome(bad), RuntimeError)
            assert (await outcome(producer.send("t", b"good"))).offset == 1
            assert now_s() < 1

    scenario(play)


def test_a_failure_of_the_pump_itself_fails_what_is_owned_and_the_pump_goes_on(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def broken(*_: object, **__: object) -> None:
        raise RuntimeError("nobody foresaw it")

    async def play(cluster: VirtualCluster, make: Make) -> None:
        async with make() as producer:
            await producer.send("t", b"warm")
            with monkeypatch.context() as patched:
                patched.setattr(producer._core, "dispatch", broken)
                lost = [producer.send("t", b"a"), producer.send("nowhere", b"b")]
                for delivery in lost:
                    assert isinstance(await outcome(delivery), RuntimeError)
            assert (await outcome(producer.send("t", b"good"))).offset == 1
            assert now_s() < 1

    scenario(play)
    assert "the producer failed: RuntimeError" in caplog.text


@pytest.mark.parametrize("why", ["metadata", "room"])
def test_close_with_a_time_limit_gives_parked_records_an_outcome(why: str) -> None:
    async def play(cluster: VirtualCluster, make: Make) -> None:
        producer = make(buffer_memory=1000)
        await producer.send("t", b"warm")
        cluster.hung = {1}
        topic = "nowhere" if why == "metadata" else "t"
        deliveries: list[Any] = [producer.send(topic, b"x" * 400) for _ in range(3)]
        data = pa.RecordBatch.from_pydict({"value": [b"a" * 900]})
        arrow = [producer.send_arrow(topic, data) for _ in range(2)]
        await asyncio.sleep(0.01)
        begun_s = now_s()
        await producer.close(timeout_ms=500)
        assert now_s() - begun_s < 1
        for delivery in [*deliveries, *arrow]:
            assert delivery.done()
            assert isinstance(await outcome(delivery), ClientClosedError)
        with pytest.raises(ClientClosedError):
            await arrow[1].accepted()
        with pytest.raises(ClientClosedError):
            producer.send_arrow("t", data)

    scenario(play)


def test_a_close_that_is_cancelled_gives_every_record_an_outcome_and_closes() -> None:
    async def play(cluster: VirtualCluster, make: Make) -> None:
        producer = make()
        await producer.send("t", b"warm")
        cluster.hung = {1}
        delivery = producer.send("t", b"a")
        closing = asyncio.ensure_future(producer.close())
        await asyncio.sleep(1)
        closing.cancel()
        assert (await asyncio.gather(closing, return_exceptions=True))[0] is not None
        assert isinstance(await outcome(delivery), ClientClosedError)
        await producer.close()
        assert asyncio.all_tasks() == {asyncio.current_task()}

    scenario(play)


BAD: list[tuple[dict[str, Any], type[Exception]]] = [
    ({"headers": {"name": b"value"}}, TypeError),
    ({"headers": [("name", "text")]}, TypeError),
    ({"headers": [("\ud800", b"value")]}, TypeError),
    ({"partition": "0"}, TypeError),
    ({"timestamp_ms": 1.5}, TypeError),
    ({"timestamp_ms": 2**63}, InvalidTimestampError),
    ({"topic": "no such name!"}, InvalidTopicError),
    ({"topic": 7}, TypeError),
]


@pytest.mark.parametrize(("wrong", "error"), BAD)
def test_a_bad_first_record_fails_alone_typed_and_at_once(
    wrong: dict[str, Any], error: type[Exception]
) -> None:
    async def play(cluster: VirtualCluster, make: Make) -> None:
        async with make() as producer:
            record: dict[str, Any] = {"topic": "t", "value": b"bad"} | wrong
            with pytest.raises(error):
                producer.send(record.pop("topic"), record.pop("value"), **record)
            assert (await outcome(producer.send("t", b"good"))).offset == 0
            assert now_s() < 1

    scenario(play)


def test_sends_to_unknown_topics_hold_up_no_other_and_wait_their_own_time() -> None:
    async def play(cluster: VirtualCluster, make: Make) -> None:
        async with make(max_block_ms=2000) as producer:
            unknown = [producer.send(f"nowhere-{n}", b"a") for n in range(20)]
            assert (await outcome(producer.send("t", b"first"))).offset == 0
            assert now_s() < 0.2
            await asyncio.sleep(1)
            later = producer.send("nowhere-0", b"b")
            await producer.drain()
            data = pa.RecordBatch.from_pydict({"value": [b"a"]})
            arrow = producer.send_arrow("nowhere-0", data)
            assert (await producer.send_arrow("t", data))[0].base_offset == 1
            for delivery in unknown:
                assert isinstance(await outcome(delivery), UnknownTopicOrPartitionError)
            assert 2 <= now_s() < 2.1
            assert not later.done()
            assert isinstance(await outcome(later), UnknownTopicOrPartitionError)
            assert isinstance(await outcome(arrow), UnknownTopicOrPartitionError)
            assert 3 <= now_s() < 3.2

    scenario(play)


def test_a_topic_that_appears_takes_its_parked_records_in_order() -> None:
    async def play(cluster: VirtualCluster, make: Make) -> None:
        async with make() as producer:
            deliveries = [producer.send("new", b"%d" % n) for n in range(5)]
            await asyncio.sleep(1)
            cluster.create_topic("new", 1)
            deliveries.append(producer.send("new", b"5"))
            assert [(await outcome(d)).offset for d in deliveries] == list(range(6))
            assert cluster.values("new") == [b"%d" % n for n in range(6)]

    scenario(play)


def test_a_hung_leader_is_left_by_each_partition_that_moves() -> None:
    async def play(cluster: VirtualCluster, make: Make) -> None:
        cluster.partitions[ONE].leader = 1
        async with make() as producer:
            for partition in (0, 1):
                await producer.send("t", b"warm", partition=partition)
            cluster.hung = {1}
            moved, stays = (producer.send("t", b"a", partition=n) for n in (1, 0))
            begun_s = now_s()
            await asyncio.sleep(0.5)
            assert [len(r.partition_data) for r in cluster.requests[-1:]] == [2]
            cluster.move(ONE, 2)
            assert (await outcome(moved)).offset == 1
            assert now_s() - begun_s < 10, "a slow call asks for metadata, of a node that answers"
            assert not stays.done()
            cluster.hung = set()
            assert (await outcome(stays)).offset == 1
            assert cluster.values("t") == [b"warm", b"a"] * 2

    scenario(play, partitions=2, nodes=2)


@pytest.mark.parametrize("hung", [1, 2])
@pytest.mark.parametrize("seed", range(4))
def test_a_producer_that_starts_while_a_node_hangs_asks_another_one(hung: int, seed: int) -> None:
    async def play(cluster: VirtualCluster, make: Make) -> None:
        cluster.hung = {hung}
        cluster.partitions[ZERO].leader = 3 - hung
        async with make(random_seed=seed) as producer:
            assert (await outcome(producer.send("t", b"a"))).offset == 0
            assert now_s() < 12, "5 s for the metadata, 5 s for the producer id"

    scenario(play, nodes=2)


def test_a_node_that_throttles_is_left_alone_for_that_long() -> None:
    async def play(cluster: VirtualCluster, make: Make) -> None:
        def throttle(node_id: int, answer: Any) -> None:
            answer.throttle_time_ms = 3000 if node_id == 1 else 0

        async with make() as producer:
            await producer.send("t", b"warm", partition=0)
            cluster.change_answer = throttle
            await producer.send("t", b"0", partition=0)
            cluster.change_answer = lambda *_: None
            begun_s = now_s()
            other, muted = (producer.send("t", b"1", partition=n) for n in (1, 0))
            await outcome(other)
            assert now_s() - begun_s < 0.5
            await outcome(muted)
            assert 2.9 <= now_s() - begun_s < 3.1

    scenario(play, partitions=2, nodes=2)


def test_a_record_for_an_unknown_topic_has_its_outcome_within_the_delivery_timeout() -> None:
    async def play(cluster: VirtualCluster, make: Make) -> None:
        async with make(
            delivery_timeout_ms=2_000, request_timeout_ms=1_000, max_block_ms=60_000
        ) as producer:
            refused = await outcome(producer.send("missing", b"x"))
            assert isinstance(refused, UnknownTopicOrPartitionError)
            assert 1.9 <= now_s() <= 2.1

    scenario(play)


def test_with_max_block_ms_0_a_topic_is_asked_for_and_a_later_send_goes() -> None:
    async def play(cluster: VirtualCluster, make: Make) -> None:
        async with make(max_block_ms=0) as producer:
            refused = await outcome(producer.send("t", b"x"))
            assert isinstance(refused, UnknownTopicOrPartitionError)
            await asyncio.sleep(1)
            assert (await producer.send("t", b"y")).offset == 0

    scenario(play)


def test_a_short_throttle_time_does_not_shorten_a_longer_one() -> None:
    async def play(cluster: VirtualCluster, make: Make) -> None:
        times = itertools.chain([2_000, 10], itertools.repeat(0))

        def throttle(node_id: int, answer: Any) -> None:
            answer.throttle_time_ms = next(times)

        async with make() as producer:
            await asyncio.gather(producer.send("t", b"warm", partition=0))
            await asyncio.sleep(5)
            times = itertools.chain([2_000, 10], itertools.repeat(0))
            cluster.change_answer = throttle
            first = producer.send("t", b"1", partition=0)
            await asyncio.sleep(0)
            await asyncio.sleep(0.0005)
            second = producer.send("t", b"2", partition=1)
            await asyncio.gather(first, second)
            begun_s = now_s()
            await producer.send("t", b"3", partition=0)
            assert 1.9 <= now_s() - begun_s <= 2.1

    scenario(play, partitions=2)


def test_keys_and_headers_count_for_the_size_of_a_request_and_of_what_waits() -> None:
    async def play(cluster: VirtualCluster, make: Make) -> None:
        async with make(max_request_size=10_000, buffer_memory=50_000) as producer:
            await producer.send("t", b"warm")
            for large in ({"key": b"k" * 10_000}, {"headers": [("h", b"v" * 10_000)]}):
                refused = await outcome(producer.send("t", b"v", **large))
                assert isinstance(refused, MessageTooLargeError)
            with pytest.raises(BufferExhaustedError):
                for _ in range(10):
                    producer.send("missing", b"v", headers=[("h", b"v" * 9_000)])
        assert cluster.values("t") == [b"warm"]

    scenario(play)


def test_what_a_caller_changes_after_the_send_changes_no_record() -> None:
    async def play(cluster: VirtualCluster, make: Make) -> None:
        async with make() as producer:
            header: list[Any] = ["k", b"v"]
            both = [producer.send("t", b"1", headers=[header]), producer.send("t", b"2")]  # type: ignore[list-item]
            header.append(3)
            assert [(await delivery).offset for delivery in both] == [0, 1]

    scenario(play)


class _Index:
    """Usable as an index, and not comparable."""

    def __index__(self) -> int:
        return 0


@pytest.mark.parametrize(
    "bad",
    [{"timestamp_ms": -1}, {"timestamp_ms": 2**63}, {"partition": _Index()}],
    ids=["before 1970", "65 bits", "no number"],
)
def test_a_record_that_would_spoil_its_batch_is_refused_and_its_neighbours_go(
    bad: dict[str, Any],
) -> None:
    async def play(cluster: VirtualCluster, make: Make) -> None:
        async with make() as producer:
            good = [producer.send("t", b"1", timestamp_ms=2**63 - 1)]
            with pytest.raises((InvalidTimestampError, TypeError)):
                producer.send("t", b"x", **bad)
            good.append(producer.send("t", b"2", timestamp_ms=0))
            assert [(await delivery).offset for delivery in good] == [0, 1]

    scenario(play)


def test_a_waiter_on_an_event_loop_that_is_closed_fails_no_other_record() -> None:
    async def play(cluster: VirtualCluster, make: Make) -> None:
        async with make() as producer:
            await producer.send("t", b"warm", partition=0)
            first = producer.send("t", b"1", partition=0)
            second = producer.send("t", b"2", partition=1)
            other = asyncio.SelectorEventLoop()
            waiter = other.create_future()
            waiter.add_done_callback(lambda _: None)
            other.close()
            assert first._batch is not None
            first._batch.callbacks.append(lambda: waiter.set_result(None))
            assert (await outcome(first)).offset == 1
            assert (await outcome(second)).offset == 0

    scenario(play, partitions=2)


@pytest.mark.parametrize("where", ["parked", "in flight", "no leader"])
def test_the_delivery_timeout_counts_from_the_send(where: str) -> None:
    async def play(cluster: VirtualCluster, make: Make) -> None:
        settings = {"delivery_timeout_ms": 10_000, "buffer_memory": 1000}
        settings["request_timeout_ms"] = 9_900
        async with make(**settings) as producer:
            await producer.send("t", b"warm")
            if where == "no leader":
                cluster.move(ZERO, 3)  # no live broker
            else:
                cluster.hung = {1}
            begun_s = now_s()
            first = producer.send("t", b"x" * 900)
            if where == "parked":
                await asyncio.sleep(4)
                late = producer.send("t", b"y" * 900)
                assert isinstance(await outcome(first), RequestTimedOutError)
                assert 9.9 <= now_s() - begun_s <= 10.1
                assert isinstance(await outcome(late), RequestTimedOutError)
                assert 13.9 <= now_s() - begun_s <= 14.1
            else:
                refused = RequestTimedOutError if where == "in flight" else NotLeaderOrFollowerError
                assert isinstance(await outcome(first), refused)
                assert 9.9 <= now_s() - begun_s <= 10.1
            cluster.hung = set()

    scenario(play)


def test_a_full_buffer_refuses_each_record_after_its_own_max_block_ms() -> None:
    async def play(cluster: VirtualCluster, make: Make) -> None:
        async with make(buffer_memory=1000, max_block_ms=3000) as producer:
            await producer.send("t", b"warm")
            cluster.hung = {1}
            producer.send("t", b"x" * 990)
            first = producer.send("t", b"y" * 400)
            await asyncio.sleep(1)
            second = producer.send("t", b"z" * 400)
            assert isinstance(await outcome(first), BufferExhaustedError)
            assert not second.done()
            assert isinstance(await outcome(second), BufferExhaustedError)
            assert 4 <= now_s() < 4.2
            cluster.hung = set()

    scenario(play)


def test_retries_back_off_exponentially_and_go_on_until_the_delivery_timeout() -> None:
    async def play(cluster: VirtualCluster, make: Make) -> None:
        async with make(delivery_timeout_ms=20_000, request_timeout_ms=10_000) as producer:
            await producer.send("t", b"warm")
            cluster.faults[ZERO].extend([Fault(ErrorCode.NOT_ENOUGH_REPLICAS)] * 1000)
            begun_s = now_s()
            error = await outcome(producer.send("t", b"a"))
            assert isinstance(error, NotEnoughReplicasError)
            assert 18 <= now_s() - begun_s <= 20
            tries = [at_s for at_s in cluster.times("ProduceStream") if at_s >= begun_s]
            waits = [b - a for a, b in itertools.pairwise(tries)]
            for wait, expected in zip(waits, [0.1, 0.2, 0.4, 0.8, 1, 1, 1, 1], strict=False):
                assert expected * 0.8 <= wait <= expected * 1.2 + 0.01
            assert len({round(wait, 4) for wait in waits[5:]}) > 3, "jitter"
            cluster.faults[ZERO].clear()

    scenario(play)


def test_a_node_that_is_gone_does_not_end_a_delivery_before_its_time() -> None:
    async def play(cluster: VirtualCluster, make: Make) -> None:
        async with make() as producer:
            await producer.send("t", b"warm")
            cluster.faults[ZERO].extend([Fault(drop=True)] * 60)
            assert (await outcome(producer.send("t", b"a"))).offset == 1
            assert now_s() > 40

    scenario(play)


def test_requests_name_topic_ids_and_a_topic_made_anew_is_told() -> None:
    async def play(cluster: VirtualCluster, make: Make) -> None:
        async with make() as producer:
            for value in (b"0", b"1"):
                await producer.send("t", value)
            (named,) = cluster.requests[-1].partition_data
            assert len(named.topic_id) == 16
            cluster.partitions[ZERO].producers.clear()
            cluster.faults[ZERO].append(Fault(ErrorCode.INCONSISTENT_TOPIC_ID))
            before = len(cluster.times("Metadata"))
            assert (await outcome(producer.send("t", b"2"))).offset == 2
            assert len(cluster.times("Metadata")) > before

    scenario(play)


def test_a_leader_that_stays_in_a_new_epoch_gets_the_same_batch_again() -> None:
    async def play(cluster: VirtualCluster, make: Make) -> None:
        async with make() as producer:
            await producer.send("t", b"warm")
            cluster.faults[ZERO].append(Fault(move_to=1, lose=True))  # written, the answer lost
            cluster.faults[ZERO].append(Fault(ErrorCode.NOT_LEADER_OR_FOLLOWER))
            assert (await outcome(producer.send("t", b"a"))).offset == 1
            assert cluster.values("t") == [b"warm", b"a"]
            headers = [read_header(bytes(r.partition_data[0].records)) for r in cluster.requests]
            assert [header.base_sequence for header in headers] == [0, 1, 1, 1]

    scenario(play)


def test_a_flush_and_a_drain_end_when_the_producer_is_closed() -> None:
    async def play(cluster: VirtualCluster, make: Make) -> None:
        producer: AsyncProducer = make(buffer_memory=1000)
        await producer.send("t", b"warm")
        cluster.hung = {1}
        for _ in range(3):
            producer.send("t", b"x" * 600)
        waiting = [asyncio.ensure_future(producer.flush()), asyncio.ensure_future(producer.drain())]
        await asyncio.sleep(1)
        assert not any(task.done() for task in waiting)
        await producer.close(0)
        async with asyncio.timeout(1):
            await asyncio.gather(*waiting)

    scenario(play)


def test_a_topic_that_was_looked_up_stays_known_while_records_go_to_it() -> None:
    async def play(cluster: VirtualCluster, make: Make) -> None:
        async with make() as producer:
            await producer.partitions_for("t")
            for _ in range(4):
                assert (await producer.send("t", b"x")).topic == "t"
                await asyncio.sleep(301)
                await producer._metadata.ensure_fresh()
                assert set(producer._metadata.topics()) == {"t"}

    scenario(play)
