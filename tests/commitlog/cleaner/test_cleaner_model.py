"""Random histories of a compacted log, with cleanings that a power loss interrupts, against a dict:
the last value of each key.
"""

from __future__ import annotations

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from commitlog.cleaner.cleaning import Cleaning
from commitlog.cleaner.manager import LogCleaner
from commitlog.disk.log_directory import GuardedDirectory
from commitlog.disk.memory_files import MemoryDirectory
from commitlog.log.log import Log
from commitlog.manager.manager import LogManager
from commitlog.types import AppendOrigin
from tests.commitlog.builders import NOW, TP, config, model_settings, records_of
from tidemark.config import parse_server_config
from tidemark.errors import TidemarkError
from tidemark.records import Record, encode_batch, encode_control_batch
from tidemark.records.control import EndTransactionMarker

PRODUCER = 5
CODECS = ("none", "none", "lz4", "zstd", "snappy", "gzip")
KEYS = st.integers(0, 7)
VALUES = st.one_of(st.none(), st.integers(0, 60))


class CompactionMachine(RuleBasedStateMachine):
    """`written` has everything ever appended, by offset; `aborted` offsets do not count."""

    @initialize(
        seed=st.integers(0, 2**32),
        segment_bytes=st.sampled_from([400, 900, 3000]),
        keys=st.sampled_from([4096, 65536]),
        retention=st.sampled_from([0, 50, 1000]),
    )
    def begin(self, seed: int, segment_bytes: int, keys: int, retention: int) -> None:
        self.directory = MemoryDirectory(seed=seed)
        self.now = NOW
        self.topic = config(
            cleanup_policy=("compact",),
            segment_bytes=segment_bytes,
            min_cleanable_dirty_ratio=0.0,
            delete_retention_ms=retention,
            file_delete_delay_ms=30,
        )
        self.server = parse_server_config(
            {
                "process.roles": "broker",
                "node.id": "1",
                "controller.quorum.voters": "9@localhost:1",
                "log.cleaner.dedupe.buffer.size": str(keys),
                "log.cleaner.io.buffer.size": "1024",
            }
        )
        self.written: dict[int, tuple[bytes, bytes | None]] = {}
        self.aborted: set[int] = set()
        self.decided: dict[int, bool] = {}  # by first offset of a transaction: committed?
        self.sequence = 0
        self.open()

    def open(self) -> None:
        self.logs = LogManager(
            [self.directory],
            self.server,
            now_ms=lambda: self.now,
            topic_config=lambda _: self.topic,
        )
        self.logs.open()
        self.log: Log = self.logs.get_or_create(TP, None, self.topic)
        self.log.update_high_watermark(self.log.log_end_offset)
        self.cleaner = LogCleaner(self.logs, self.server, now_ms=lambda: self.now)
        self.cleaner.start()
        self.cleaning: Cleaning | None = None

    def append(
        self, pairs: list[tuple[int, int | None]], codec: str, transactional: bool = False
    ) -> list[int]:
        self.now += 5
        first = self.log.log_end_offset
        records = []
        for index, (key, size) in enumerate(pairs):
            value = None if size is None else b"%d:" % (first + index) + b"x" * size
            records.append(Record(0, self.now - index, b"key %d" % key, value))
            self.written[first + index] = (b"key %d" % key, value)
        options = {}
        if transactional:
            options = {"producer_id": PRODUCER, "producer_epoch": 0, "base_sequence": self.sequence}
            self.sequence += len(pairs)
        data = encode_batch(records, compression=codec, transactional=transactional, **options)
        self.log.append_as_leader(data, 1, self.now, verified=transactional)
        self.log.update_high_watermark(self.log.log_end_offset)
        return list(range(first, first + len(pairs)))

    # --- rules

    @rule(
        pairs=st.lists(st.tuples(KEYS, VALUES), min_size=1, max_size=5),
        codec=st.sampled_from(CODECS),
    )
    def put(self, pairs: list[tuple[int, int | None]], codec: str) -> None:
        self.append(pairs, codec)

    @rule(pairs=st.lists(st.tuples(KEYS, VALUES), min_size=1, max_size=3), committed=st.booleans())
    def transaction(self, pairs: list[tuple[int, int | None]], committed: bool) -> None:
        offsets = self.append(pairs, "none", transactional=True)
        self.decided[offsets[0]] = committed
        self.put([(0, 1)], "none")
        marker = encode_control_batch(
            [EndTransactionMarker(committed, 0)],
            base_offset=0,
            timestamp_ms=self.now,
            partition_leader_epoch=1,
            producer_id=PRODUCER,
            producer_epoch=0,
        )
        self.log.append_as_leader(marker, 1, self.now, origin=AppendOrigin.COORDINATOR)
        self.log.update_high_watermark(self.log.log_end_offset)
        if not committed:
            self.aborted.update(offsets)

    @rule()
    def roll(self) -> None:
        self.log.roll(self.now)

    @rule(wait=st.integers(0, 100))
    def clean_all(self, wait: int) -> None:
        self.now += wait
        self.end_cleaning()
        for _ in range(30):
            if self.cleaner.clean_once() is None:
                break
        assert self.cleaner.uncleanable == {}

    @rule()
    def clean_a_step(self) -> None:
        """Does one step of a cleaning, between other rules."""
        if self.cleaning is None:
            self.cleaning = self.cleaner.choose()
            if self.cleaning is not None:
                self.cleaning.build_map(self.cleaner.new_map())
            return
        try:
            group = self.cleaning.next_group()
            if group is None:
                self.end_cleaning()
            else:
                self.cleaner.swap(self.cleaning, group)
        except TidemarkError as error:
            self.cleaner.finish(self.cleaning, error)
            self.cleaning = None

    def end_cleaning(self) -> None:
        if self.cleaning is not None:
            while (group := self.cleaning.next_group()) is not None:
                self.cleaner.swap(self.cleaning, group)
            self.cleaner.finish(self.cleaning)
            self.cleaning = None

    @rule()
    def purge(self) -> None:
        self.log.deleted_files.purge(self.now)

    @rule(after=st.integers(0, 40))
    def power_loss_in_a_swap(self, after: int) -> None:
        """The disk keeps some of the names and bytes of a cleaning that were not synced."""
        if self.cleaning is None:
            self.log.roll(self.now)
            self.cleaning = self.cleaner.choose()
            if self.cleaning is not None:
                self.cleaning.build_map(self.cleaner.new_map())
        if self.cleaning is not None:
            group = self.cleaning.next_group()
            if group is not None:
                self.log.flush()
                renames = DyingDirectory.wrap(self.log, after)
                try:
                    self.cleaner.swap(self.cleaning, group)
                except PowerLoss:
                    assert renames.left == 0
        self.crash()

    @rule()
    def crash(self) -> None:
        recovered = self.log.recovery_point
        self.directory.crash()
        self.open()
        end = self.log.log_end_offset
        assert end >= recovered
        self.written = {o: pair for o, pair in self.written.items() if o < end}
        self.aborted = {o for o in self.aborted if o < end}
        self.sequence = 0
        known = self.log.producers.producers.get(PRODUCER)
        if known is not None:
            self.sequence = known.last_sequence + 1
            if known.current_txn_first_offset is not None:  # its marker was lost
                self.finish_lost_transaction(known.current_txn_first_offset)

    def finish_lost_transaction(self, first: int) -> None:
        """Ends a transaction as it was decided: a cleaning may have relied on it, and its segments
        are durable.
        """
        marker = encode_control_batch(
            [EndTransactionMarker(self.decided[first], 0)],
            base_offset=0,
            timestamp_ms=self.now,
            partition_leader_epoch=1,
            producer_id=PRODUCER,
            producer_epoch=0,
        )
        self.log.append_as_leader(marker, 1, self.now, origin=AppendOrigin.COORDINATOR)
        self.log.update_high_watermark(self.log.log_end_offset)

    @rule()
    def restart(self) -> None:
        self.logs.close()
        self.open()

    # --- what must always hold

    @invariant()
    def the_last_value_of_each_key_is_there(self) -> None:
        last: dict[bytes, int] = {}
        for offset in sorted(self.written):
            if offset not in self.aborted:
                last[self.written[offset][0]] = offset
        records = [r for r in records_of(self.log, 300) if r.offset in self.written]
        state: dict[bytes, int] = {}
        for record in records:
            assert (record.key, record.value) == self.written[record.offset]
            if record.offset not in self.aborted:
                state[record.key or b""] = record.offset
        for key, offset in last.items():
            if self.written[offset][1] is not None or key in state:
                assert state.get(key) == offset, (key, offset, state.get(key))
        offsets = [r.offset for r in records]
        assert offsets == sorted(set(offsets))

    @invariant()
    def the_log_holds_together(self) -> None:
        self.log.validate()
        self.cleaner.states.validate()
        bases = {f"{segment.base_offset:020d}" for segment in self.log.segments}
        assert bases == {n[:20] for n in self.log.directory.list() if n.endswith(".log")}
        for one, following in zip(self.log.segments, self.log.segments[1:], strict=False):
            assert one.next_offset == following.base_offset
        stable = self.log.last_stable_offset
        assert stable == self.log.log_end_offset, "every transaction here is ended"


class PowerLoss(BaseException):
    """The machine stopped without any cleanup."""


class DyingDirectory(MemoryDirectory):
    """Counts renames and directory syncs of a log's directory, and stops at one of them."""

    left = 0

    @classmethod
    def wrap(cls, log: Log, after: int) -> DyingDirectory:
        guarded = log.directory
        assert isinstance(guarded, GuardedDirectory)
        inner = guarded.inner
        assert isinstance(inner, MemoryDirectory)
        dying = cls(inner.path, disk=inner.disk, node=inner._node)
        dying.left = after
        log._segments.directory = dying
        return dying

    def _count(self) -> None:
        if self.left == 0:
            raise PowerLoss
        self.left -= 1

    def rename(self, old: str, new: str) -> None:
        self._count()
        super().rename(old, new)

    def fsync(self) -> None:
        self._count()
        super().fsync()


CompactionMachine.TestCase.settings = model_settings()
TestCompactionAgainstADict = CompactionMachine.TestCase
