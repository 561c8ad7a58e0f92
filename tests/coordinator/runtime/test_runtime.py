"""The runtime of the coordinators: load, append, replay, answer on commit, resign."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Sequence
from typing import Any

import pytest

from coordinator.records.groups import (
    GROUP_RECORDS,
    ConsumerGroupMetadataKey,
    ConsumerGroupMetadataValue,
)
from coordinator.runtime.batches import TransactionalProducer
from coordinator.runtime.now import Now
from coordinator.runtime.result import CoordinatorResult
from coordinator.runtime.runtime import CoordinatorRuntime
from tests import virtual_time
from tidemark.errors import (
    ApiError,
    CoordinatorLoadInProgressError,
    CoordinatorNotAvailableError,
    CorruptMessageError,
    ErrorCode,
    InvalidRequestError,
    KafkaStorageError,
    MessageTooLargeError,
    NotCoordinatorError,
    NotEnoughReplicasError,
    NotLeaderOrFollowerError,
)
from tidemark.records.control import EndTransactionMarker, encode_control_batch
from tidemark.records.header import read_header


def record(name: str, epoch: int | None = 1) -> tuple[Any, Any]:
    value = None if epoch is None else ConsumerGroupMetadataValue(epoch)
    return ConsumerGroupMetadataKey(name), value


WALL_AHEAD_MS = 1_700_000_000_000


class Shard:
    """Counts groups; a deadline adds one."""

    def __init__(self) -> None:
        self.epochs: dict[str, int] = {}
        self.ended: list[tuple[int, bool]] = []
        self.replayed: list[tuple[int, int]] = []
        self.loaded_at: tuple[int, Now] | None = None
        self.due_ms: int | None = None

    def replay(self, key: Any, value: Any, offset: int, producer_id: int) -> None:
        self.replayed.append((offset, producer_id))
        if value is None:
            self.epochs.pop(key.group_id, None)
        else:
            self.epochs[key.group_id] = value.epoch

    def end_transaction(self, producer_id: int, committed: bool) -> None:
        self.ended.append((producer_id, committed))

    def loaded(self, epoch: int, now: Now) -> None:
        self.loaded_at = (epoch, now)

    def next_deadline_ms(self) -> int | None:
        return self.due_ms

    def on_deadline(self, now: Now) -> Sequence[CoordinatorResult[None]]:
        self.due_ms = None
        return [CoordinatorResult(None, (record(f"due at {now.mono_ms}"),))]


class FakeLog:
    """Batches in memory; what is committed is decided by the test."""

    def __init__(self, epoch: int = 5) -> None:
        self.leader_epoch = epoch
        self.start_offset = 0
        self.batches: list[tuple[int, bytes]] = []
        self.end_offset = 0
        self.committed = 0
        self.commits_at_once = True
        self.error: ApiError | None = None
        self.waiting: list[tuple[int, Callable[[ErrorCode], None]]] = []
        self.verified: list[bool] = []
        self.reads_wait_s = 0.0

    def append(self, batch: bytes, *, verified: bool = False) -> None:
        if self.error is not None:
            raise self.error
        self.verified.append(verified)
        self.batches.append((self.end_offset, batch))
        self.end_offset += read_header(batch).last_offset_delta + 1
        if self.commits_at_once:
            self.commit()

    def commit(self, code: ErrorCode = ErrorCode.NONE) -> None:
        self.committed = self.end_offset
        waiting, self.waiting = self.waiting, []
        for _, answer in waiting:
            answer(code)

    def when_committed(self, end_offset: int, answer: Callable[[ErrorCode], None]) -> None:
        if end_offset <= self.committed:
            answer(ErrorCode.NONE)
        else:
            self.waiting.append((end_offset, answer))

    async def read(self, offset: int) -> tuple[bytes, int]:
        await asyncio.sleep(self.reads_wait_s)
        base, batch = next(b for b in reversed(self.batches) if b[0] <= offset)
        header = read_header(batch)
        moved = base.to_bytes(8, "big") + batch[8:]
        return moved, base + header.last_offset_delta + 1


def run(main: Callable[[CoordinatorRuntime[Shard]], Coroutine[Any, Any, None]]) -> None:
    loop = virtual_time.VirtualTimeLoop()

    async def go() -> None:
        def now() -> Now:
            return Now(WALL_AHEAD_MS + loop.now_ms(), loop.now_ms())

        await main(CoordinatorRuntime("__consumer_offsets", GROUP_RECORDS, Shard, now, 5_000))

    virtual_time.run(go(), loop)


async def lead(runtime: CoordinatorRuntime[Shard], log: FakeLog, partition: int = 3) -> None:
    runtime.leading(partition, log)
    while runtime.is_loading:  # noqa: ASYNC110
        await asyncio.sleep(0.001)


def put(name: str, epoch: int = 1) -> Callable[[Shard], CoordinatorResult[str]]:
    return lambda shard: CoordinatorResult(f"put {name}", (record(name, epoch),))


def test_an_answer_comes_with_the_commit_of_its_records() -> None:
    async def main(runtime: CoordinatorRuntime[Shard]) -> None:
        log = FakeLog()
        await lead(runtime, log)
        log.commits_at_once = False
        first = asyncio.ensure_future(runtime.write(3, put("a")))
        await asyncio.sleep(0.1)
        assert not first.done()
        assert runtime.shard_of(3).epochs == {"a": 1}, "the next decision sees it"
        seen = asyncio.ensure_future(runtime.read(3, lambda shard: dict(shard.epochs)))
        await asyncio.sleep(0.1)
        assert not seen.done(), "it tells of what is not committed"
        log.commit()
        assert await first == "put a"
        assert await seen == {"a": 1}
        assert await runtime.read(3, lambda shard: len(shard.epochs)) == 1

    run(main)


def test_requests_that_wait_for_one_commit_are_kept_in_one_place() -> None:
    """Replicas that are gone for an hour do not have the log keep each request of that hour."""

    async def main(runtime: CoordinatorRuntime[Shard]) -> None:
        log = FakeLog()
        await lead(runtime, log)
        log.commits_at_once = False
        written = asyncio.ensure_future(runtime.write(3, put("a")))
        await asyncio.sleep(0)
        for _ in range(10):
            with pytest.raises(CoordinatorNotAvailableError):
                await runtime.read(3, lambda shard: len(shard.epochs))
        assert len(log.waiting) == 1
        with pytest.raises(CoordinatorNotAvailableError):
            await written
        reads = [asyncio.ensure_future(runtime.read(3, lambda shard: shard.epochs)) for _ in "123"]
        await asyncio.sleep(0)
        reads[1].cancel()
        log.commit()
        assert await reads[0] == await reads[2] == {"a": 1}
        assert not runtime._contexts[3].waiting

    run(main)


def test_a_failed_append_leaves_nothing_behind() -> None:
    async def main(runtime: CoordinatorRuntime[Shard]) -> None:
        log = FakeLog()
        await lead(runtime, log)
        for error, told in (
            (NotEnoughReplicasError(), CoordinatorNotAvailableError),
            (NotLeaderOrFollowerError(), NotCoordinatorError),
            (KafkaStorageError(), NotCoordinatorError),
            (MessageTooLargeError(), MessageTooLargeError),
        ):
            log.error = error
            with pytest.raises(ApiError) as refused:
                await runtime.write(3, put("a"))
            assert type(refused.value) is told
        assert not runtime.shard_of(3).epochs
        log.error = None
        await runtime.write(3, put("b"))
        assert runtime.shard_of(3).epochs == {"b": 1}

    run(main)


def test_a_name_that_is_too_long_for_a_record_is_refused_and_appends_nothing() -> None:
    async def main(runtime: CoordinatorRuntime[Shard]) -> None:
        log = FakeLog()
        await lead(runtime, log)
        with pytest.raises(InvalidRequestError, match="32,767"):
            await runtime.write(3, lambda _: CoordinatorResult(1, (record("x" * 40_000),)))
        assert log.batches == []
        assert await runtime.write(3, lambda _: CoordinatorResult(2, (record("short"),))) == 2

    run(main)


def test_a_new_leader_loads_all_records_and_is_busy_meanwhile() -> None:
    async def main(runtime: CoordinatorRuntime[Shard]) -> None:
        log = FakeLog()
        await lead(runtime, log)
        await runtime.write(3, put("a"))
        await runtime.write(3, lambda _: CoordinatorResult(0, (record("b"), record("c"))))
        await runtime.write(3, lambda _: CoordinatorResult(0, (record("b", None),)))
        before = runtime.shard_of(3)
        await runtime.write(3, put("d"), TransactionalProducer(77, 0))
        assert log.verified == [False, False, False, True]
        marker = encode_control_batch(
            [EndTransactionMarker(True, 0)],
            base_offset=0,
            timestamp_ms=0,
            partition_leader_epoch=0,
            producer_id=77,
            producer_epoch=0,
        )
        runtime.end_transaction(3, lambda: log.append(marker), 77, True)
        log.leader_epoch, log.reads_wait_s = 6, 0.5
        runtime.leading(3, log)
        with pytest.raises(CoordinatorLoadInProgressError):
            await runtime.write(3, put("e"))
        await asyncio.sleep(10)
        after = runtime.shard_of(3)
        assert after is not before
        assert after.epochs == before.epochs == {"a": 1, "c": 1, "d": 1}
        assert after.replayed == before.replayed
        assert after.ended == before.ended == [(77, True)]
        assert after.loaded_at is not None
        assert after.loaded_at[0] == 6
        assert after.loaded_at[1].wall_ms - after.loaded_at[1].mono_ms == WALL_AHEAD_MS

    run(main)


def test_with_the_leadership_all_waiting_answers_fail() -> None:
    async def main(runtime: CoordinatorRuntime[Shard]) -> None:
        log = FakeLog()
        await lead(runtime, log)
        log.commits_at_once = False
        waiting = asyncio.ensure_future(runtime.write(3, put("a")))
        await asyncio.sleep(0.1)
        runtime.resigned(3)
        with pytest.raises(NotCoordinatorError):
            await waiting
        with pytest.raises(NotCoordinatorError):
            await runtime.read(3, lambda _: 0)
        log.commit()
        runtime.resigned(3)

    run(main)


def test_an_answer_waits_no_longer_than_its_timeout() -> None:
    async def main(runtime: CoordinatorRuntime[Shard]) -> None:
        log = FakeLog()
        await lead(runtime, log)
        log.commits_at_once = False
        begin = asyncio.get_running_loop().time()
        with pytest.raises(CoordinatorNotAvailableError):
            await runtime.write(3, put("a"))
        assert asyncio.get_running_loop().time() - begin == pytest.approx(5, abs=0.01)
        second = asyncio.ensure_future(runtime.write(3, put("b")))
        await asyncio.sleep(0)
        log.commit(ErrorCode.NOT_LEADER_OR_FOLLOWER)
        with pytest.raises(NotCoordinatorError):
            await second

    run(main)


def test_deadlines_are_kept_and_tried_again_after_a_failed_append() -> None:
    async def main(runtime: CoordinatorRuntime[Shard]) -> None:
        log = FakeLog()
        await lead(runtime, log)
        shard = runtime.shard_of(3)

        def decide(at_ms: int | None) -> Callable[[Shard], CoordinatorResult[None]]:
            def decided(shard: Shard) -> CoordinatorResult[None]:
                shard.due_ms = at_ms
                return CoordinatorResult(None)

            return decided

        await runtime.write(3, decide(2_000))
        await runtime.write(3, decide(3_000))
        await asyncio.sleep(2.5)
        assert not shard.epochs
        await asyncio.sleep(1)
        assert shard.epochs == {"due at 3000": 1}
        await runtime.write(3, decide(4_000))
        log.error = NotEnoughReplicasError()
        await asyncio.sleep(1)
        assert len(shard.epochs) == 1
        log.error = None
        await asyncio.sleep(2)
        assert len(shard.epochs) == 2
        await runtime.write(3, decide(9_000))
        runtime.resigned(3)
        await asyncio.sleep(10)
        assert len(shard.epochs) == 2

    run(main)


def test_a_log_that_can_not_be_read_is_said_so() -> None:
    async def main(runtime: CoordinatorRuntime[Shard]) -> None:
        log = FakeLog()
        await lead(runtime, log)
        await runtime.write(3, put("a"))

        async def read(_: int) -> tuple[bytes, int]:
            raise CorruptMessageError("a flipped bit")

        log.read = read  # type: ignore[method-assign]
        await lead(runtime, log)
        with pytest.raises(CoordinatorNotAvailableError, match="a flipped bit"):
            await runtime.write(3, put("b"))

    run(main)


def test_a_leadership_that_ends_amid_a_load_leaves_nothing() -> None:
    async def main(runtime: CoordinatorRuntime[Shard]) -> None:
        log = FakeLog()
        await lead(runtime, log)
        await runtime.write(3, put("a"))
        log.reads_wait_s = 1
        runtime.leading(3, log)
        runtime.resigned(3)
        await asyncio.sleep(5)
        assert not list(runtime.shards())
        with pytest.raises(NotCoordinatorError):
            await runtime.write(3, put("b"))

    run(main)


def test_few_partitions_are_loaded_at_a_time_and_none_after_the_stop() -> None:
    async def main(runtime: CoordinatorRuntime[Shard]) -> None:
        loop = asyncio.get_running_loop()
        logs = [FakeLog() for _ in range(6)]
        for partition, log in enumerate(logs):
            await lead(runtime, log, partition)
            await runtime.write(partition, put("a"))
            log.reads_wait_s = 1
        begin = loop.time()
        for partition, log in enumerate(logs):
            runtime.leading(partition, log)
        await asyncio.sleep(1.5)
        assert len(list(runtime.shards())) == 2
        while runtime.is_loading:  # noqa: ASYNC110
            await asyncio.sleep(0.1)
        assert loop.time() - begin == pytest.approx(3, abs=0.2)
        runtime.stop()
        runtime.leading(0, logs[0])
        await asyncio.sleep(2)
        assert not list(runtime.shards())
        assert not runtime.is_loading

    run(main)
