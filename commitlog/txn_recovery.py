"""Transaction indexes after an unclean stop: made anew for every segment that is recovered.

Entries are not synced with the batches they stand for, and without its entry an aborted
transaction would be shown to read_committed consumers. So recovery takes the open transactions at
the first recovered segment (newest sound producer snapshot before it, and the batches between) and
follows markers from there on, as Kafka's LogSegment.recover does.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from commitlog.batches import Header, end_transaction
from commitlog.files import Directory
from commitlog.producer_state import ProducerStateManager
from commitlog.segment import Segment

if TYPE_CHECKING:
    from commitlog.batch_table import BatchTable

_NEVER_MS = 1 << 62


class TransactionRecovery:
    """Follows the transactions of recovered segments; `begin` each segment, then feed its batches.

    The state before the first one is read only when a transactional batch comes.
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
        self._segment: Segment | None = None

    def begin(self, segment: Segment) -> None:
        """The batches that follow are this segment's; its index starts empty."""
        self._segment = segment
        segment.txn_index.reset()

    def on_batches(self, table: BatchTable) -> None:
        """Takes in sound batches; adds an entry where one ends an aborted transaction."""
        for row in table.transactional_rows():
            self._on_batch(table.header(row), table.view)

    def _on_batch(self, header: Header, buffer: memoryview) -> None:
        if self._state is None:
            self._state = ProducerStateManager(self._directory, _NEVER_MS)
            self._state.restore(self._base_offset)
            if self._before:
                self._replay(self._state, self._before, self._base_offset)
        ended = end_transaction(buffer, header.position) if header.is_control else None
        aborted = self._state.update(header, ended)
        if aborted is not None and self._segment is not None:
            self._segment.txn_index.append(aborted)
