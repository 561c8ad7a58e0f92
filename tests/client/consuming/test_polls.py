"""Polls of the asyncio consumer in virtual time: given up, failing, and beside a pump that trips.

The nodes are in this process. Decoding takes a second of virtual time where a test says so.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from tests.client.consuming.harness import A, B
from tests.client.consuming.nodes import NODE_1, NODE_2, Nodes, fill, run, slow_decoding
from tidemark import wire
from tidemark.client import AsyncConsumer, CorruptBatchError
from tidemark.errors import ErrorCode, NetworkError
from tidemark.records.header import HEADER_BYTES
from tidemark.v1 import log_pb2

Poll = Callable[[AsyncConsumer], Awaitable[list[tuple[int, int]]]]


async def by_record(consumer: AsyncConsumer) -> list[tuple[int, int]]:
    return [(r.partition, r.offset) for r in await consumer.poll(5_000, max_records=7)]


async def by_arrow(consumer: AsyncConsumer) -> list[tuple[int, int]]:
    found = await consumer.poll_arrow(5_000)
    return [(p.partition, o) for p, batch in found.items() for o in batch["offset"].to_pylist()]


async def by_batch(consumer: AsyncConsumer) -> list[tuple[int, int]]:
    found = await consumer.fetch_batches(5_000)
    return [
        (raw.topic_partition.partition, offset)
        for raw in found
        for offset in range(raw.first_offset, raw.next_offset)
    ]


POLLS = pytest.mark.parametrize("poll", [by_record, by_arrow, by_batch])


async def timed_out(poll: Poll, consumer: AsyncConsumer, after_s: float) -> list[tuple[int, int]]:
    try:
        async with asyncio.timeout(after_s):
            return await poll(consumer)
    except TimeoutError:
        return []


async def in_a_task_group(
    poll: Poll, consumer: AsyncConsumer, after_s: float
) -> list[tuple[int, int]]:
    async def fail() -> None:
        await asyncio.sleep(after_s)
        raise ValueError("another task of the group")

    polled: asyncio.Task[list[tuple[int, int]]] | None = None
    try:
        async with asyncio.TaskGroup() as group:
            polled = group.create_task(poll(consumer))  # type: ignore[arg-type]
            group.create_task(fail())
    except* ValueError:
        pass
    assert polled is not None
    return [] if polled.cancelled() else polled.result()


@POLLS
@pytest.mark.parametrize("give_up", [timed_out, in_a_task_group])
def test_a_poll_given_up_at_any_moment_loses_no_record_and_moves_no_position(
    poll: Poll, give_up: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def scenario(nodes: Nodes, consumer: AsyncConsumer) -> None:
        slow_decoding(monkeypatch)
        fill(nodes)
        found: dict[int, list[int]] = {0: [], 1: []}
        given_up = attempts = 0
        while sum(map(len, found.values())) < 60:
            attempts += 1
            got = await give_up(poll, consumer, 0.1 * (attempts % 37))
            given_up += not got
            for partition, offset in got:
                found[partition].append(offset)
            for partition in (A, B):
                assert await consumer.position(partition) == len(found[partition.partition])
        assert found == {0: list(range(30)), 1: list(range(30))}
        assert given_up >= 3

    run(scenario, monkeypatch)


@POLLS
def test_a_corrupt_batch_is_raised_until_a_seek_and_others_go_on(
    poll: Poll, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def scenario(nodes: Nodes, consumer: AsyncConsumer) -> None:
        fill(nodes)
        first, last, batch = nodes.logs[A].batches[2]
        changed = bytearray(batch)
        changed[HEADER_BYTES + 3] ^= 1
        nodes.logs[A].batches[2] = (first, last, bytes(changed))
        found: dict[int, list[int]] = {0: [], 1: []}
        raised, delivers = 0, False
        while len(found[1]) < 30 or raised < 5:
            before = {p: await consumer.position(p) for p in (A, B)}
            try:
                got = await poll(consumer)
            except CorruptBatchError as error:
                raised, delivers = raised + 1, False
                assert (error.topic_partition, error.offset) == (A, 6)
                assert before == {p: await consumer.position(p) for p in (A, B)}
            else:
                assert got, "no poll ends with nothing while a partition is stopped"
                assert not raised or not delivers, "by turns, however busy the others are"
                delivers = True
                for partition, offset in got:
                    found[partition].append(offset)
        assert found == {0: list(range(6)), 1: list(range(30))}
        began = asyncio.get_running_loop().time()
        for _ in range(2):
            with pytest.raises(CorruptBatchError):
                await poll(consumer)
        assert asyncio.get_running_loop().time() >= began + 5, "the second waited for others"
        consumer.seek(A, 9)
        while len(found[0]) < 27:
            found[0] += [offset for _, offset in await poll(consumer)]
        assert found[0] == [*range(6), *range(9, 30)]

    run(scenario, monkeypatch)


@POLLS
def test_a_seek_while_a_poll_decodes_decides_what_it_delivers(
    poll: Poll, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where the batches that were being decoded turn out to be damaged."""

    async def scenario(nodes: Nodes, consumer: AsyncConsumer) -> None:
        slow_decoding(monkeypatch)
        consumer.assign([A])
        fill(nodes, batches=4)
        first, last, batch = nodes.logs[A].batches[0]
        changed = bytearray(batch)
        changed[HEADER_BYTES + 3] ^= 1
        nodes.logs[A].batches[0] = (first, last, bytes(changed))
        polled = asyncio.ensure_future(poll(consumer))
        await asyncio.sleep(0.5)
        consumer.seek(A, 6)
        assert {offset for _, offset in await polled} <= set(range(6, 12))
        assert polled.result()[0] == (0, 6)

    run(scenario, monkeypatch)


