"""The pure core of a transactional producer: its states, and what each answer makes of them. No IO,
clock or threads.

    UNINITIALIZED -> READY -> IN_TRANSACTION -> FLUSHING -> COMMITTING -> READY
                                   |  |            |            |
                                   |  +------------+- error ----+-> ABORTABLE_ERROR
                                   v                                     |
                                ABORTING <-------------------------------+
                                   +-> READY            any of them -> FATAL_ERROR

FLUSHING is left again if its caller gives up. COMMITTING begins when EndTxn may have been sent. An
answer that is lost leaves it there: nobody knows the outcome, and only the same request may be
repeated. So does ABORTING.

Each EndTxn gives the producer its next epoch (KIP-890), so late batches of the transaction before
are refused. Nothing else changes the epoch, and a sequence that has a gap ends in an abort.
"""

from __future__ import annotations

from collections.abc import Callable
from enum import Enum
from typing import NamedTuple, NoReturn

from tidemark.client.errors import (
    ClientClosedError,
    CommitFailedError,
    ErrorKind,
    IllegalStateError,
    TransactionAbortedError,
    TransactionInDoubtError,
    kind_of,
)
from tidemark.errors import (
    FencedInstanceIdError,
    FencedMemberEpochError,
    IllegalGenerationError,
    InvalidTxnStateError,
    StaleMemberEpochError,
    TidemarkError,
    TransactionAbortableError,
    UnknownMemberIdError,
)
from tidemark.v1 import log_pb2
from tidemark.v1 import transaction_pb2 as pb

_LOST_MEMBERS = (
    FencedInstanceIdError,
    FencedMemberEpochError,
    IllegalGenerationError,
    StaleMemberEpochError,
    UnknownMemberIdError,
)
_REFUSALS = (InvalidTxnStateError, TransactionAbortableError)
_FINAL = (ErrorKind.RECOVERABLE, ErrorKind.CONFIGURATION)


class TransactionState(Enum):  # same name as coordinator/records/transactions.py: the producer's
    """State of a transactional producer; its value tells the caller what comes next."""

    UNINITIALIZED = "call init_transactions() first"
    READY = "no transaction is open: call begin_transaction() first"
    IN_TRANSACTION = "a transaction is open"
    FLUSHING = "the transaction is being committed"
    COMMITTING = (
        "the outcome of the transaction is not known: call commit_transaction() again"
        " until it succeeds"
    )
    ABORTING = "the transaction is not aborted yet: call abort_transaction() again"
    ABORTABLE_ERROR = "call abort_transaction(), then begin again"
    FATAL_ERROR = "close the producer"


_S = TransactionState
_NEXT: dict[TransactionState, frozenset[TransactionState]] = {
    _S.UNINITIALIZED: frozenset({_S.READY, _S.FATAL_ERROR}),
    _S.READY: frozenset({_S.IN_TRANSACTION, _S.FATAL_ERROR}),
    _S.IN_TRANSACTION: frozenset(
        {_S.FLUSHING, _S.ABORTING, _S.ABORTABLE_ERROR, _S.FATAL_ERROR}
    ),
    _S.FLUSHING: frozenset(
        {_S.IN_TRANSACTION, _S.COMMITTING, _S.READY, _S.ABORTABLE_ERROR, _S.FATAL_ERROR}
    ),
    _S.COMMITTING: frozenset({_S.READY, _S.ABORTABLE_ERROR, _S.FATAL_ERROR}),
    _S.ABORTING: frozenset({_S.READY, _S.FATAL_ERROR}),
    _S.ABORTABLE_ERROR: frozenset({_S.ABORTING, _S.FATAL_ERROR}),
    _S.FATAL_ERROR: frozenset(),
}  # fmt: skip


class Identity(NamedTuple):
    """The producer's id and epoch in one transaction."""

    producer_id: int
    producer_epoch: int


