"""Transaction indexes: rebuilt for every recovered segment, checked before their first use.

Entries are not synced together with their batches. Without its entry an aborted transaction would
be visible to read_committed consumers. So recovery takes the open transactions at the first
recovered segment: the newest valid producer snapshot before it, and the batches between. It follows
the markers from there on, as Kafka's LogSegment.recover does.

An older file has no checksum, and the cleaner removes records by it. So its entries are compared
once with the segment's batches, and rewritten if they differ. (Kafka trusts them.) A segment may be
large, so the check goes on by pieces: whoever asks next continues it. If there is no
file, nothing was aborted. If other index files are missing as well, somebody removed all of them to
have them rebuilt.
"""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable, Generator, Iterator
from typing import TYPE_CHECKING

from commitlog.disk.files import Directory
from commitlog.segment.indexes import CorruptIndexError
from commitlog.segment.producer_state import ProducerStateManager
from commitlog.segment.segment import Segment
from commitlog.types import AbortedTransaction
from tidemark.errors import CorruptMessageError
from tidemark.records.control import end_transaction
from tidemark.records.header import HEADER_BYTES, claimed_size
from tidemark.records.header import BatchHeader as Header

if TYPE_CHECKING:
    from commitlog.segment.batch_table import BatchTable

logger = logging.getLogger(__name__)

_NEVER_MS = 1 << 62
_CHUNK_BYTES = 1 << 20


class TransactionRecovery:
    """Follows the transactions of recovered segments: `begin` a segment, then pass its batches.

    The state before the first segment is read only if a transactional batch comes.
    """

    def __init__(
        self,
        directory: Directory,
        before: list[Segment],
        base_offset: int,
        replay: Callable[[ProducerStateManager, list[Segment], int], None],
    ) -> None:
        self._directory = directory
        self._before = before
        self._base_offset = base_offset
        self._replay = replay
        self._state: ProducerStateManager | None = None
        self._take: Callable[[AbortedTransaction], None] = lambda _: None

    def begin(self, segment: Segment) -> None:
        """Starts a segment: the next batches are its own, and its index is emptied."""
        segment.txn_index.reset()
        self._take = segment.txn_index.append

    def collect(self) -> list[AbortedTransaction]:
        """Returns a list that the next batches fill; changes no file."""
        found: list[AbortedTransaction] = []
        self._take = found.append
        return found

    @property
    def state(self) -> ProducerStateManager:
        """The producers, at first those before the first segment."""
        if self._state is None:
            state = ProducerStateManager(self._directory, _NEVER_MS)
            state.restore(self._base_offset)
            if self._before:
                self._replay(state, self._before, self._base_offset)
            self._state = state
        return self._state

    def on_batches(self, table: BatchTable) -> None:
        """Applies valid batches; adds an entry for each aborted transaction that ends in them."""
        for row in table.transactional_rows():
            self._on_batch(table.header(row), table.view)

    def _on_batch(self, header: Header, buffer: memoryview) -> None:
        ended = end_transaction(buffer, header.position) if header.is_control else None
        aborted = self.state.update(header, ended)
        if aborted is not None:
            self._take(aborted)


def check_transactions(
    directory: Directory,
    segments: list[Segment],
    replay: Callable[[ProducerStateManager, list[Segment], int], None],
) -> bool:
    """Aligns the transaction index of the last of these segments with its batches, by one piece for
    each call; returns whether that is done. If they are damaged, a readable index stays as it is.

    Raises StorageError; the next call begins anew then.
    """
    index = segments[-1].txn_index
    if index.checking is None:
        if not index.is_doubtful and not directory.exists(index.name):
            index.is_checked = True
            return True
        index.checking = _checking(directory, segments, replay)
    try:
        next(index.checking)
    except StopIteration:
        index.is_checked, index.checking = True, None
    except BaseException:
        index.checking = None
        raise
    return index.is_checked


def _checking(
    directory: Directory,
    segments: list[Segment],
    replay: Callable[[ProducerStateManager, list[Segment], int], None],
) -> Iterator[None]:
    segment = segments[-1]
    index, cuts, is_whole = segment.txn_index, -1, False
    wanted: list[AbortedTransaction] = []
    while cuts != segment.cuts:  # a truncation between two pieces: once more
        cuts = segment.cuts
        recovery = TransactionRecovery(directory, segments[:-1], segment.base_offset, replay)
        wanted = recovery.collect()
        try:
            _ = recovery.state  # now: segments before this one may go between two pieces
            is_whole = yield from _feed(recovery, segment)
        except CorruptMessageError as error:
            logger.warning("%s: %s", directory.path, error)
            index.entries()  # one that can not be read stays an error
            return
    entries: list[AbortedTransaction] = []
    try:
        entries = index.entries()
        if not is_whole or entries == wanted:
            return
    except CorruptIndexError as error:
        logger.warning("%s: %s", directory.path, error)
    if are_of_before_a_cleaning(entries, wanted):
        logger.info("%s/%s: made anew of what the cleaner left", directory.path, index.name)
    else:
        logger.warning("%s/%s does not fit its log: made anew", directory.path, index.name)
    index.reset()
    for aborted in wanted:
        index.append(aborted)


def are_of_before_a_cleaning(
    entries: list[AbortedTransaction], wanted: list[AbortedTransaction]
) -> bool:
    """Whether the cleaner alone explains the difference. It keeps an entry as long as its marker,
    but removes the transaction's first batches, or all of them.
    """
    firsts = {(entry.producer_id, entry.last_offset): entry.first_offset for entry in entries}
    return all(
        firsts.get((entry.producer_id, entry.last_offset), sys.maxsize) <= entry.first_offset
        for entry in wanted
    )


def _feed(recovery: TransactionRecovery, segment: Segment) -> Generator[None, None, bool]:
    """Feeds all batches of a segment, and yields between two chunks; False if they are damaged."""
    from commitlog.segment.batch_table import BatchTable, sound_batches

    position, wanted = 0, _CHUNK_BYTES
    while position < segment.size_bytes:
        size = min(wanted, segment.size_bytes - position)
        view = memoryview(segment.file.pread(size, position))
        positions, end, is_damaged = sound_batches(view)
        if len(positions):
            recovery.on_batches(BatchTable(view[:end], positions))
        elif len(view) >= HEADER_BYTES and not is_damaged and claimed_size(view, 0) > wanted:
            wanted = claimed_size(view, 0)
            continue
        if is_damaged or not end:
            return False
        position, wanted = position + end, _CHUNK_BYTES
        if position < segment.size_bytes:
            yield
    return True