@pytest.mark.parametrize("name", ["records", "arrow", "raw"])
def test_a_seek_before_a_result_is_delivered_keeps_the_position_sought(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A thread polls the blocking consumer, another one seeks."""

    async def scenario(nodes: Nodes, consumer: AsyncConsumer) -> None:
        fill(nodes, batches=1)
        arguments = (5_000, 4) if name == "records" else (5_000,)
        handed = await getattr(consumer.reader, name)(*arguments)
        consumer.seek(A, 1)
        handed.deliver()
        assert await consumer.position(A) == 1
        assert await consumer.position(B) in (0, 1, 3)

    run(scenario, monkeypatch)


def test_batches_without_records_take_no_room_and_are_passed_with_the_next_result(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def scenario(nodes: Nodes, consumer: AsyncConsumer) -> None:
        consumer.assign([A])
        log = nodes.logs[A]
        for _ in range(50):
            log.append_control()
        assert not await consumer.poll(3_000)
        assert await consumer.position(A) == 50, "also with the result of a poll that got nothing"
        for _ in range(20):
            log.append_control()
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(2):
                await consumer.poll(60_000)
        assert await consumer.position(A) == 50, "but not with a poll that was given up"
        assert len(consumer._assignment.partitions[A].buffered) == 1
        log.append(2)
        assert [r.offset for r in await consumer.poll(5_000)] == [70, 71]
        assert await consumer.position(A) == 72
        for _ in range(3):
            log.append_control()
        log.append(1)
        found = await consumer.poll_arrow(5_000)
        assert found[A]["offset"].to_pylist() == [75]

    run(scenario, monkeypatch)


def test_a_pause_holds_back_what_was_fetched_before(monkeypatch: pytest.MonkeyPatch) -> None:
    async def scenario(nodes: Nodes, consumer: AsyncConsumer) -> None:
        fill(nodes, batches=1)
        await asyncio.sleep(1)
        consumer.pause(A)
        for poll in (by_record, by_arrow, by_batch):
            consumer.seek(B, 0)
            assert {partition for partition, _ in await poll(consumer)} == {1}
        consumer.resume(A)
        assert (0, 0) in await by_record(consumer)

    run(scenario, monkeypatch)


def test_without_check_crcs_a_flipped_bit_of_a_value_is_not_noticed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def scenario(nodes: Nodes, consumer: AsyncConsumer) -> None:
        batch = bytearray(nodes.logs[A].append(1))
        at = batch.rindex(b"0")
        batch[at] = ord("7")
        nodes.logs[A].batches[0] = (0, 0, bytes(batch))
        assert [r.value for r in await consumer.poll(5_000)] == [b"7"]
        consumer.seek(A, 0)
        assert len(await consumer.fetch_batches(5_000)) == 1

    run(scenario, monkeypatch, check_crcs=False)


def test_a_poll_that_got_some_of_a_batch_may_be_followed_by_one_for_the_raw_rest(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def scenario(nodes: Nodes, consumer: AsyncConsumer) -> None:
        nodes.logs[A].append(5)
        assert len(await consumer.poll(5_000, max_records=2)) == 2
        (raw,) = await consumer.fetch_batches(5_000)
        assert (raw.first_offset, raw.next_offset) == (2, 5)
        assert await consumer.position_and_epoch(A) == (5, 0)

    run(scenario, monkeypatch)


def test_a_position_that_could_not_be_looked_up_is_asked_for_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def scenario(nodes: Nodes, consumer: AsyncConsumer) -> None:
        def trip(address: str, name: str) -> None:
            if name == "ListOffsets":
                raise NetworkError("cut off")

        nodes.trip = trip
        nodes.logs[A].append(4)
        consumer.seek_to_end(A)
        with pytest.raises(NetworkError):
            await consumer.position(A, timeout_ms=70_000)
        nodes.trip = lambda address, name: None
        assert await consumer.position(A) == 4, "without a poll in between"

    run(scenario, monkeypatch)


# The pump.


@pytest.mark.parametrize("error", [RuntimeError("?"), ValueError("?"), KeyError("t")])
def test_a_refresh_that_fails_in_a_way_nobody_foresaw_is_followed_by_another(
    error: Exception, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async def scenario(nodes: Nodes, consumer: AsyncConsumer) -> None:
        left = 7

        def trip(address: str, name: str) -> None:
            nonlocal left
            if name == "Metadata" and left:
                left -= 1
                raise error

        nodes.trip = trip
        fill(nodes)
        assert await consumer.poll(20_000)
        assert left == 0
        assert "metadata" in caplog.text

    run(scenario, monkeypatch)


@pytest.mark.parametrize("bad", [NODE_1, NODE_2])
def test_a_metadata_answer_that_can_not_be_used_is_one_nodes_affair(
    bad: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def scenario(nodes: Nodes, consumer: AsyncConsumer) -> None:
        whole = nodes._metadata

        def malformed() -> log_pb2.MetadataResponse:
            answer = whole()
            if nodes.calls[-1][0] == bad:
                answer.topics[0].topic_id = b"short"
            return answer

        monkeypatch.setattr(nodes, "_metadata", malformed)
        fill(nodes)
        assert await consumer.poll(5_000)

    run(scenario, monkeypatch)


def test_a_fetch_that_fails_in_a_way_nobody_foresaw_is_told_and_repeated(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def scenario(nodes: Nodes, consumer: AsyncConsumer) -> None:
        left = 1

        def trip(address: str, name: str) -> None:
            nonlocal left
            if name == "Fetch" and left:
                left -= 1
                raise RuntimeError("no memory")

        nodes.trip = trip
        fill(nodes, batches=1)
        errors, found = 0, 0
        while found < 6:
            try:
                found += len(await consumer.poll(5_000))
            except Exception as error:
                assert "no memory" in str(error)
                errors += 1
        assert errors == 2, "one for each partition of the request"

    run(scenario, monkeypatch)


def test_a_pump_that_trips_runs_again(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async def scenario(nodes: Nodes, consumer: AsyncConsumer) -> None:
        core = consumer._fetcher.core
        step, left = core.step, 3

        def trip(now_ms: float) -> Any:
            nonlocal left
            left -= 1
            if left >= 0:
                raise RuntimeError("a bug")
            return step(now_ms)

        monkeypatch.setattr(core, "step", trip)
        fill(nodes)
        assert await consumer.poll(20_000)
        assert "pump failed" in caplog.text

    run(scenario, monkeypatch)


def test_a_partition_that_leaves_a_hung_node_is_read_while_others_wait_for_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def scenario(nodes: Nodes, consumer: AsyncConsumer) -> None:
        assert not await consumer.poll(1_000)
        nodes.hung.add(NODE_1)
        await asyncio.sleep(1)
        fill(nodes)
        nodes.leaders[A] = 2  # and B stays where nobody answers
        began = asyncio.get_running_loop().time()
        (first, *_) = await consumer.poll(60_000)
        assert first.partition == 0
        assert asyncio.get_running_loop().time() - began < 12, "not request.timeout.ms"

    run(scenario, monkeypatch)


def test_a_node_that_throttles_is_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    async def scenario(nodes: Nodes, consumer: AsyncConsumer) -> None:
        nodes.throttle_time_ms = 10_000
        fill(nodes, batches=100)
        await consumer.poll(1_000)
        asked = nodes.fetches()
        for _ in range(9):
            await consumer.poll(1_000)
        assert nodes.fetches() == asked
        await consumer.poll(5_000)
        assert nodes.fetches() > asked

    run(scenario, monkeypatch, max_partition_fetch_bytes=1000)


def test_a_deleted_topic_is_asked_for_once_a_second_at_most(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def scenario(nodes: Nodes, consumer: AsyncConsumer) -> None:
        await consumer.poll(1_000)
        whole = nodes._metadata

        def gone() -> log_pb2.MetadataResponse:
            answer = whole()
            del answer.topics[0].partitions[:]
            answer.topics[0].error_code = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION  # type: ignore[assignment]
            return answer

        async def unknown(request: log_pb2.FetchRequest) -> wire.FetchResponse:
            return wire.FetchResponse(
                [
                    wire.FetchPartitionData(
                        item.topic, item.partition, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
                    )
                    for item in request.partitions
                ]
            )

        monkeypatch.setattr(nodes, "_metadata", gone)
        monkeypatch.setattr(nodes, "fetch", unknown)
        await consumer.poll(10_000)
        asked = len(nodes.calls)
        await consumer.poll(60_000)
        assert 40 <= len(nodes.calls) - asked <= 140, "two partitions, once a second each at most"

    run(scenario, monkeypatch)
