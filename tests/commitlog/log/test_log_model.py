"""Random histories of a log, with crashes that lose unsynced data, against a simple model."""

from __future__ import annotations

from dataclasses import dataclass

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from commitlog.disk.memory_files import MemoryDirectory
from commitlog.log.expiration import delete_expired
from commitlog.log.log import Log
from tests.commitlog.builders import NOW, config, model_settings, open_log, records_of
from tidemark.errors import OutOfOrderSequenceNumberError

PRODUCER = 5


@dataclass(frozen=True)
class Batch:
    first: int
    timestamps: tuple[int, ...]
    epoch: int
    size: int
    sequence: int

    @property
    def end(self) -> int:
        return self.first + len(self.timestamps)


class LogMachine(RuleBasedStateMachine):
    """`batches` is the model; `durable_end` is the end that the last flush made durable."""

    @initialize(seed=st.integers(0, 2**32), density=st.sampled_from([0, 100, 300, 4096]))
    def begin(self, seed: int, density: int) -> None:
        self.directory = MemoryDirectory(seed=seed)
        self.settings = config(segment_bytes=900, index_interval_bytes=density)
        self.batches: list[Batch] = []
        self.durable_end = 0
        self.epoch = 1
        self.now = NOW
        self.log: Log = open_log(self.directory, self.settings)

    # --- model

    @property
    def end(self) -> int:
        return self.batches[-1].end if self.batches else self.log.log_start_offset

    def cut(self, end: int) -> None:
        self.batches = [b for b in self.batches if b.end <= end]

    def next_sequence(self) -> int:
        return self.batches[-1].sequence + len(self.batches[-1].timestamps) if self.batches else -1

    # --- rules

    @rule(
        shifts=st.lists(st.integers(-50, 50), min_size=1, max_size=4),
        size=st.sampled_from([1, 30, 190]),
        new_epoch=st.booleans(),
    )
    def append(self, shifts: list[int], size: int, new_epoch: bool) -> None:
        self.epoch += new_epoch
        self.now += 7
        sequence = self.next_sequence()
        if sequence < 0:
            sequence = 0 if not self.log.producers.producers else self._known_sequence()
        timestamps = tuple(self.now + shift for shift in shifts)
        data = self.encode(timestamps, size, sequence)
        info = self.log.append_as_leader(data, self.epoch, self.now)
        assert info.first_offset == self.end
        assert not info.duplicate
        self.batches.append(Batch(info.first_offset, timestamps, self.epoch, size, sequence))

    def _known_sequence(self) -> int:
        return self.log.producers.producers[PRODUCER].last_sequence + 1

    def encode(self, timestamps: tuple[int, ...], size: int, sequence: int) -> bytes:
        from tidemark.records import Record, encode_batch

        return encode_batch(
            [Record(0, t, b"k", bytes([65 + i]) * size, ()) for i, t in enumerate(timestamps)],
            producer_id=PRODUCER,
            producer_epoch=0,
            base_sequence=sequence,
        )

    def known_batches(self) -> list[Batch]:
        """Returns the producer's batches that the log still knows: none below its start."""
        return [b for b in self.batches[-5:] if b.end > self.log.log_start_offset]

    @precondition(lambda self: self.known_batches())
    @rule(back=st.integers(0, 4))
    def append_again(self, back: int) -> None:
        kept = self.known_batches()
        again = kept[-1 - min(back, len(kept) - 1)]
        data = self.encode(again.timestamps, again.size, again.sequence)
        if again is not self.batches[-1] and back:
            # after a restart the snapshot has only the newest batch of a producer
            try:
                info = self.log.append_as_leader(data, self.epoch, self.now)
            except OutOfOrderSequenceNumberError:
                return
        else:
            info = self.log.append_as_leader(data, self.epoch, self.now)
        assert info.duplicate
        assert (info.first_offset, info.last_offset) == (again.first, again.end - 1)

    @rule(by=st.integers(-90_000, 90_000))
    def set_the_clock(self, by: int) -> None:
        """Also sets it back. (Producers expire by it after a day.)"""
        self.now += by

    @rule()
    def roll(self) -> None:
        self.log.roll(self.now)

    @rule()
    def flush(self) -> None:
        self.log.flush()
        self.durable_end = self.log.log_end_offset

    @precondition(lambda self: self.batches)
    @rule(share=st.floats(0, 1))
    def truncate(self, share: float) -> None:
        first = self.batches[0].first
        target = first + int((self.end - first) * share)
        self.epoch += 1
        self.log.truncate_to(target, self.now)
        self.cut(target)
        self.durable_end = min(self.durable_end, self.end)

    @rule(gap=st.integers(0, 50))
    def restart_elsewhere(self, gap: int) -> None:
        start = self.end + gap
        self.epoch += 1
        self.log.truncate_fully_and_start_at(start, self.now)
        self.batches = []
        self.durable_end = start
        self.start_is(start)

    def start_is(self, start: int) -> None:
        assert self.log.log_start_offset == start
        assert self.log.log_end_offset == start

    @rule(share=st.floats(0, 1))
    def retention(self, share: float) -> None:
        self.log.update_high_watermark(int(self.log.log_end_offset))
        start = self.log.log_start_offset
        self.log.increment_log_start_offset(start + int((self.end - start) * share))
        delete_expired(self.log, self.now)
        first = self.log.segments[0].base_offset
        self.batches = [b for b in self.batches if b.first >= first]

    @rule()
    def purge(self) -> None:
        self.log.deleted_files.purge(self.now + 10_000)

    @rule()
    def restart_cleanly(self) -> None:
        start, recovery = self.log.log_start_offset, self.log.recovery_point
        self.log.close()
        self.durable_end = self.log.log_end_offset
        assert recovery <= self.durable_end
        self.log = open_log(
            self.directory, self.settings, now_ms=self.now, clean=True, log_start_offset=start
        )
        assert self.log.recovered_bytes_cut == 0

    @rule(use_checkpoint=st.booleans(), short=st.booleans())
    def crash(self, use_checkpoint: bool, short: bool) -> None:
        start, recovery = self.log.log_start_offset, self.log.recovery_point
        self.directory.crash()
        self.directory.set_short_writes(short)
        self.log = open_log(
            self.directory,
            self.settings,
            now_ms=self.now,
            log_start_offset=start,
            recovery_point=recovery if use_checkpoint else 0,
        )
        end = self.log.log_end_offset
        assert end >= self.durable_end, "what was flushed is lost"
        assert end <= max(self.end, start)
        self.cut(end)
        # if the end was lost down to below the log start, the log begins again at its start
        first = self.log.segments[0].base_offset
        self.batches = [b for b in self.batches if b.first >= first]
        assert self.end == end or not self.batches
        self.durable_end = end
        self.epoch += 1

    # --- what must always hold

    @invariant()
    def holds_together(self) -> None:
        self.log.validate()
        self.directory_is_tidy()

    def directory_is_tidy(self) -> None:
        bases = {f"{segment.base_offset:020d}" for segment in self.log.segments}
        logs = {n[:20] for n in self.directory.list() if n.endswith(".log")}
        assert logs == bases

    @invariant()
    def reads_equal_the_model(self) -> None:
        start = self.log.local_log_start_offset
        found = [(r.offset, r.timestamp_ms) for r in records_of(self.log, 400)]
        wanted = [
            (b.first + i, timestamp)
            for b in self.batches
            for i, timestamp in enumerate(b.timestamps)
            if b.first + i >= start
        ]
        assert found == wanted
        assert self.log.log_end_offset == (self.end if self.batches else self.log.log_end_offset)

    @invariant()
    def timestamps_are_found(self) -> None:
        start = self.log.local_log_start_offset
        records = [
            (timestamp, b.first + i)
            for b in self.batches
            for i, timestamp in enumerate(b.timestamps)
            if b.first + i >= start
        ]
        for timestamp, _ in records[:: max(1, len(records) // 5)]:
            hit = self.log.offset_for_timestamp(timestamp)
            assert hit is not None
            assert (hit.timestamp_ms, hit.offset) == next(r for r in records if r[0] >= timestamp)
        if records:
            assert self.log.offset_for_timestamp(max(records)[0] + 1) is None

    @invariant()
    def epochs_equal_the_model(self) -> None:
        start = self.log.log_start_offset
        for b in self.batches:
            if b.first >= start:
                assert self.log.epochs.epoch_for_offset(b.first) == b.epoch


LogMachine.TestCase.settings = model_settings()
TestLogAgainstItsModel = LogMachine.TestCase
