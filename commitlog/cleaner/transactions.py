"""Outcome of transactions while a log is read from its beginning (Kafka's
CleanedTransactionMetadata).

Records of an aborted transaction are dropped. A marker is dropped when no batch of its transaction
is left, and then only after its delete horizon. Aborted transactions are known from the transaction
indexes. The walk must see every batch, in offset order.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable

from commitlog.types import AbortedTransaction
from tidemark.records.control import EndTransactionMarker
from tidemark.records.header import BatchHeader as Header


class TransactionWalk:
    """Outcome of transactions; called with every batch in offset order."""

    def __init__(self, aborted: Iterable[AbortedTransaction]) -> None:
        self._coming = deque(sorted(aborted, key=lambda entry: entry.first_offset))
        self._aborted: dict[int, AbortedTransaction] = {}
        self._seen: set[int] = set()  # producers with batches of an aborted transaction
        self._committed: set[int] = set()  # producers with batches of other transactions

    def _advance(self, last_offset: int) -> None:
        while self._coming and self._coming[0].first_offset <= last_offset:
            entry = self._coming.popleft()
            self._aborted.setdefault(entry.producer_id, entry)

    def on_data(self, header: Header) -> bool:
        """Returns whether a batch is part of an aborted transaction, so that its records are
        dropped.
        """
        self._advance(header.last_offset)
        if not header.is_transactional:
            return False
        entry = self._aborted.get(header.producer_id)
        if entry is not None:
            self._seen.add(header.producer_id)
            return True
        self._committed.add(header.producer_id)
        return False

    def on_control(
        self, header: Header, end: EndTransactionMarker | None
    ) -> tuple[bool, AbortedTransaction | None]:
        """Returns whether a marker may be dropped, and the index entry that must stay with it.

        `end` is None for an empty control batch (cleaned before), and for control records that end
        no transaction. The latter always stay.
        """
        self._advance(header.last_offset)
        if end is None:
            return header.record_count == 0, None
        producer_id = header.producer_id
        if end.committed:
            had = producer_id in self._committed
            self._committed.discard(producer_id)
            return not had, None
        entry = self._aborted.pop(producer_id, None)
        if entry is not None and producer_id in self._seen:
            self._seen.discard(producer_id)
            return False, entry
        return True, None
