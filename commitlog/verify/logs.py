"""One log: segments that join, indexes, leader epochs, snapshots, and the topic id."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from itertools import pairwise, zip_longest

from commitlog.disk.checkpoints import (
    LEADER_EPOCH_CHECKPOINT,
    PARTITION_METADATA,
    PartitionMetadata,
    parse_epochs,
)
from commitlog.disk.files import Directory
from commitlog.dump import dump_file
from commitlog.log.loader import replay_producers
from commitlog.segment.batch_table import BatchTable
from commitlog.segment.indexes import TransactionIndex
from commitlog.segment.names import (
    DELETED_SUFFIX,
    INDEX_SUFFIX,
    LOG_SUFFIX,
    SNAPSHOT_SUFFIX,
    TIME_INDEX_SUFFIX,
    TXN_INDEX_SUFFIX,
)
from commitlog.segment.producer_state import decode_snapshot
from commitlog.segment.txn_recovery import TransactionRecovery, are_of_before_a_cleaning
from commitlog.types import AbortedTransaction
from commitlog.verify.batches import BatchRun, check_batches
from commitlog.verify.findings import Finding
from commitlog.verify.indexes import verify_index
from tidemark.errors import StorageError

CHECKPOINT_SUFFIX = ".checkpoint"
QUORUM_STATE = "quorum-state"
_INDEXES = (INDEX_SUFFIX, TIME_INDEX_SUFFIX, TXN_INDEX_SUFFIX)
_REACH = 1 << 31  # offsets further apart than this begin a new segment, with a gap before it

OnBytes = Callable[[int], None]


@dataclass(frozen=True, slots=True)
class LogBounds:
    """Facts on a log from the checkpoints of its directory; None: unknown.

    `is_closed`: the node stopped cleanly. `cleaned_to`: below this offset compaction leaves gaps;
    None if that is unknown. `log_start`: records below it are deleted, whether or not they are in
    a segment.
    """

    is_closed: bool = True
    recovery_point: int | None = None
    cleaned_to: int | None = None
    log_start: int = 0

    def knows_start(self, offset: int) -> bool:
        """Whether the log certainly starts at or below this offset. A node that runs, or that was
        killed, may have deleted records since it wrote the checkpoint.
        """
        return self.is_closed and self.cleaned_to is not None and offset >= self.log_start

    def is_durable(self, offset: int) -> bool:
        """Whether what begins at this offset is beyond the repair of the next start."""
        return self.is_closed or (self.recovery_point is not None and offset < self.recovery_point)


class LogCheck:
    """The check of one log. `findings` goes over it once; then `end_offset` is known."""

    def __init__(self, directory: Directory, bounds: LogBounds, on_bytes: OnBytes) -> None:
        self._directory = directory
        self._bounds = bounds
        self._on_bytes = on_bytes
        self._starts: list[tuple[int, int]] = []
        self._transactions: TransactionRecovery | None = None
        self._aborted: dict[int, list[AbortedTransaction]] = {}
        self.start_offset: int | None = None
        self.end_offset: int | None = None

    def findings(self) -> Iterator[Finding]:
        """Yields what is wrong. Files that vanish meanwhile are passed over."""
        names = self._directory.list()
        yield from self._segments([name for name in names if is_segment(name)])
        for name in names:
            yield from self._unless_gone(name, partial(self._file, name))

    def _unless_gone(self, name: str, check: Callable[[], Iterator[Finding]]) -> Iterator[Finding]:
        try:
            yield from check()
        except StorageError as error:
            if self._directory.exists(name):
                yield self._finding(name, None, str(error))

    def _finding(
        self, name: str, position: int | None, reason: str, damage: bool = True
    ) -> Finding:
        return Finding(f"{self._directory.path}/{name}", position, reason, damage)

    def _segments(self, names: list[str]) -> Iterator[Finding]:
        for name, following in zip_longest(names, names[1:]):
            next_base = None if following is None else int(following[:20])
            yield from self._unless_gone(name, partial(self._segment, name, next_base))

    def _segment(self, name: str, next_base: int | None) -> Iterator[Finding]:
        base = int(name[:20])
        if self._transactions is None:
            self._transactions = TransactionRecovery(self._directory, [], base, replay_producers)
        aborted = self._transactions.collect()
        epoch = self._starts[-1][0] if self._starts else -1
        run = BatchRun(base, epoch=epoch, on_batches=self._transactions.on_batches)
        self._scan(name, run)
        if not run.faults:
            self._aborted[base] = aborted
        for position, reason in run.faults:
            yield self._finding(name, position, reason, self._is_damage(run, position, next_base))
        if self.start_offset is None:
            self.start_offset = base
        self._starts += run.starts
        self.end_offset = run.next_offset
        if next_base is None or run.faults:
            return
        if run.next_offset > next_base:
            reason = f"it reaches to offset {run.next_offset - 1}; the next begins at {next_base}"
            yield self._finding(name, None, reason)
        elif run.next_offset < next_base and next_base - base < _REACH:
            yield from self._gap(name, run, next_base)

    def _scan(self, name: str, run: BatchRun) -> None:
        size = self._directory.size_of(name)
        file = self._directory.open_read_only(name)
        try:
            for count in check_batches(file, size, run):
                self._on_bytes(count)
        finally:
            file.close()

    def _is_damage(self, run: BatchRun, position: int, next_base: int | None) -> bool:
        """A fault is damage, unless recovery at the next start truncates the log there."""
        is_end = position >= run.position
        return self._bounds.is_durable(run.next_offset if is_end else run.base_offset) or (
            next_base is not None and self._bounds.is_durable(next_base)
        )

    def _gap(self, name: str, run: BatchRun, next_base: int) -> Iterator[Finding]:
        """Reports offsets missing before the next segment, unless compaction removed them."""
        cleaned_to = self._bounds.cleaned_to
        reason = f"it ends before offset {run.next_offset}; the next begins at {next_base}"
        if cleaned_to is None:
            reason += " (compaction leaves such gaps; the cleaner's checkpoint is not at hand)"
            yield self._finding(name, run.position, reason, damage=False)
        elif next_base > cleaned_to:
            damage = self._bounds.is_durable(run.next_offset)
            yield self._finding(name, run.position, reason, damage)

    def _file(self, name: str) -> Iterator[Finding]:
        if is_segment(name):
            return  # counted as it was read
        if name.endswith(_INDEXES) and name[:20].isdigit():
            yield from self._index(name)
        elif name.endswith(SNAPSHOT_SUFFIX):
            decode_snapshot(self._directory.read(name), name)
        elif name == LEADER_EPOCH_CHECKPOINT:
            yield from self._epochs(name)
        elif name == PARTITION_METADATA:
            PartitionMetadata.read(self._directory)
        elif name.endswith(CHECKPOINT_SUFFIX):
            yield from self._metadata_checkpoint(name)
        elif name == QUORUM_STATE:
            for entry in dump_file(self._directory, name):
                if entry["kind"] == "damage":
                    yield self._finding(name, entry["position"], entry["reason"])
        if not name.endswith(CHECKPOINT_SUFFIX):
            self._on_bytes(self._directory.size_of(name))

    def _index(self, name: str) -> Iterator[Finding]:
        if not self._directory.exists(name[:20] + LOG_SUFFIX):
            if self._directory.exists(name[:20] + LOG_SUFFIX + DELETED_SUFFIX):
                reason = "an index of a deleted segment; the next start removes it"
                yield self._finding(name, None, reason, damage=False)
            else:
                reason = "an index without its segment"
                yield self._finding(name, None, reason, self._bounds.is_durable(int(name[:20])))
            return
        base = int(name[:20])
        rebuilt = not self._bounds.is_durable(base)
        found = list(verify_index(self._directory, name))
        for one in found:
            yield replace(one, is_damage=not rebuilt)
        if name.endswith(TXN_INDEX_SUFFIX) and not found and base in self._aborted:
            entries = TransactionIndex(self._directory, name).entries()
            if not self._explains(entries, self._aborted[base]):
                reason = "its entries are not the transactions that the segment aborts"
                yield self._finding(name, None, reason, not rebuilt)

    def _explains(
        self, entries: list[AbortedTransaction], aborted: list[AbortedTransaction]
    ) -> bool:
        if entries == aborted:
            return True
        return self._bounds.cleaned_to != 0 and are_of_before_a_cleaning(entries, aborted)

    def _epochs(self, name: str) -> Iterator[Finding]:
        entries = parse_epochs(self._directory.read(name), name)
        for (epoch, start), (later, after) in pairwise(entries):
            if later <= epoch or after <= start:
                reason = f"epoch {later} from {after} follows epoch {epoch} from {start}"
                yield self._finding(name, None, reason)
                return
        for epoch, offset in self._starts:
            known = [e for e, start in entries if start <= offset]
            if not known and not self._bounds.knows_start(offset):
                continue  # the first entry begins at the log start
            if not known or known[-1] != epoch:
                told = f"epoch {known[-1]}" if known else "no epoch"
                reason = f"{told} at offset {offset}; the batch there is of epoch {epoch}"
                yield self._finding(name, None, reason, self._bounds.is_durable(offset))
                return

    def _metadata_checkpoint(self, name: str) -> Iterator[Finding]:
        """A checkpoint of the metadata: offsets from 0 without a gap, one epoch, a footer."""
        offsets = 0

        def count(table: BatchTable) -> None:
            nonlocal offsets
            offsets += len(table) + int(table.column("last_offset_delta").sum())

        run = BatchRun(0, on_batches=count)
        self._scan(name, run)
        for position, reason in run.faults:
            yield self._finding(name, position, reason)
        if run.faults:
            return
        epoch = name.removesuffix(CHECKPOINT_SUFFIX).partition("-")[2]
        if not run.ends_with_control:
            yield self._finding(name, run.position, "it ends without a snapshot footer")
        elif run.next_offset != offsets:
            yield self._finding(name, None, "offsets are missing between its batches")
        elif len(run.starts) != 1 or (epoch.isdigit() and run.epoch != int(epoch)):
            yield self._finding(name, None, f"its batches are of epochs {run.starts}")


def is_segment(name: str) -> bool:
    return len(name) == 24 and name.endswith(LOG_SUFFIX) and name[:20].isdigit()