class TransactionCore:
    """The transactions of one producer, one after the other.

    `on_open` is called with True when sends are allowed from now on, and with False when they are
    not. `error` is what ended the present transaction, or the producer.
    """

    def __init__(
        self, transactional_id: str, timeout_ms: int, on_open: Callable[[bool], None]
    ) -> None:
        self.transactional_id = transactional_id
        self._timeout_ms = timeout_ms
        self._on_open = on_open
        self.state = TransactionState.UNINITIALIZED
        self.identity: Identity | None = None
        self.error: BaseException | None = None
        self.number = 0  # of the present transaction, or of the last one
        self._is_written = False  # whether a broker may know of this transaction

    def _move(self, state: TransactionState) -> None:
        if state is self.state:
            return
        if state not in _NEXT[self.state]:
            raise AssertionError(f"a transaction can not go from {self.state} to {state}")
        was_open, self.state = self.state is _S.IN_TRANSACTION, state
        if was_open != (state is _S.IN_TRANSACTION):
            self._on_open(not was_open)

    # --- what the caller may do

    def refuse(self) -> NoReturn:
        """Raises the reason why the present state does not allow a call: the error that was fatal,
        TransactionAbortableError, or IllegalStateError."""
        if self.state is _S.FATAL_ERROR:
            assert isinstance(self.error, TidemarkError)
            raise _again(self.error) from self.error
        if self.state is _S.ABORTABLE_ERROR:
            raise TransactionAbortableError(
                f"transaction of {self.transactional_id}: {self.error}; {self.state.value}"
            ) from self.error
        raise IllegalStateError(f"{self.transactional_id}: {self.state.value}")

    def check_send(self) -> None:
        """Raises as `refuse` does unless a transaction is open."""
        if self.state is not _S.IN_TRANSACTION:
            self.refuse()

    def begin(self) -> None:
        """Opens a transaction."""
        if self.state is not _S.READY:
            self.refuse()
        self.error = None
        self.number += 1
        self._is_written = False
        self._move(_S.IN_TRANSACTION)

    # --- the producer's id

    def init_request(self, *, keep_open: bool = False) -> log_pb2.InitProducerIdRequest:
        """Fences all earlier producers of the transactional id."""
        return log_pb2.InitProducerIdRequest(
            transactional_id=self.transactional_id,
            transaction_timeout_ms=self._timeout_ms,
            producer_id=-1,
            producer_epoch=-1,
            keep_open=keep_open,
        )

    def initialized(self, answer: log_pb2.InitProducerIdResponse) -> None:
        self.identity = Identity(answer.producer_id, answer.producer_epoch)
        self._move(_S.READY)

    # --- what is sent

    def wrote(self) -> None:
        """A batch, or offsets, may reach a broker from now on."""
        self._is_written = True

    def failed(self, error: BaseException) -> None:
        """A record or offsets of the transaction are lost, so it can not be committed."""
        if _is_final(error) and self.state not in (_S.UNINITIALIZED, _S.FATAL_ERROR):
            self._fatal(error)
        elif self.state in (_S.IN_TRANSACTION, _S.FLUSHING):
            self.error = error
            self._move(_S.ABORTABLE_ERROR)

    @property
    def doom(self) -> BaseException | None:
        """The error of records that need not be sent any more; None while they are to be sent."""
        if self.state is _S.ABORTABLE_ERROR:
            return TransactionAbortedError(f"its transaction has to be aborted: {self.error}")
        return self.error if self.state is _S.FATAL_ERROR else None

    def offsets_failed(self, error: BaseException) -> BaseException:
        """Returns the error to raise from send_offsets_to_transaction. One that would pass is not
        raised as such: the call can not be repeated in this transaction."""
        if isinstance(error, _LOST_MEMBERS):
            told = CommitFailedError(
                f"transaction of {self.transactional_id}: the consumer is not the group's member"
                f" any more, so others have its partitions; abort, and poll to join again ({error})"
            )
            told.__cause__ = error
            error = told
        self.failed(error)
        if kind_of(error) is ErrorKind.RETRIABLE:
            return TransactionAbortableError(
                f"transaction of {self.transactional_id}: {error!r}; {self.state.value}"
            )
        return error

    def _fatal(self, error: BaseException) -> None:
        self.error = error
        self._move(_S.FATAL_ERROR)

    # --- the end

    def begin_commit(self) -> None:
        """No more sends; those before are to be flushed. Not to be called while COMMITTING."""
        self.check_send()
        self._move(_S.FLUSHING)

    def give_up_flush(self) -> None:
        """The caller was interrupted before anything was decided: it may commit, or abort."""
        if self.state is _S.FLUSHING:
            self._move(_S.IN_TRANSACTION)

    def handed_over(self) -> Identity | None:
        """Leaves the flushed transaction open for whoever has the id and the epoch. Returns these,
        or None if nothing was sent. The producer takes nothing more. Raises as `refuse` does if a
        record was lost."""
        if self.state is not _S.FLUSHING:
            self.refuse()
        identity = self.identity if self._is_written else None
        self._fatal(IllegalStateError("its transaction was handed over, and is ended elsewhere"))
        return identity

    def commit_request(self) -> pb.EndTxnRequest | None:
        """The request to send once all is flushed. None: nothing was sent in the transaction, and
        it is over. Raises as `refuse` does if a record was lost."""
        if self.state not in (_S.FLUSHING, _S.COMMITTING):
            self.refuse()
        if not self._is_written:
            self._move(_S.READY)
            return None
        self._move(_S.COMMITTING)
        return self._end_request(committed=True)

    def begin_abort(self) -> None:
        """Records that are not acknowledged are to be dropped."""
        if self.state not in (_S.IN_TRANSACTION, _S.ABORTABLE_ERROR, _S.ABORTING):
            self.refuse()
        self._move(_S.ABORTING)

    def abort_request(self) -> pb.EndTxnRequest | None:
        """The request to send. None: no broker knows of the transaction, and it is over."""
        assert self.state is _S.ABORTING
        if not self._is_written:
            self._move(_S.READY)
            return None
        return self._end_request(committed=False)

    def _end_request(self, *, committed: bool) -> pb.EndTxnRequest:
        assert self.identity is not None
        return pb.EndTxnRequest(
            transactional_id=self.transactional_id,
            producer_id=self.identity.producer_id,
            producer_epoch=self.identity.producer_epoch,
            committed=committed,
        )

    def ended(self, answer: pb.EndTxnResponse) -> None:
        """The outcome stands."""
        self.identity = Identity(answer.producer_id, answer.producer_epoch)
        self._move(_S.READY)

    def not_ended(self, error: Exception) -> Exception:
        """Takes the error of EndTxn after which it is not repeated. Returns the error to raise."""
        if _is_final(error):
            self._fatal(error)
            return error
        if isinstance(error, _REFUSALS):
            if self.state is _S.COMMITTING:
                self.error = error
                self._move(_S.ABORTABLE_ERROR)
                return TransactionAbortableError(
                    f"transaction of {self.transactional_id}: {error}; {self.state.value}"
                )
            self._fatal(error)
            return error
        if self.state is _S.COMMITTING:
            return TransactionInDoubtError(
                f"transaction of {self.transactional_id}: {self.state.value} ({error!r})"
            )
        return error


def _is_final(error: BaseException) -> bool:
    """Whether the coordinator takes nothing more from this producer. A close decides nothing: a
    commit that was sent stays in doubt."""
    return kind_of(error) in _FINAL and not isinstance(error, ClientClosedError)


def _again(error: TidemarkError) -> TidemarkError:
    """Another one of the same kind: one that is raised often collects tracebacks."""
    return type(error)(str(error))
