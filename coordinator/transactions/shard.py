"""The transactional ids of a partition: replay, requests, deadlines, markers.

Only what is appended counts, committed or not: whoever asks is answered when it is committed. That
holds for markers too, so the broker sends those that `CoordinatorRuntime.read` tells it.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeVar

from coordinator.records.transactions import (
    TransactionLogKey,
    TransactionLogValue,
    TransactionState,
)
from coordinator.runtime.deadlines import KeyedDeadlines, earliest_ms
from coordinator.runtime.now import Now
from coordinator.runtime.result import CoordinatorRecord, CoordinatorResult
from coordinator.transactions import transaction
from coordinator.transactions.transaction import (
    COMPLETED,
    LAST_EPOCH,
    NO_TIMEOUT_MS,
    PREPARED,
    PendingMarkers,
    ProducerIdAndEpoch,
    partitions_of,
    producer_of,
)
from tidemark.errors import (
    ConcurrentTransactionsError,
    InvalidProducerIdMappingError,
    InvalidRequestError,
    InvalidTransactionTimeoutError,
    InvalidTxnStateError,
    ProducerFencedError,
    TransactionalIdNotFoundError,
    UnsupportedVersionError,
)
from tidemark.types import TopicPartition

logger = logging.getLogger(__name__)

A = TypeVar("A")

_LOOKED_AT_MAX = 1_000  # transactional ids in one turn of the expiry
_CHECK = ""
_UNENDED = frozenset({TransactionState.ONGOING, *PREPARED})


@dataclass(frozen=True, slots=True)
class TransactionSettings:
    """Kafka's transaction.max.timeout.ms, transactional.id.expiration.ms,
    transaction.remove.expired.transaction.cleanup.interval.ms and
    transaction.two.phase.commit.enable; and a pause of our own."""

    transaction_max_timeout_ms: int = 900_000
    transactional_id_expiration_ms: int = 7 * 24 * 3_600_000
    remove_expired_interval_ms: int = 3_600_000
    two_phase_commit_enable: bool = True
    retry_ms: int = 1_000  # of an abort by timeout that could not be appended


class TransactionShard:
    """The state machine of one partition."""

    def __init__(self, settings: TransactionSettings) -> None:
        self._settings = settings
        self._epoch = -1
        self.transactions: dict[str, TransactionLogValue] = {}
        self._open: dict[str, None] = {}  # those that have not ended; few, of many
        self._unwritten: dict[str, frozenset[TopicPartition]] = {}
        self._moved: dict[str, None] = {}  # decided or ended since the last `take_moved`
        self._timeouts: KeyedDeadlines[str] = KeyedDeadlines()
        self._expiry: KeyedDeadlines[str] = KeyedDeadlines()
        self._to_check: list[str] = []
        # The epoch before the last InitProducerId, if that came from the same producer.
        self._last_epochs: dict[str, int] = {}

    # --- replay

    def replay(self, key: Any, value: Any | None, offset: int, producer_id: int) -> None:
        transactional_id = key.transactional_id
        status = None if value is None else value.transaction_status
        self._unwritten.pop(transactional_id, None)
        self._open.pop(transactional_id, None)
        if value is None:
            self.transactions.pop(transactional_id, None)
            self._last_epochs.pop(transactional_id, None)
            return
        self.transactions[transactional_id] = value
        if status in _UNENDED:
            self._open[transactional_id] = None
        if status == TransactionState.ONGOING:
            self._last_epochs.pop(transactional_id, None)
            if value.transaction_timeout_ms == NO_TIMEOUT_MS:
                self._timeouts.clear(transactional_id)
        elif status in PREPARED:
            self._unwritten[transactional_id] = partitions_of(value)
        if status in PREPARED or status in COMPLETED:
            self._moved[transactional_id] = None

    def end_transaction(self, producer_id: int, committed: bool) -> None:
        """Nothing: records of this topic are in no transaction."""

    def loaded(self, epoch: int, now: Now) -> None:
        """Gives each open transaction the rest of its time, by the clocks of both brokers; none to
        one that is prepared."""
        self._epoch = epoch
        self._moved = dict.fromkeys(self._unwritten)
        for transactional_id, state in self.transactions.items():
            timeout_ms = state.transaction_timeout_ms
            is_open = state.transaction_status == TransactionState.ONGOING
            if is_open and timeout_ms != NO_TIMEOUT_MS:
                passed_ms = now.wall_ms - state.transaction_start_timestamp_ms
                self._timeouts.set(transactional_id, now.mono_ms + timeout_ms - max(0, passed_ms))
        self._expiry.set(_CHECK, now.mono_ms + self._settings.remove_expired_interval_ms)

    # --- producers

    def init_producer_id(
        self,
        transactional_id: str,
        timeout_ms: int,
        expected: ProducerIdAndEpoch | None,
        new_producer_id: Callable[[], int],
        now: Now,
        *,
        keep_open: bool = False,
    ) -> CoordinatorResult[ProducerIdAndEpoch | None]:
        """A producer that begins, or with `expected` one that goes on after an error (KIP-360).
        Fences the one before; with `keep_open` not while its transaction is open (KIP-939).

        The answer is None if that one had a transaction, which is aborted now: the caller is to be
        told CONCURRENT_TRANSACTIONS, and to come again. Raises ConcurrentTransactionsError while a
        transaction ends, ProducerFencedError, InvalidTransactionTimeoutError and
        InvalidRequestError; with `keep_open` InvalidTxnStateError.
        """
        _check_id(transactional_id)
        most_ms = self._settings.transaction_max_timeout_ms
        if not 0 < timeout_ms <= most_ms:
            raise InvalidTransactionTimeoutError(
                f"a transaction timeout of {timeout_ms} ms: 1 to {most_ms} are allowed"
                " (transaction.max.timeout.ms)"
            )
        state = self.transactions.get(transactional_id)
        if state is None:
            first = transaction.new(new_producer_id(), timeout_ms, now.wall_ms)
            return _result(transactional_id, first, producer_of(first))
        is_retry = expected is not None and self._is_retry(transactional_id, state, expected)
        if expected is not None and not is_retry and not _is(state, expected):
            raise ProducerFencedError(
                f"{transactional_id} has another producer now than {expected.producer_id} with"
                f" epoch {expected.producer_epoch}"
            )
        if state.transaction_status in PREPARED:
            raise _ending(transactional_id)
        if keep_open:
            _check_free(transactional_id, state)
        self._last_epochs.pop(transactional_id, None)
        if expected is not None:
            self._last_epochs[transactional_id] = expected.producer_epoch
        if state.transaction_status == TransactionState.ONGOING:
            fence = transaction.prepared(state, False, -1, now.wall_ms)
            return _result(transactional_id, fence, None)
        is_given = is_retry and state.producer_epoch <= LAST_EPOCH
        producer = producer_of(state) if is_given else _bumped(state, new_producer_id)
        begun = transaction.initialized(state, producer, timeout_ms, now.wall_ms)
        return _result(transactional_id, begun, producer)

    def _is_retry(
        self, transactional_id: str, state: TransactionLogValue, expected: ProducerIdAndEpoch
    ) -> bool:
        """Whether this came before, and nobody else since then."""
        if self._last_epochs.get(transactional_id) != expected.producer_epoch:
            return False
        if _is(state, expected):
            return False
        return expected.producer_id in (state.producer_id, state.previous_producer_id)

    # --- partitions

    def add_partitions(
        self,
        transactional_id: str,
        producer: ProducerIdAndEpoch,
        partitions: Collection[TopicPartition],
        now: Now,
    ) -> CoordinatorResult[None]:
        """Partitions that the producer is about to write to; the first ones begin a transaction.

        Raises InvalidProducerIdMappingError, ProducerFencedError and ConcurrentTransactionsError.
        """
        state = self._writable(transactional_id, producer)
        is_open = state.transaction_status == TransactionState.ONGOING
        if is_open and partitions_of(state).issuperset(partitions):
            return CoordinatorResult(None)
        if not is_open:
            state = self._with_timeout(state)
            self._timeouts.set(transactional_id, now.mono_ms + state.transaction_timeout_ms)
        longer = transaction.with_partitions(state, partitions, now.wall_ms)
        return _result(transactional_id, longer, None)

    def missing_partitions(
        self,
        transactional_id: str,
        producer: ProducerIdAndEpoch,
        partitions: Collection[TopicPartition],
    ) -> frozenset[TopicPartition]:
        """Those that are not in the open transaction. Raises as `add_partitions` does."""
        state = self._writable(transactional_id, producer)
        return frozenset(partitions) - partitions_of(state)

    def _writable(self, transactional_id: str, producer: ProducerIdAndEpoch) -> TransactionLogValue:
        state = self._state(transactional_id)
        if state.transaction_status in PREPARED and producer == producer_of(state):
            raise _ending(transactional_id)
        if state.producer_id != producer.producer_id:
            raise _mapping(transactional_id, producer)
        if not _is(state, producer) or producer.producer_epoch > LAST_EPOCH:
            raise _fenced(transactional_id, producer)
        return state

    # --- the end of a transaction

    def prepare_txn(
        self, transactional_id: str, producer: ProducerIdAndEpoch, now: Now
    ) -> CoordinatorResult[None]:
        """Has the open transaction wait for its end without a timeout (KIP-939); idempotent.

        Raises InvalidTxnStateError if none is open, InvalidProducerIdMappingError,
        ProducerFencedError, and UnsupportedVersionError if the settings do not allow it.
        """
        if not self._settings.two_phase_commit_enable:
            raise UnsupportedVersionError(
                "transactions can not be prepared here: the brokers have"
                " transaction.two.phase.commit.enable=false"
            )
        state = self._state(transactional_id)
        if state.producer_id != producer.producer_id:
            raise _mapping(transactional_id, producer)
        if not _is(state, producer):
            raise _fenced(transactional_id, producer)
        if state.transaction_status != TransactionState.ONGOING:
            raise InvalidTxnStateError(f"{transactional_id} has no open transaction to prepare")
        if state.transaction_timeout_ms == NO_TIMEOUT_MS:
            return CoordinatorResult(None)
        return _result(transactional_id, transaction.without_timeout(state, now.wall_ms), None)

    def end_txn(
        self,
        transactional_id: str,
        producer: ProducerIdAndEpoch,
        committed: bool,
        new_producer_id: Callable[[], int],
        now: Now,
        *,
        keep_prepared: bool = False,
        by_force: bool = False,
    ) -> CoordinatorResult[ProducerIdAndEpoch]:
        """Decides a transaction; the answer is the producer of the next one.

        A retry is known by the epoch before that of the state. An abort without a transaction is
        accepted: the producer can not know whether its first partition was added. `keep_prepared`
        refuses one that is prepared. An abort of such a one `by_force` leaves its timeout as a
        mark, which `init_producer_id` keeps with `keep_open`. Raises InvalidTxnStateError,
        ConcurrentTransactionsError (a retry while markers are written),
        InvalidProducerIdMappingError and ProducerFencedError.
        """
        state = self._state(transactional_id)
        status = TransactionState(state.transaction_status)
        if status in (*PREPARED, *COMPLETED) and _has_ended(state, producer):
            return self._ended_before(transactional_id, state, committed)
        if status in PREPARED and producer == producer_of(state):
            raise _ending(transactional_id)
        if state.producer_id != producer.producer_id:
            raise _mapping(transactional_id, producer)
        if not _is(state, producer):
            raise _fenced(transactional_id, producer)
        is_open = status is TransactionState.ONGOING
        if committed and not is_open:
            raise InvalidTxnStateError(f"{transactional_id} has no open transaction to commit")
        if keep_prepared and is_open and state.transaction_timeout_ms == NO_TIMEOUT_MS:
            raise InvalidTxnStateError(
                f"the transaction of {transactional_id} is prepared: whoever prepared it decides"
            )
        next_id = new_producer_id() if state.producer_epoch >= LAST_EPOCH else -1
        if committed or not by_force:
            state = self._with_timeout(state)
        decided = transaction.prepared(state, committed, next_id, now.wall_ms)
        if not is_open:
            decided = transaction.completed(decided, now.wall_ms)  # there is nobody to tell
        return _result(transactional_id, decided, producer_of(decided))

    def _with_timeout(self, state: TransactionLogValue) -> TransactionLogValue:
        """The next transaction is not prepared yet."""
        if state.transaction_timeout_ms != NO_TIMEOUT_MS:
            return state
        most_ms = self._settings.transaction_max_timeout_ms
        return replace(state, transaction_timeout_ms=most_ms)

    def _ended_before(
        self, transactional_id: str, state: TransactionLogValue, committed: bool
    ) -> CoordinatorResult[ProducerIdAndEpoch]:
        status = state.transaction_status
        was_commit = status in (TransactionState.PREPARE_COMMIT, TransactionState.COMPLETE_COMMIT)
        if committed != was_commit:
            raise InvalidTxnStateError(
                f"the transaction of {transactional_id} was"
                f" {'committed' if was_commit else 'aborted'}"
            )
        if status in PREPARED:
            raise _ending(transactional_id)
        return CoordinatorResult(producer_of(state))

    def take_moved(self) -> list[str]:
        """Transactional ids whose transaction was decided or has ended since the last call; after a
        load those that are decided."""
        moved, self._moved = list(self._moved), {}
        return moved

    def pending_of(self, transactional_id: str) -> PendingMarkers | None:
        """The outcome that partitions are to be told. To be asked by `CoordinatorRuntime.read`,
        because the outcome stands only when it is committed."""
        partitions = self._unwritten.get(transactional_id)
        if partitions is None:
            return None
        state = self.transactions[transactional_id]
        return PendingMarkers(
            transactional_id,
            state.producer_id,
            state.producer_epoch,
            self._epoch,
            state.transaction_status == TransactionState.PREPARE_COMMIT,
            partitions,
        )

    def pending_markers(self) -> list[PendingMarkers]:
        """All outcomes that partitions are to be told, for tests and metrics."""
        found = map(self.pending_of, self._unwritten)
        return [markers for markers in found if markers is not None]

    def markers_written(
        self, markers: PendingMarkers, partitions: Collection[TopicPartition], now: Now
    ) -> CoordinatorResult[None]:
        """These partitions have the marker, or are gone for good. The last ones end the
        transaction; what belongs to an earlier one changes nothing."""
        state = self.transactions.get(markers.transactional_id)
        left = self._unwritten.get(markers.transactional_id)
        producer = ProducerIdAndEpoch(markers.producer_id, markers.producer_epoch)
        if state is None or left is None or not _is(state, producer):
            return CoordinatorResult(None)
        self._unwritten[markers.transactional_id] = left = left - frozenset(partitions)
        if left:
            return CoordinatorResult(None)
        ended = transaction.completed(state, now.wall_ms)
        return _result(markers.transactional_id, ended, None)

    # --- looking

    def describe(self, transactional_id: str) -> TransactionLogValue:
        """Raises TransactionalIdNotFoundError and InvalidRequestError."""
        _check_id(transactional_id)
        found = self.transactions.get(transactional_id)
        if found is None:
            raise TransactionalIdNotFoundError(f"there is no transactional id {transactional_id}")
        return found

    def counts(self) -> Counter[str]:
        """The transactions that have not ended, by state, and the number of all ids."""
        found = Counter(
            TransactionState(self.transactions[each].transaction_status).name for each in self._open
        )
        found["IDS"] = len(self.transactions)
        return found

    def list_transactions(
        self,
        now: Now,
        states: Collection[TransactionState] = (),
        producer_ids: Collection[int] = (),
        older_than_ms: int = -1,
    ) -> Iterator[tuple[str, TransactionLogValue]]:
        """Transactional ids with their states; an empty filter lets all through.

        If only open ones are asked for, no other is looked at. A sink of Spark asks at each batch,
        and leaves an id behind for each task.
        """
        of_open = older_than_ms >= 0 or (states and set(states) <= _UNENDED)
        for transactional_id in list(self._open if of_open else self.transactions):
            state = self.transactions[transactional_id]
            open_ms = now.wall_ms - state.transaction_start_timestamp_ms
            is_open = state.transaction_status in _UNENDED
            if (
                (not states or state.transaction_status in states)
                and (not producer_ids or state.producer_id in producer_ids)
                and (older_than_ms < 0 or (is_open and open_ms > older_than_ms))
            ):
                yield transactional_id, state

    def _state(self, transactional_id: str) -> TransactionLogValue:
        _check_id(transactional_id)
        found = self.transactions.get(transactional_id)
        if found is None:
            raise InvalidProducerIdMappingError(
                f"{transactional_id} is not known, or has expired: initialize its producer again"
            )
        return found

    # --- deadlines

    def next_deadline_ms(self) -> int | None:
        return earliest_ms(self._timeouts, self._expiry)

    def on_deadline(self, now: Now) -> Sequence[CoordinatorResult[None]]:
        transactional_id = self._timeouts.take_due(now.mono_ms)
        if transactional_id is not None:
            return self._time_out(transactional_id, now)
        if self._expiry.take_due(now.mono_ms) is not None:
            return self._expire(now)
        return []

    def _time_out(self, transactional_id: str, now: Now) -> Sequence[CoordinatorResult[None]]:
        """Aborts a transaction with an epoch that its producer does not have."""
        state = self.transactions.get(transactional_id)
        if state is None or state.transaction_status != TransactionState.ONGOING:
            return []
        # If the append fails, the next try has this as its reason to come.
        self._timeouts.set(transactional_id, now.mono_ms + self._settings.retry_ms)
        logger.info("%s: its transaction is aborted, since its time is over", transactional_id)
        fence = transaction.prepared(state, False, -1, now.wall_ms)
        return [_result(transactional_id, fence, None)]

    def _expire(self, now: Now) -> Sequence[CoordinatorResult[None]]:
        """Looks at some transactional ids, and at the next ones soon."""
        self._to_check = self._to_check or list(self.transactions)
        some = self._to_check[-_LOOKED_AT_MAX:]
        del self._to_check[-_LOOKED_AT_MAX:]
        expired = tuple(
            (TransactionLogKey(transactional_id), None)
            for transactional_id in some
            if self._is_expired(transactional_id, now)
        )
        wait_ms = 0 if self._to_check else self._settings.remove_expired_interval_ms
        self._expiry.set(_CHECK, now.mono_ms + wait_ms)
        return [CoordinatorResult(None, expired)]

    def _is_expired(self, transactional_id: str, now: Now) -> bool:
        state = self.transactions.get(transactional_id)
        if state is None or state.transaction_status in _UNENDED:
            return False
        age_ms = now.wall_ms - state.transaction_last_update_timestamp_ms
        return age_ms >= self._settings.transactional_id_expiration_ms


def _result(transactional_id: str, state: TransactionLogValue, answer: A) -> CoordinatorResult[A]:
    record: CoordinatorRecord = (TransactionLogKey(transactional_id), state)
    return CoordinatorResult(answer, (record,))


def _is(state: TransactionLogValue, producer: ProducerIdAndEpoch) -> bool:
    return (state.producer_id, state.producer_epoch) == (
        producer.producer_id,
        producer.producer_epoch,
    )


def _has_ended(state: TransactionLogValue, producer: ProducerIdAndEpoch) -> bool:
    """Whether the state's last transaction was this producer's, and is over."""
    if state.producer_id == producer.producer_id:
        is_prepared = state.transaction_status in PREPARED
        is_given = is_prepared or state.producer_epoch <= LAST_EPOCH
        return is_given and state.producer_epoch == producer.producer_epoch + 1
    is_previous = state.previous_producer_id == producer.producer_id
    return is_previous and producer.producer_epoch == LAST_EPOCH and state.producer_epoch == 0


def _bumped(state: TransactionLogValue, new_producer_id: Callable[[], int]) -> ProducerIdAndEpoch:
    if state.producer_epoch >= LAST_EPOCH:
        return ProducerIdAndEpoch(new_producer_id(), 0)
    return ProducerIdAndEpoch(state.producer_id, state.producer_epoch + 1)


def _check_id(transactional_id: str) -> None:
    if not transactional_id:
        raise InvalidRequestError("the transactional id is empty")


def _check_free(transactional_id: str, state: TransactionLogValue) -> None:
    """Raises InvalidTxnStateError if a producer that comes would abort a transaction, or remove the
    mark of one that was lost by force."""
    if state.transaction_status == TransactionState.ONGOING:
        raise InvalidTxnStateError(f"the transaction of {transactional_id} is open")
    is_aborted = state.transaction_status == TransactionState.COMPLETE_ABORT
    if is_aborted and state.transaction_timeout_ms == NO_TIMEOUT_MS:
        raise InvalidTxnStateError(
            f"the last transaction of {transactional_id} was prepared, and aborted by force"
        )


def _ending(transactional_id: str) -> ConcurrentTransactionsError:
    return ConcurrentTransactionsError(
        f"the last transaction of {transactional_id} is still being ended; try again"
    )


def _mapping(transactional_id: str, producer: ProducerIdAndEpoch) -> InvalidProducerIdMappingError:
    return InvalidProducerIdMappingError(
        f"{transactional_id} has another producer id than {producer.producer_id}"
    )


def _fenced(transactional_id: str, producer: ProducerIdAndEpoch) -> ProducerFencedError:
    return ProducerFencedError(
        f"{transactional_id}: epoch {producer.producer_epoch} is over; another producer came, or"
        " the transaction took longer than its timeout"
    )
