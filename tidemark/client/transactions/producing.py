"""The edge of a producer's transactions: calls of its coordinators, flushes, ends."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Callable, Iterable, Mapping
from contextlib import asynccontextmanager
from typing import Any, Protocol

from tidemark.client.coordinators import CoordinatorCalls
from tidemark.client.errors import ClientClosedError, IllegalStateError, TransactionAbortedError
from tidemark.client.groups.requests import commit_request, of_commit
from tidemark.client.models import ConsumerGroupMetadata, OffsetAndMetadata
from tidemark.client.transactions.core import Identity, TransactionCore, TransactionState
from tidemark.errors import UnsupportedVersionError
from tidemark.types import TopicPartition
from tidemark.v1 import group_pb2, log_pb2
from tidemark.v1 import transaction_pb2 as pb

logger = logging.getLogger(__name__)

_ABORT_S = 5.0  # for the abort after an error, which its caller waits for
_TO_ABORT = (TransactionState.ABORTABLE_ERROR, TransactionState.ABORTING)
_OPEN = (TransactionState.IN_TRANSACTION, TransactionState.ABORTABLE_ERROR)

Calls = Callable[[str, group_pb2.CoordinatorType.ValueType], CoordinatorCalls]


class ProducedRecords(Protocol):
    """The producer's records, as far as a transaction concerns them."""

    async def flush(self) -> None:
        """Returns when each record has its outcome."""

    def drop(self, error: BaseException) -> None:
        """Fails all records that have none."""

    def begin_epoch(self, producer_id: int, producer_epoch: int) -> None:
        """Numbers the next batches anew, with this id and epoch."""


