"""Administration of transactions (KIP-664, KIP-939): list, describe, find what hangs, end it."""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Iterable, Sequence
from random import Random
from typing import Any

from tidemark.client.connections import Connections
from tidemark.client.coordinators import CoordinatorCalls
from tidemark.client.metadata import METADATA, MetadataCache, monotonic_ms
from tidemark.client.models import (
    HangingTransaction,
    ProducerState,
    TransactionDescription,
    TransactionListing,
)
from tidemark.client.retry import RetryPolicy
from tidemark.client.transactions.leaders import PartitionLeaders
from tidemark.errors import (
    ApiError,
    ConcurrentTransactionsError,
    CoordinatorNotAvailableError,
    ErrorCode,
    InvalidRequestError,
    InvalidTxnStateError,
    TransactionalIdNotFoundError,
    UnknownServerError,
    raise_for,
)
from tidemark.surroundings import surroundings
from tidemark.types import TopicPartition
from tidemark.v1 import group_pb2, log_pb2
from tidemark.v1 import transaction_pb2 as pb

STATES = (
    "Empty",
    "Ongoing",
    "PrepareCommit",
    "PrepareAbort",
    "CompleteCommit",
    "CompleteAbort",
)
OPEN_STATES = frozenset({"Ongoing", "PrepareCommit", "PrepareAbort"})
"""A transaction has begun, and not all of its partitions know the end."""
MAX_TRANSACTION_TIMEOUT_MS = 900_000
"""Kafka's default of transaction.max.timeout.ms."""

_LIST = "/tidemark.v1.Transactions/ListTransactions"
_TOPIC = "__transaction_state"
# Of a producer that is only fenced: it ends with the next one's InitProducerId. The least value is
# below every transaction.max.timeout.ms.
_LEAST_TIMEOUT_MS = 1

Coordinators = dict[int, tuple[int, int]]
# Named here, because `list` is a method below.
Listings = list[TransactionListing]
Hanging = list[HangingTransaction]
Descriptions = list[TransactionDescription]


