"""The assigned partitions of a consumer, and all that changes one of them.

`enter` is the only place that changes a phase, and keeps the indexes by phase. The methods of the
reader move positions in one synchronous step, `handed_over`; whatever happens before it can be
repeated or given up. Pure: time is an argument, and nothing here waits.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from random import Random
from typing import Any

from tidemark.client.consuming.partition import (
    Asked,
    AssignedPartition,
    Draining,
    Fetched,
    Halted,
    Phase,
    Position,
    Ready,
    Target,
)
from tidemark.client.records import RawBatches
from tidemark.client.retry import RetryPolicy
from tidemark.errors import TidemarkError
from tidemark.records.extent import Extent, extent_of
from tidemark.types import TopicPartition

_AT_ONCE = Ready()


@dataclass(frozen=True, slots=True)
class Taken:
    """Batches that the reader gets: their first `rows`, or all with None."""

    partition: AssignedPartition
    item: Fetched
    rows: int | None = None


class Assignment:
    """The partitions by name, and by what they wait for; the dictionaries are for reading only.

    `loaded` have batches for the reader, the one read longest ago first. `ready` may be asked for,
    in the order in which they should be, except those `parked`: paused, or without room until the
    reader takes batches. `release` is called when a partition no longer waits for a request,
    `doubt` when it should not be asked for again as it is.
    """

    def __init__(
        self,
        retry: RetryPolicy,
        rng: Random,
        release: Callable[[int, TopicPartition], None],
        doubt: Callable[[int, TopicPartition], None],
    ) -> None:
        self.partitions: dict[TopicPartition, AssignedPartition] = {}
        self.loaded: dict[TopicPartition, AssignedPartition] = {}
        self.ready: dict[TopicPartition, AssignedPartition] = {}
        self.parked: dict[TopicPartition, AssignedPartition] = {}
        self.halted: dict[TopicPartition, AssignedPartition] = {}
        self.ahead_bytes = 0
        self.version = 0  # counts batches, positions and errors for the reader
        self._retry = retry
        self._rng = rng
        self._release = release
        self._doubt = doubt

    # Changes of a partition.

    def add(self, topic_partition: TopicPartition) -> AssignedPartition:
        partition = self.partitions[topic_partition] = AssignedPartition(topic_partition)
        self.enter(partition, Ready())
        return partition

    def remove(self, partition: AssignedPartition) -> None:
        self.drop_batches(partition)
        self.enter(partition, Ready())
        del self.ready[partition.topic_partition]
        del self.partitions[partition.topic_partition]
        self.version += 1

    def enter(self, partition: AssignedPartition, phase: Phase) -> None:
        """Changes the phase; a request under way no longer concerns the partition."""
        topic_partition, old = partition.topic_partition, partition.phase
        partition.phase = phase
        self.ready.pop(topic_partition, None)
        self.parked.pop(topic_partition, None)
        self.halted.pop(topic_partition, None)
        if isinstance(phase, Ready):
            self.ready[topic_partition] = partition
        elif isinstance(phase, Halted):
            self.halted[topic_partition] = partition
        if isinstance(old, Asked):
            self._release(old.request_id, topic_partition)

    def park(self, partition: AssignedPartition) -> None:
        """A ready partition is not looked at until `resume`, or a change of its batches."""
        self.parked[partition.topic_partition] = self.ready.pop(partition.topic_partition)

    def unpark(self, partition: AssignedPartition) -> None:
        if self.parked.pop(partition.topic_partition, None) is not None:
            self.ready[partition.topic_partition] = partition

    def confirm(self, partition: AssignedPartition, at: Position) -> None:
        """The node reads the partition, from a position in this topic: it failed no more."""
        partition.target = at
        if isinstance(partition.phase, Asked):
            partition.phase = replace(partition.phase, attempts=0)

    def move(self, partition: AssignedPartition, to: Target, then: Ready = _AT_ONCE) -> None:
        """Moves the position, once the batches fetched before are handed over.

        Without such batches, the partition enters `then`.
        """
        if partition.buffered:
            self.enter(partition, Draining(to))
            return
        partition.reader = to if isinstance(to, Position) else None
        partition.target = to
        self.enter(partition, then)
        self.version += 1

    def halt(self, partition: AssignedPartition, error: TidemarkError, *, until_seek: bool) -> None:
        """Passes an error to the reader, behind the batches fetched before."""
        attempts = 0 if isinstance(partition.phase, Draining) else partition.phase.attempts
        self.enter(partition, Halted(error, until_seek, attempts + 1))
        self.version += 1

    def push(self, partition: AssignedPartition, raw: RawBatches, extent: Extent) -> None:
        """Adds fetched batches behind the others."""
        with self._accounted(partition):
            partition.buffered.append(Fetched(raw, extent))
            partition.held_bytes += len(raw.buffer)
        self.loaded.setdefault(partition.topic_partition, partition)
        self.version += 1

    def drop_batches(self, partition: AssignedPartition) -> None:
        """Forgets what was fetched ahead of the reader."""
        with self._accounted(partition):
            for item in partition.buffered:
                item.is_held = False
            partition.buffered.clear()
            partition.held_bytes = 0
        self.loaded.pop(partition.topic_partition, None)

    def pause(self, partition: AssignedPartition) -> None:
        """Keeps its batches from the reader; the node is not asked for more."""
        partition.is_paused = True
        if isinstance(partition.phase, Asked):
            self._doubt(partition.phase.request_id, partition.topic_partition)

    def resume(self, partition: AssignedPartition) -> None:
        """Ends a pause; what was fetched before it is news for the reader."""
        partition.is_paused = False
        self.unpark(partition)
        self.version += 1

    def _accounted(self, partition: AssignedPartition) -> _Accounted:
        return _Accounted(self, partition)

    # The reader.

    def waiting(self) -> Iterator[tuple[AssignedPartition, list[Fetched]]]:
        """Partitions with batches for the reader, and those batches."""
        for partition in list(self.loaded.values()):
            if not partition.is_paused:
                yield partition, list(partition.buffered)

    def begin(self, partition: AssignedPartition, item: Fetched) -> None:
        """The reader begins to check or decode these batches."""
        with self._accounted(partition):
            item.is_begun = True

    def examined(self, partition: AssignedPartition, item: Fetched, rows: Any) -> None:
        """These batches are sound, and decoded unless `rows` is None."""
        if item.rows is not None or not item.is_held:
            return  # another poll decoded them and may have taken some, or a seek dropped them
        item.is_checked = True
        item.rows = rows
        if not item.is_empty:
            return
        # Frees batches without records; the next hand-over moves the position past them.
        self.version += 1
        with self._accounted(partition):
            partition.held_bytes -= len(item.raw.buffer)
            item.raw = replace(item.raw, buffer=memoryview(b""))
            at = partition.buffered.index(item)
            previous = partition.buffered[at - 1] if at else None
            if previous is not None and previous.is_empty:
                previous.raw = replace(previous.raw, next_offset=item.raw.next_offset)
                previous.extent = item.extent
                del partition.buffered[at]
                item.is_held = False

    def damaged(
        self,
        partition: AssignedPartition,
        item: Fetched,
        sound: RawBatches | None,
        error: TidemarkError,
    ) -> None:
        """These batches can be read up to the end of `sound` only: the partition halts there."""
        if not item.is_held:
            return  # a seek dropped them
        with self._accounted(partition):
            while item.is_held:
                last = partition.buffered.pop()
                last.is_held = False
                partition.held_bytes -= len(last.raw.buffer)
            if sound is not None:
                partition.buffered.append(Fetched(sound, extent_of(sound.buffer)))
                partition.held_bytes += len(sound.buffer)
        if not partition.buffered:
            del self.loaded[partition.topic_partition]
        partition.target = Position(item.raw.first_offset if sound is None else sound.next_offset)
        self.halt(partition, error, until_seek=True)

    def handed_over(self, taken: Sequence[Taken]) -> None:
        """Moves the positions past what the reader gets, except where a seek came before."""
        delivers = any(one.rows is None or one.rows for one in taken if not one.item.is_empty)
        for one in taken:
            if one.partition.buffered and one.partition.buffered[0] is one.item:
                self._hand_over(one.partition, one.item, one.rows)
        if delivers:
            for partition in self.halted.values():
                assert isinstance(partition.phase, Halted), "indexed by phase"
                partition.phase = replace(partition.phase, is_told=False)

    def _hand_over(self, partition: AssignedPartition, item: Fetched, rows: int | None) -> None:
        del self.loaded[partition.topic_partition]
        if rows is not None and rows < item.rows.num_rows:
            item.rows = item.rows.slice(rows)
            offset = item.rows.column("offset")[0].as_py()
            partition.reader = Position(offset, item.epoch_before(offset))
        else:
            with self._accounted(partition):
                partition.buffered.popleft()
                partition.held_bytes -= len(item.raw.buffer)
                item.is_held = False
            partition.reader = Position(item.raw.next_offset, item.extent.last_epoch)
        if partition.buffered:
            self.loaded[partition.topic_partition] = partition  # behind the others
        elif isinstance(partition.phase, Draining):
            self.move(partition, partition.phase.to)

    def error_due(self, now_ms: float, *, got_nothing: bool = False) -> TidemarkError | None:
        """Returns the error that a poll raises now, or None.

        An error is due once the batches before it are handed over, and again after each poll that
        delivered records. A poll that `got_nothing` until its timeout raises any.
        """
        for partition in self.halted.values():
            phase = partition.phase
            assert isinstance(phase, Halted), "indexed by phase"
            if partition.is_paused or partition.buffered or (phase.is_told and not got_nothing):
                continue
            return self.tell(partition, phase, now_ms)
        return None

    def tell(self, partition: AssignedPartition, halted: Halted, now_ms: float) -> TidemarkError:
        """Returns the error, to be raised; asks again after it unless it lasts until a seek."""
        topic_partition = partition.topic_partition
        if halted.until_seek:
            partition.phase = replace(halted, is_told=True)
            self.halted[topic_partition] = self.halted.pop(topic_partition)  # others first
        else:
            wait_ms = self._retry.backoff(halted.attempts, self._rng)
            self.enter(partition, Ready(halted.attempts, now_ms + wait_ms))
        return halted.error.with_traceback(None)

    def validate(self) -> None:
        """Asserts that indexes, sums and positions agree."""
        for topic_partition, partition in self.partitions.items():
            phase, buffered = partition.phase, partition.buffered
            assert partition.topic_partition == topic_partition
            indexed = (topic_partition in self.ready) + (topic_partition in self.parked)
            assert indexed == isinstance(phase, Ready)
            assert (topic_partition in self.halted) == isinstance(phase, Halted)
            assert (topic_partition in self.loaded) == bool(buffered)
            assert not isinstance(phase, Draining) or buffered, "nothing is left to wait for"
            at = partition.reader.offset if partition.reader is not None else None
            for item in buffered:
                assert at is not None and item.raw.first_offset <= at <= item.raw.next_offset
                at = item.raw.next_offset
            assert all(item.is_held for item in buffered)
            assert partition.held_bytes == sum(len(item.raw.buffer) for item in buffered)
            if isinstance(partition.target, Position):
                assert at == partition.target.offset, "a fetch continues where the batches end"
            else:
                assert at is None, "no batch without a position"
        assert self.ahead_bytes == sum(p.ahead_bytes for p in self.partitions.values())
        for index in (self.ready, self.parked, self.halted, self.loaded):
            assert all(self.partitions[tp] is found for tp, found in index.items())


class _Accounted:
    """Keeps the sum of bytes fetched ahead over a change of one partition's batches."""

    __slots__ = ("_assignment", "_partition")

    def __init__(self, assignment: Assignment, partition: AssignedPartition) -> None:
        self._assignment = assignment
        self._partition = partition

    def __enter__(self) -> None:
        self._assignment.ahead_bytes -= self._partition.ahead_bytes

    def __exit__(self, *raised: object) -> None:
        self._assignment.ahead_bytes += self._partition.ahead_bytes
        self._assignment.unpark(self._partition)