class ProducerTransactions:
    """The transactions of one producer. Calls that end one are carried out one after the other,
    each for the transaction in which it was made."""

    def __init__(
        self, core: TransactionCore, records: ProducedRecords, calls: Calls, max_block_ms: float
    ) -> None:
        """`calls` makes the calls of a coordinator; `max_block_ms` is the default of timeouts."""
        self.core = core
        self._records = records
        self._calls = calls
        self._max_block_ms = max_block_ms
        self._coordinator = calls(core.transactional_id, group_pb2.TRANSACTION)
        self._groups: dict[str, CoordinatorCalls] = {}
        self._alone = asyncio.Lock()
        self._is_closed = False
        self._cut_off = 0  # the number of the transaction that `close` aborted

    async def init(self, timeout_ms: float | None, *, keep_open: bool = False) -> None:
        """Gets the producer's id, and fences earlier producers; does nothing if it has one."""
        async with self._turn():
            if self.core.state is not TransactionState.UNINITIALIZED:
                if self.core.state is TransactionState.FATAL_ERROR:
                    self.core.refuse()
                return
            answer = await self._coordinator.call(
                lambda: self.core.init_request(keep_open=keep_open),
                log_pb2.InitProducerIdResponse,
                _of_whole,
                self._limit_ms(timeout_ms),
            )
            if keep_open and not answer.keeps_open:
                raise UnsupportedVersionError(
                    f"the coordinator of {self.core.transactional_id} is too old to keep open"
                    " transactions: upgrade all brokers first"
                )
            self.core.initialized(answer)
            self._number_anew()

    def begin(self) -> None:
        self._check_open()
        self.core.begin()

    async def commit(self, timeout_ms: float | None = None) -> None:
        """See AsyncProducer.commit_transaction."""
        async with self._turn():
            await self._commit(timeout_ms)

    async def _commit(self, timeout_ms: float | None) -> None:
        core = self.core
        if core.state is not TransactionState.COMMITTING:
            core.begin_commit()
            try:
                await self._records.flush()
            except BaseException:
                core.give_up_flush()
                raise
        request = core.commit_request()
        if request is not None:
            await self._end(request, timeout_ms)

    async def hand_over(self) -> Identity | None:
        """See AsyncProducer.hand_over_transaction."""
        async with self._turn():
            self.core.begin_commit()
            try:
                await self._records.flush()
            except BaseException:
                self.core.give_up_flush()
                raise
            return self.core.handed_over()

    async def abort(self, timeout_ms: float | None = None) -> None:
        """See AsyncProducer.abort_transaction."""
        async with self._turn():
            await self._abort(timeout_ms)

    async def _abort(self, timeout_ms: float | None) -> None:
        self.core.begin_abort()
        self._records.drop(TransactionAbortedError("its transaction was aborted"))
        request = self.core.abort_request()
        if request is not None:
            await self._end(request, timeout_ms)

    async def _end(self, request: pb.EndTxnRequest, timeout_ms: float | None) -> None:
        try:
            answer = await self._coordinator.call(
                lambda: request, pb.EndTxnResponse, _of_whole, self._limit_ms(timeout_ms)
            )
        except Exception as error:
            told = self.core.not_ended(error)
            if told is error:
                raise
            raise told from error
        self.core.ended(answer)
        self._number_anew()

    async def send_offsets(
        self,
        offsets: Mapping[TopicPartition, OffsetAndMetadata],
        group: ConsumerGroupMetadata,
        timeout_ms: float | None,
    ) -> None:
        """See AsyncProducer.send_offsets_to_transaction."""
        async with self._turn():
            self.core.check_send()
            if not offsets:
                return
            if group.group_id not in self._groups:
                self._groups[group.group_id] = self._calls(group.group_id, group_pb2.GROUP)
            request = self._offsets_request(offsets, group)
            self.core.wrote()
            try:
                await self._groups[group.group_id].call(
                    lambda: request,
                    group_pb2.OffsetCommitResponse,
                    of_commit,
                    self._limit_ms(timeout_ms),
                )
            except Exception as error:
                told = self.core.offsets_failed(error)
                if told is error:
                    raise
                raise told from error
            except BaseException:
                text = "send_offsets_to_transaction() was interrupted: its outcome is not known"
                self.core.failed(TransactionAbortedError(text))
                raise

    def _offsets_request(
        self, offsets: Mapping[TopicPartition, OffsetAndMetadata], group: ConsumerGroupMetadata
    ) -> group_pb2.TxnOffsetCommitRequest:
        identity = self.core.identity
        assert identity is not None
        commit = commit_request(group.group_id, offsets)
        if group.member_id:
            commit.member_id, commit.member_epoch = group.member_id, group.member_epoch
        return group_pb2.TxnOffsetCommitRequest(
            transactional_id=self.core.transactional_id,
            producer_id=identity.producer_id,
            producer_epoch=identity.producer_epoch,
            offsets=commit,
        )

    @asynccontextmanager
    async def scope(self) -> AsyncIterator[None]:
        """See AsyncProducer.transaction."""
        await self.enter()
        try:
            yield
        except BaseException:
            await self.leave_after_error()
            raise
        await self.leave()

    async def enter(self) -> None:
        """Begins a transaction, after what has to be done before."""
        if self.core.state is TransactionState.UNINITIALIZED:
            await self.init(None)
        elif self.core.state in _TO_ABORT:
            await self.abort()
        self.begin()

    async def leave(self) -> None:
        """Commits, unless the caller ended the transaction. Aborts if that fails before anything
        was decided. Raises ClientClosedError if `close` of another task aborted it."""
        if self._cut_off == self.core.number:
            raise ClientClosedError("the producer was closed, which aborted the transaction")
        if self.core.state is not TransactionState.READY:
            try:
                await self.commit()
            except BaseException:
                await self.leave_after_error()
                raise

    async def leave_after_error(self) -> None:
        """Aborts what is open, for a limited time. Raises no error of it: the caller has one."""
        if self.core.state not in _OPEN:
            return
        # At once: a call of another task may hold the abort up.
        self.core.failed(TransactionAbortedError("its block ended with an error"))
        try:
            async with asyncio.timeout(_ABORT_S):
                await self.abort()
        except Exception as error:
            logger.warning(
                "%s: the transaction is not aborted yet; the next one will wait for it: %r",
                self.core.transactional_id,
                error,
            )

    async def close(self) -> None:
        """Aborts an open transaction. A commit that is in doubt is sent again, since its caller
        wanted it."""
        self._is_closed = True
        async with self._alone:
            try:
                if self.core.state is TransactionState.COMMITTING:
                    await self._commit(None)
                elif self.core.state in (*_OPEN, TransactionState.ABORTING):
                    self._cut_off = self.core.number
                    await self._abort(None)
            except Exception as error:
                logger.warning(
                    "%s: closed before the end of a transaction; if it is open, its coordinator"
                    " aborts it after transaction.timeout.ms: %r",
                    self.core.transactional_id,
                    error,
                )

    @asynccontextmanager
    async def _turn(self) -> AsyncIterator[None]:
        """Waits until no other call is under way. Raises IllegalStateError if the transaction is
        over by then, and another one has begun."""
        self._check_open()
        number = self.core.number
        async with self._alone:
            self._check_open()
            if self.core.number != number:
                raise IllegalStateError(
                    f"{self.core.transactional_id}: another task ended the transaction, and began"
                    " the next one: let one task end it"
                )
            yield

    def _number_anew(self) -> None:
        assert self.core.identity is not None
        self._records.begin_epoch(*self.core.identity)

    def _limit_ms(self, timeout_ms: float | None) -> float:
        return self._max_block_ms if timeout_ms is None else timeout_ms

    def _check_open(self) -> None:
        if self._is_closed:
            raise ClientClosedError("the producer is closed")


def _of_whole(answer: Any) -> Iterable[tuple[int, str]]:
    return ((answer.error_code, answer.error_message),)
