"""The blocking form of `AsyncTransactionAdmin`."""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Iterable, Sequence
from typing import Any

from tidemark.client.models import (
    ProducerState,
    TransactionDescription,
)
from tidemark.client.transactions.admin import (
    MAX_TRANSACTION_TIMEOUT_MS,
    AsyncTransactionAdmin,
    Hanging,
    Listings,
)
from tidemark.types import TopicPartition


class TransactionAdmin:
    """The transactions of a cluster; `Admin.transactions`. See AsyncTransactionAdmin for meanings
    and errors."""

    def __init__(
        self, core: AsyncTransactionAdmin, run: Callable[[Coroutine[Any, Any, Any]], Any]
    ) -> None:
        self._core = core
        self._run = run

    def list(
        self,
        *,
        states: Iterable[str] = (),
        producer_ids: Iterable[int] = (),
        older_than_ms: int | None = None,
        pattern: str = "",
    ) -> Listings:
        """The transactional ids of all live brokers, by id, that pass all filters."""
        found: Listings = self._run(
            self._core.list(
                states=states,
                producer_ids=producer_ids,
                older_than_ms=older_than_ms,
                pattern=pattern,
            )
        )
        return found

    def describe(self, transactional_ids: Sequence[str]) -> dict[str, TransactionDescription]:
        """Transactional ids with their transactions."""
        found: dict[str, TransactionDescription] = self._run(self._core.describe(transactional_ids))
        return found

    def force_terminate(self, transactional_id: str, *, lose_prepared: bool = False) -> None:
        """Fences the producer of a transactional id, and aborts its open transaction."""
        self._run(self._core.force_terminate(transactional_id, lose_prepared=lose_prepared))

    def prepare(self, transactional_id: str, producer_id: int, producer_epoch: int) -> None:
        """Has an open transaction wait for its end without a timeout."""
        self._run(self._core.prepare(transactional_id, producer_id, producer_epoch))

    def end(
        self,
        transactional_id: str,
        producer_id: int,
        producer_epoch: int,
        *,
        committed: bool,
        keep_prepared: bool = False,
    ) -> None:
        """Ends a transaction for its producer, which has handed it over."""
        self._run(
            self._core.end(
                transactional_id,
                producer_id,
                producer_epoch,
                committed=committed,
                keep_prepared=keep_prepared,
            )
        )

    def describe_producers(
        self, partitions: Iterable[TopicPartition]
    ) -> dict[TopicPartition, tuple[ProducerState, ...]]:
        """The producers that the leader of each partition knows, by id."""
        found: dict[TopicPartition, tuple[ProducerState, ...]] = self._run(
            self._core.describe_producers(partitions)
        )
        return found

    def abort(
        self,
        partition: TopicPartition,
        producer_id: int,
        producer_epoch: int,
        coordinator_epoch: int,
        *,
        force: bool = False,
    ) -> None:
        """Writes an abort marker that ends a hanging transaction in one partition."""
        self._run(
            self._core.abort(partition, producer_id, producer_epoch, coordinator_epoch, force=force)
        )

    def open_transaction(
        self, partition: TopicPartition, producer_id: int
    ) -> TransactionDescription | None:
        """The transaction of a producer that its coordinator has open, with this partition."""
        found: TransactionDescription | None = self._run(
            self._core.open_transaction(partition, producer_id)
        )
        return found

    def find_hanging(
        self,
        partitions: Iterable[TopicPartition],
        max_transaction_timeout_ms: int = MAX_TRANSACTION_TIMEOUT_MS,
    ) -> Hanging:
        """Transactions of these partitions that no coordinator will end."""
        found: Hanging = self._run(self._core.find_hanging(partitions, max_transaction_timeout_ms))
        return found