class AsyncTransactionAdmin:
    """The transactions of a cluster; `AsyncAdmin.transactions`. Retriable errors are raised only
    after the default timeout."""

    def __init__(
        self, connections: Connections, metadata: MetadataCache, retry: RetryPolicy, rng: Random
    ) -> None:
        self._connections = connections
        self._metadata = metadata
        self._retry = retry
        self._rng = rng
        self._leaders = PartitionLeaders(connections, metadata, retry, rng)

    def _calls(self, transactional_id: str) -> CoordinatorCalls:
        return CoordinatorCalls(
            transactional_id,
            group_pb2.TRANSACTION,
            self._connections,
            self._metadata,
            self._retry,
            self._rng,
        )

    # --- transactional ids

    async def list(
        self,
        *,
        states: Iterable[str] = (),
        producer_ids: Iterable[int] = (),
        older_than_ms: int | None = None,
        pattern: str = "",
    ) -> Listings:
        """The transactional ids of all live brokers, by id, that pass all filters.

        `states` are names of `STATES`, in any case; `older_than_ms` leaves transactions that are
        open for longer, `pattern` ids that match as a whole (RE2). Those of a partition of
        __transaction_state without a leader are missing. Raises InvalidRequestError for a state
        that no broker knows, InvalidRegularExpressionError.
        """
        request = pb.ListTransactionsRequest(
            state_filters=_states(states),
            producer_id_filters=producer_ids,
            duration_filter_ms=-1 if older_than_ms is None else max(1, older_than_ms),
            transactional_id_pattern=pattern,
        )
        return await self._list(request)

    async def _list(
        self, request: pb.ListTransactionsRequest, needed: Collection[int] = ()
    ) -> Listings:
        """Asks all live brokers. Raises CoordinatorNotAvailableError if one that is `needed` is
        none of them."""
        await self._metadata.refresh()
        brokers = sorted(self._metadata.brokers)
        if missing := sorted(set(needed).difference(brokers)):
            raise CoordinatorNotAvailableError(f"broker {missing[0]} is not known to be alive")
        answers = await asyncio.gather(
            *(self._list_of(each, request, each in needed) for each in brokers)
        )
        found = {listed.transactional_id: listed for answer in answers for listed in answer}
        return [found[transactional_id] for transactional_id in sorted(found)]

    async def _list_of(
        self, broker_id: int, request: pb.ListTransactionsRequest, is_needed: bool
    ) -> Listings:
        tries, started_ms = 0, monotonic_ms()
        while True:
            tries += 1
            address = self._metadata.address(broker_id)
            if address is None and not is_needed:
                return []  # it stopped: others coordinate its transactions by now
            try:
                if address is None:
                    raise CoordinatorNotAvailableError(f"broker {broker_id} stopped")
                answer = await self._connections.call(
                    address, _LIST, request, pb.ListTransactionsResponse.FromString
                )
                raise_for(answer.error_code, answer.error_message)
                if answer.unknown_state_filters:
                    raise InvalidRequestError(
                        f"there is no state {answer.unknown_state_filters[0]!r}: say one of"
                        f" {', '.join(STATES)}"
                    )
            except ApiError as error:
                elapsed_ms = monotonic_ms() - started_ms
                wait_ms = self._retry.next_wait_ms(error, tries, elapsed_ms, self._rng)
                if wait_ms is None:
                    raise
                await asyncio.sleep(wait_ms / 1000)
                await self._metadata.refresh()
                continue
            return [
                TransactionListing(
                    found.transactional_id, broker_id, found.producer_id, found.transaction_state
                )
                for found in answer.transactions
            ]

    async def describe(self, transactional_ids: Sequence[str]) -> dict[str, TransactionDescription]:
        """Transactional ids with their transactions. Raises TransactionalIdNotFoundError."""
        answers = await asyncio.gather(*(self._describe(each) for each in transactional_ids))
        return {found.transactional_id: found for found in answers}

    async def _describe(self, transactional_id: str) -> TransactionDescription:
        request = pb.DescribeTransactionsRequest(transactional_ids=[transactional_id])
        answer = await self._calls(transactional_id).call(
            lambda: request,
            pb.DescribeTransactionsResponse,
            lambda found: ((each.error_code, each.error_message) for each in found.transactions),
        )
        if not answer.transactions:
            raise UnknownServerError(f"the answer says nothing of {transactional_id}")
        return _described(answer.transactions[0])

    async def force_terminate(self, transactional_id: str, *, lose_prepared: bool = False) -> None:
        """Fences the producer of a transactional id, and aborts its open transaction (KIP-939).

        Returns when all partitions are told. The producer fails with ProducerFencedError, or the
        like, at its next request. One that is prepared is aborted with `lose_prepared` only: who
        prepared it may have decided to commit it, and finds that it is lost. Raises
        InvalidTxnStateError otherwise, and TransactionalIdNotFoundError. Raises
        ConcurrentTransactionsError if a partition could not be told in time: the outcome stands,
        and the coordinator goes on to tell it.
        """
        found = await self._describe(transactional_id)  # and no id that is not there is made
        if found.state == "Ongoing":
            await self._abort_open(found, lose_prepared)
        found = await self._ended(transactional_id)
        if not (found.state == "CompleteAbort" and found.is_prepared):  # that is the mark of a loss
            await self._fence(transactional_id)

    async def _ended(self, transactional_id: str) -> TransactionDescription:
        """Waits until all partitions are told. Raises ConcurrentTransactionsError."""
        started_ms, tries = monotonic_ms(), 0
        while (found := await self._describe(transactional_id)).state in OPEN_STATES:
            tries += 1
            error = ConcurrentTransactionsError(
                f"the transaction of {transactional_id} has its outcome, and not all partitions"
                " are told yet"
            )
            elapsed_ms = monotonic_ms() - started_ms
            wait_ms = self._retry.next_wait_ms(error, tries, elapsed_ms, self._rng)
            if wait_ms is None:
                raise error
            await asyncio.sleep(wait_ms / 1000)
        return found

    async def _abort_open(self, found: TransactionDescription, lose_prepared: bool) -> None:
        identity = (found.transactional_id, found.producer_id, found.producer_epoch)
        try:
            await self._end(*identity, False, keep_prepared=not lose_prepared, by_force=True)
        except InvalidTxnStateError:
            still = await self._describe(found.transactional_id)
            if not (still.state == "Ongoing" and still.is_prepared):
                raise
            raise InvalidTxnStateError(
                f"the transaction of {found.transactional_id} is prepared: who prepared it may have"
                " decided to commit it, and an abort would lose its records. A job of Spark ends it"
                " with its next batch, or `tidemark transactions recover-sink` does. To abort it"
                " nevertheless, use --lose-prepared"
            ) from None

    async def _fence(self, transactional_id: str) -> None:
        request = log_pb2.InitProducerIdRequest(
            transactional_id=transactional_id,
            transaction_timeout_ms=_LEAST_TIMEOUT_MS,
            producer_id=-1,
            producer_epoch=-1,
            keep_open=True,  # one that has begun meanwhile
        )
        await self._calls(transactional_id).call(
            lambda: request,
            log_pb2.InitProducerIdResponse,
            _of_whole,
        )

    async def prepare(self, transactional_id: str, producer_id: int, producer_epoch: int) -> None:
        """Has an open transaction wait for its end without a timeout; idempotent (KIP-939).

        Raises InvalidTxnStateError if none is open, ProducerFencedError,
        InvalidProducerIdMappingError, and UnsupportedVersionError if
        transaction.two.phase.commit.enable is false.
        """
        request = pb.PrepareTxnRequest(
            transactional_id=transactional_id,
            producer_id=producer_id,
            producer_epoch=producer_epoch,
        )
        await self._calls(transactional_id).call(lambda: request, pb.PrepareTxnResponse, _of_whole)

    async def end(
        self,
        transactional_id: str,
        producer_id: int,
        producer_epoch: int,
        *,
        committed: bool,
        keep_prepared: bool = False,
    ) -> None:
        """Ends a transaction for its producer, which has handed it over; idempotent.

        Returns when the outcome stands; partitions are told after that. Raises InvalidTxnStateError
        if the outcome was the other one, or with `keep_prepared` if it is prepared. Raises
        ProducerFencedError, and InvalidProducerIdMappingError if the id is another producer's or
        has expired.
        """
        await self._end(
            transactional_id, producer_id, producer_epoch, committed, keep_prepared=keep_prepared
        )

    async def _end(
        self,
        transactional_id: str,
        producer_id: int,
        producer_epoch: int,
        committed: bool,
        *,
        keep_prepared: bool = False,
        by_force: bool = False,
    ) -> None:
        request = pb.EndTxnRequest(
            transactional_id=transactional_id,
            producer_id=producer_id,
            producer_epoch=producer_epoch,
            committed=committed,
            keep_prepared=keep_prepared,
            by_force=by_force,
        )
        await self._calls(transactional_id).call(lambda: request, pb.EndTxnResponse, _of_whole)

    # --- partitions

    async def describe_producers(
        self, partitions: Iterable[TopicPartition]
    ) -> dict[TopicPartition, tuple[ProducerState, ...]]:
        """The producers that the leader of each partition knows, by id (KIP-664). Raises
        UnknownTopicOrPartitionError."""
        return await self._leaders.producers(partitions)

    async def abort(
        self,
        partition: TopicPartition,
        producer_id: int,
        producer_epoch: int,
        coordinator_epoch: int,
        *,
        force: bool = False,
    ) -> None:
        """Writes an abort marker that ends a hanging transaction in one partition (KIP-664).

        Takes the producer's id, epoch and coordinator epoch (0 if None) of `describe_producers`.
        Raises InvalidTxnStateError if a coordinator will end the transaction: with `force` one
        transaction may be committed in the other partitions. Raises CoordinatorNotAvailableError
        if not all coordinators could be asked, InvalidProducerEpochError,
        TransactionCoordinatorFencedError and UnknownTopicOrPartitionError.
        """
        if not force:
            owner = await self.open_transaction(partition, producer_id)
            if owner is not None:
                raise InvalidTxnStateError(
                    f"the transaction of {owner.transactional_id!r} is open ({owner.state}) and has"
                    f" {partition} in it: its coordinator will end it everywhere, and an abort here"
                    " alone would tear it. End all of it with force_terminate (`tidemark"
                    f" transactions force-terminate --transactional-id {owner.transactional_id}`)"
                )
        await self._leaders.abort(partition, producer_id, producer_epoch, coordinator_epoch)

    async def open_transaction(
        self, partition: TopicPartition, producer_id: int
    ) -> TransactionDescription | None:
        """The transaction of a producer that its coordinator has open, with this partition in it.

        Raises CoordinatorNotAvailableError if not all coordinators could be asked.
        """
        for found in await self._open_of({producer_id}):
            if partition in found.partitions:
                return found
        return None

    async def find_hanging(
        self,
        partitions: Iterable[TopicPartition],
        max_transaction_timeout_ms: int = MAX_TRANSACTION_TIMEOUT_MS,
    ) -> Hanging:
        """Transactions of these partitions that no coordinator will end (KIP-664).

        Those are open at the leader, and their last record is older than the limit, by its
        timestamp. No coordinator has them open with the partition. Raises
        CoordinatorNotAvailableError if not all coordinators could be asked,
        UnknownTopicOrPartitionError.
        """
        now_ms = surroundings().wall_ms()
        suspects = {
            HangingTransaction(partition, producer)
            for partition, producers in (await self.describe_producers(partitions)).items()
            for producer in producers
            if producer.txn_start_offset is not None
            and now_ms - producer.last_timestamp_ms > max_transaction_timeout_ms
        }
        if not suspects:
            return []
        known = {
            (partition, found.producer_id)
            for found in await self._open_of({each.producer.producer_id for each in suspects})
            for partition in found.partitions
        }
        suspects = {
            each
            for each in suspects
            if (each.topic_partition, each.producer.producer_id) not in known
        }
        # A transaction may have ended before its coordinator was asked.
        still = await self.describe_producers({each.topic_partition for each in suspects})
        hanging = (each for each in suspects if _is_open(each, still[each.topic_partition]))
        return sorted(hanging, key=lambda e: (e.topic_partition, e.producer.producer_id))

    async def _open_of(self, producer_ids: Collection[int]) -> Descriptions:
        """The open transactions of producers."""
        found: Descriptions = []
        for listed in await self._list_all(producer_ids):
            try:
                described = await self._describe(listed.transactional_id)
            except TransactionalIdNotFoundError:
                continue  # it has expired, and has no transaction therefore
            if described.state in OPEN_STATES and described.producer_id in producer_ids:
                found.append(described)
        return found

    async def _list_all(self, producer_ids: Iterable[int]) -> Listings:
        """As `list`, but none is missing: a coordinator that moves meanwhile is asked again.

        Raises CoordinatorNotAvailableError while a coordinator is missing.
        """
        tries, started_ms = 0, monotonic_ms()
        while True:
            tries += 1
            try:
                before = await self._coordinators()
                request = pb.ListTransactionsRequest(
                    producer_id_filters=producer_ids, duration_filter_ms=-1
                )
                found = await self._list(request, {leader for leader, _ in before.values()})
                if before == await self._coordinators():
                    return found
                raise CoordinatorNotAvailableError("coordinators moved while they were asked")
            except ApiError as error:
                elapsed_ms = monotonic_ms() - started_ms
                wait_ms = self._retry.next_wait_ms(error, tries, elapsed_ms, self._rng)
                if wait_ms is None:
                    raise
                await asyncio.sleep(wait_ms / 1000)

    async def _coordinators(self) -> Coordinators:
        """The broker that coordinates each partition of __transaction_state, and its epoch; none if
        there is no such topic."""
        request = log_pb2.MetadataRequest(topics=[_TOPIC])
        node = self._metadata.candidates()[0]
        answer = await self._connections.call(
            node, METADATA, request, log_pb2.MetadataResponse.FromString
        )
        live = {broker.node_id for broker in answer.brokers}
        found: Coordinators = {}
        for topic in answer.topics:
            if int(topic.error_code) == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
                continue
            raise_for(topic.error_code, f"topic {_TOPIC}")
            for partition in topic.partitions:
                if partition.leader_id not in live:
                    raise CoordinatorNotAvailableError(
                        f"partition {partition.partition_index} of {_TOPIC} has no leader: what it"
                        " knows of open transactions can not be asked now; bring a broker of it"
                        " back"
                    )
                found[partition.partition_index] = (partition.leader_id, partition.leader_epoch)
        return found


def _of_whole(answer: Any) -> Iterable[tuple[int, str]]:
    return ((answer.error_code, answer.error_message),)


def _states(names: Iterable[str]) -> list[str]:
    """The names as brokers write them; an unknown one as it is."""
    canonical = {state.lower(): state for state in STATES}
    return [canonical.get(name.lower(), name) for name in names]


def _is_open(found: HangingTransaction, producers: Iterable[ProducerState]) -> bool:
    wanted = found.producer
    return any(
        (each.producer_id, each.txn_start_offset) == (wanted.producer_id, wanted.txn_start_offset)
        for each in producers
    )


def _described(message: pb.DescribeTransactionsResponse.Description) -> TransactionDescription:
    start_ms = message.transaction_start_time_ms
    is_open = start_ms >= 0 and message.transaction_state in OPEN_STATES
    return TransactionDescription(
        message.transactional_id,
        message.producer_id,
        message.producer_epoch,
        message.transaction_state,
        message.transaction_timeout_ms,
        start_ms if is_open else None,
        message.transaction_last_update_time_ms,
        tuple(
            TopicPartition(topic.name, number)
            for topic in message.topics
            for number in topic.partitions
        ),
    )
