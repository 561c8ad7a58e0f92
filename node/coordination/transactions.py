"""The transaction coordinator of a broker: the partitions of `__transaction_state` that it leads.

It answers EndTxn, PrepareTxn, the transactional InitProducerId and those who look, and to leaders
of partitions AddPartitionsToTxn. Who comes while the last transaction is being ended waits for that
for a moment: the outcome stands already, and markers are under way.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

import grpc.aio
from google.protobuf.message import Message

from coordinator.groups.subscription import compiled_pattern
from coordinator.records.transactions import (
    TRANSACTION_RECORDS,
    TransactionLogValue,
    TransactionState,
)
from coordinator.runtime.now import Now
from coordinator.runtime.result import CoordinatorResult
from coordinator.runtime.runtime import CoordinatorRuntime
from coordinator.transactions.shard import TransactionSettings, TransactionShard
from coordinator.transactions.transaction import PREPARED, ProducerIdAndEpoch
from node.coordination.internal_topics import CoordinatorTopic, InternalTopic
from node.coordination.marker_sender import MarkerSender, state_name, unknown_partitions
from node.coordination.marker_writer import MarkerWriter
from node.coordination.peers import BrokerPeers
from node.coordination.serving import check_key_count, failed, serve_methods
from node.coordination.verification import MARKERS, partitions_in
from node.runtime.clock import Clock
from node.runtime.tasks import OnFatal
from node.serving.producer_ids import ProducerIdManager
from node.serving.throttling import Throttling
from quorum.services.admin_service import ImageSource
from quorum.services.serving import Context
from tidemark.config import ServerConfig
from tidemark.errors import (
    ApiError,
    ConcurrentTransactionsError,
    CoordinatorLoadInProgressError,
    InvalidTxnStateError,
    UnknownTopicOrPartitionError,
)
from tidemark.types import TRANSACTION_TOPIC
from tidemark.v1 import log_pb2
from tidemark.v1 import transaction_pb2 as pb

A = TypeVar("A")

TRANSACTIONS = pb.DESCRIPTOR.services_by_name["Transactions"]
_PATIENCE_S = 2.0
"""The longest wait for the markers of the last transaction; then CONCURRENT_TRANSACTIONS."""


class _NeedsProducerId(Exception):
    """The decision needs an id, which the controller has to be asked for."""


def settings_of(config: ServerConfig) -> TransactionSettings:
    """The transaction coordinator's part of the broker's settings."""
    interval_ms = config.transaction_remove_expired_transaction_cleanup_interval_ms
    return TransactionSettings(
        transaction_max_timeout_ms=config.transaction_max_timeout_ms,
        transactional_id_expiration_ms=config.transactional_id_expiration_ms,
        remove_expired_interval_ms=interval_ms,
        two_phase_commit_enable=config.transaction_two_phase_commit_enable,
    )


def transaction_topic(config: ServerConfig) -> InternalTopic:
    """The topic as it is made at its first use. No unclean leader: it would forget outcomes."""
    return InternalTopic(
        TRANSACTION_TOPIC,
        config.transaction_state_log_num_partitions,
        config.transaction_state_log_replication_factor,
        {
            "cleanup.policy": "compact",
            "compression.type": "uncompressed",
            "min.insync.replicas": str(config.transaction_state_log_min_isr),
            "segment.bytes": str(config.transaction_state_log_segment_bytes),
            "unclean.leader.election.enable": "false",
        },
    )


class TransactionCoordinator:
    """One per broker: the services Transactions and TransactionMarkers."""

    def __init__(
        self,
        config: ServerConfig,
        images: ImageSource,
        topic: CoordinatorTopic,
        producer_ids: ProducerIdManager,
        peers: BrokerPeers,
        clock: Clock,
        throttling: Throttling,
        on_fatal: OnFatal,
    ) -> None:
        self._images = images
        self._topic = topic
        self._producer_ids = producer_ids
        self._spare_ids: list[int] = []
        self._peers = peers
        self._clock = clock
        self._throttling = throttling
        settings = settings_of(config)
        self._markers = MarkerSender(lambda: self.runtime, images, peers, self._now, on_fatal)
        self.runtime: CoordinatorRuntime[TransactionShard] = CoordinatorRuntime(
            TRANSACTION_TOPIC,
            TRANSACTION_RECORDS,
            lambda: TransactionShard(settings),
            self._now,
            config.offsets_commit_timeout_ms,
            self._markers.changed,
        )
        self._methods: dict[str, Callable[[Any, Context, str], Awaitable[Message]]] = {}

    def serves(self, writer: MarkerWriter) -> None:
        """`writer` answers what is about partitions that this broker leads."""

        async def describe_producers(request: pb.DescribeProducersRequest) -> Message:
            return writer.describe(request.topics)

        for name, method in {
            "EndTxn": self._end_txn,
            "PrepareTxn": self._prepare_txn,
            "ListTransactions": self._list,
            "DescribeTransactions": self._describe,
            "DescribeProducers": describe_producers,
            "AddPartitionsToTxn": self.add_partitions,
            "WriteTxnMarkers": writer.write,
        }.items():
            self._methods[name] = _alone(method)
        self._peers.serve(f"/{MARKERS.full_name}/AddPartitionsToTxn", self.add_partitions)
        self._peers.serve(f"/{MARKERS.full_name}/WriteTxnMarkers", writer.write)

    def add_to(self, server: grpc.aio.Server, listener: str, *, serves_nodes: bool) -> None:
        """Serves Transactions on a listener; with `serves_nodes` TransactionMarkers, too."""
        for service in (TRANSACTIONS, MARKERS) if serves_nodes else (TRANSACTIONS,):
            serve_methods(server, listener, service, self._methods, self._throttling)

    async def stop(self) -> None:
        """Drops all partitions, and ends the markers under way."""
        self.runtime.stop()
        await self._markers.stop()

    def _now(self) -> Now:
        return Now(self._clock.wall_ms(), self._clock.mono_ms())

    # --- decisions

    async def _write(
        self,
        transactional_id: str,
        decide: Callable[[TransactionShard, Now], CoordinatorResult[A]],
    ) -> A:
        """Decides; waits for a moment where the last transaction is being ended."""
        loop = asyncio.get_running_loop()
        deadline = loop.time() + _PATIENCE_S
        partition = self._topic.partition_of(transactional_id)
        while True:
            try:
                return await self.runtime.write(partition, lambda shard: decide(shard, self._now()))
            except _NeedsProducerId:
                self._spare_ids.append(await self._producer_ids.generate())
            except ConcurrentTransactionsError:
                left_s = deadline - loop.time()
                if left_s <= 0:
                    raise
                await self._markers.until_ended(transactional_id, left_s)

    def _new_producer_id(self) -> int:
        if not self._spare_ids:
            raise _NeedsProducerId
        return self._spare_ids.pop()

    async def init_producer_id(
        self, request: log_pb2.InitProducerIdRequest
    ) -> log_pb2.InitProducerIdResponse:
        """Begins a producer, or has it go on after an error. Raises what
        `TransactionShard.init_producer_id` raises, and errors of the coordinator's runtime."""
        transactional_id = request.transactional_id
        expected = None
        named = request.HasField("producer_id") and request.HasField("producer_epoch")
        if named and request.producer_id >= 0 and request.producer_epoch >= 0:
            expected = ProducerIdAndEpoch(request.producer_id, request.producer_epoch)

        def decide(
            shard: TransactionShard, now: Now
        ) -> CoordinatorResult[ProducerIdAndEpoch | None]:
            return shard.init_producer_id(
                transactional_id,
                request.transaction_timeout_ms,
                expected,
                self._new_producer_id,
                now,
                keep_open=request.keep_open,
            )

        try:
            producer = await self._write(transactional_id, decide)
        except ConcurrentTransactionsError as error:
            if not request.keep_open:
                raise
            raise InvalidTxnStateError(str(error)) from error  # its caller takes another id
        if producer is None:  # the open transaction of the producer before is being aborted
            producer = await self._write(transactional_id, decide)
        if producer is None:
            raise ConcurrentTransactionsError(f"{transactional_id}: try again")
        return log_pb2.InitProducerIdResponse(
            producer_id=producer.producer_id,
            producer_epoch=producer.producer_epoch,
            keeps_open=request.keep_open,
        )

    async def _end_txn(self, request: pb.EndTxnRequest) -> pb.EndTxnResponse:
        producer = _producer(request)
        following = await self._write(
            request.transactional_id,
            lambda shard, now: shard.end_txn(
                request.transactional_id,
                producer,
                request.committed,
                self._new_producer_id,
                now,
                keep_prepared=request.keep_prepared,
                by_force=request.by_force,
            ),
        )
        return pb.EndTxnResponse(
            producer_id=following.producer_id, producer_epoch=following.producer_epoch
        )

    async def _prepare_txn(self, request: pb.PrepareTxnRequest) -> pb.PrepareTxnResponse:
        producer = _producer(request)
        await self._write(
            request.transactional_id,
            lambda shard, now: shard.prepare_txn(request.transactional_id, producer, now),
        )
        return pb.PrepareTxnResponse()

    async def add_partitions(
        self, request: pb.AddPartitionsToTxnRequest
    ) -> pb.AddPartitionsToTxnResponse:
        """Adds the partitions of each transaction, or answers why not."""
        check_key_count(request.transactions, "transactions")
        results = await asyncio.gather(*map(self._add, request.transactions))
        return pb.AddPartitionsToTxnResponse(results=results)

    async def _add(
        self, transaction: pb.AddPartitionsToTxnRequest.Transaction
    ) -> pb.AddPartitionsToTxnResponse.Result:
        result = pb.AddPartitionsToTxnResponse.Result()
        partitions = frozenset(partitions_in(transaction.topics))
        try:
            # A later absence in the metadata then means that the topic was deleted.
            for unknown in unknown_partitions(transaction.topics, self._images.image):
                raise UnknownTopicOrPartitionError(
                    f"the coordinator does not know {unknown}, or not yet"
                )
            await self._write(
                transaction.transactional_id,
                lambda shard, now: shard.add_partitions(
                    transaction.transactional_id, _producer(transaction), partitions, now
                ),
            )
        except ApiError as error:
            failed(result, error)
        return result

    # --- looking

    async def _list(self, request: pb.ListTransactionsRequest) -> pb.ListTransactionsResponse:
        if self.runtime.is_loading:
            raise CoordinatorLoadInProgressError()
        by_name = {state_name(state): state for state in TransactionState}
        known = [by_name[name] for name in request.state_filters if name in by_name]
        answer = pb.ListTransactionsResponse(
            unknown_state_filters=[n for n in request.state_filters if n not in by_name]
        )
        if request.state_filters and not known:
            return answer
        text = request.transactional_id_pattern
        pattern = compiled_pattern(text) if text else None
        older_than_ms = request.duration_filter_ms if request.duration_filter_ms > 0 else -1
        now = self._now()
        for _, shard in self.runtime.shards():
            for transactional_id, state in shard.list_transactions(
                now, known, request.producer_id_filters, older_than_ms
            ):
                if pattern is None or pattern.fullmatch(transactional_id) is not None:
                    answer.transactions.add(
                        transactional_id=transactional_id,
                        producer_id=state.producer_id,
                        transaction_state=state_name(state.transaction_status),
                    )
        answer.transactions.sort(key=lambda found: found.transactional_id)
        return answer

    async def _describe(
        self, request: pb.DescribeTransactionsRequest
    ) -> pb.DescribeTransactionsResponse:
        check_key_count(request.transactional_ids, "transactional ids")
        answer = pb.DescribeTransactionsResponse()
        for transactional_id in request.transactional_ids:
            found = answer.transactions.add(transactional_id=transactional_id)
            try:
                partition = self._topic.partition_of(transactional_id)
                state = await self.runtime.read(partition, _describing(transactional_id))
                _fill(found, state)
            except ApiError as error:
                failed(found, error)
        return answer


def _alone(method: Any) -> Callable[..., Awaitable[Message]]:
    """A method that needs the request alone."""

    async def call(request: Any, context: Context, listener: str) -> Message:
        answer: Message = await method(request)
        return answer

    return call


def _producer(request: Any) -> ProducerIdAndEpoch:
    return ProducerIdAndEpoch(request.producer_id, request.producer_epoch)


def _describing(transactional_id: str) -> Callable[[TransactionShard], TransactionLogValue]:
    return lambda shard: shard.describe(transactional_id)


def _fill(found: pb.DescribeTransactionsResponse.Description, state: TransactionLogValue) -> None:
    found.transaction_state = state_name(state.transaction_status)
    found.transaction_timeout_ms = state.transaction_timeout_ms
    is_open = state.transaction_status in (TransactionState.ONGOING, *PREPARED)
    found.transaction_start_time_ms = state.transaction_start_timestamp_ms if is_open else -1
    found.transaction_last_update_time_ms = state.transaction_last_update_timestamp_ms
    found.producer_id = state.producer_id
    found.producer_epoch = state.producer_epoch
    for topic in state.transaction_partitions or ():
        found.topics.add(name=topic.topic, partitions=topic.partition_ids)
