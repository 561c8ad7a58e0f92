"""A transactional producer of generated stubs, as a client in another language has it.

It has several batches of a partition on their way, repeats requests whose answers are lost, and
gives up after a while. It does not know the client library's rules.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

import grpc.aio

from tests.sim.transactions.ledger import TransactionViolation
from tidemark.client import AsyncConsumer
from tidemark.client.groups.requests import commit_request, of_commit
from tidemark.client.models import OffsetAndMetadata
from tidemark.errors import (
    ApiError,
    InvalidProducerIdMappingError,
    InvalidTxnStateError,
    NetworkError,
    OutOfOrderSequenceNumberError,
    ProducerFencedError,
    raise_for,
)
from tidemark.records import Record, encode_batch
from tidemark.testing import Cluster
from tidemark.types import TopicPartition
from tidemark.v1 import group_pb2, log_pb2
from tidemark.v1 import transaction_pb2 as pb
from tidemark.wire.network import Channels
from tidemark.wire.rpcs import Rpc, rpcs_of

_CALL_S = 3.0
_PATIENCE_S = 15.0
_PAUSE_S = 0.1
_NOW_MS = 1_767_225_600_000  # at which simulations begin
_RPCS: dict[str, Rpc] = {
    rpc.name: rpc
    for file, service in ((log_pb2, "Log"), (group_pb2, "Groups"), (pb, "Transactions"))
    for rpc in rpcs_of(file.DESCRIPTOR.services_by_name[service])
}


class NotCommittedError(Exception):
    """A commit was refused for good: the transaction is or will be aborted."""


class Caller:
    """Calls of nodes, with a channel for each node."""

    def __init__(self, cluster: Cluster) -> None:
        self.cluster = cluster
        self._channels: dict[int, Any] = {}
        self._coordinators: dict[tuple[str, int], int] = {}

    async def call(self, node_id: int, request: Any) -> Any:
        """The answer of a node. Raises NetworkError."""
        rpc = _RPCS[request.DESCRIPTOR.name.removesuffix("Request")]
        channel = self._channels.get(node_id)
        if channel is None:
            channel = self._channels[node_id] = Channels().open(f"node-{node_id}:9092")
        ask = channel.unary_unary(
            rpc.path,
            request_serializer=rpc.request.SerializeToString,
            response_deserializer=rpc.response.FromString,
        )
        try:
            return await ask(request, timeout=_CALL_S)
        except grpc.aio.AioRpcError as error:
            raise NetworkError(f"node {node_id}: {error.details()}") from error

    async def coordinator(self, key: str, kind: int = group_pb2.TRANSACTION) -> int:
        """The node that coordinates a transactional id, or a group, as far as it is known."""
        known = self._coordinators.get((key, kind))
        if known is not None:
            return known
        request = group_pb2.FindCoordinatorRequest(
            key_type=kind,  # type: ignore[arg-type]
            coordinator_keys=[key],
        )
        running = [node.node_id for node in self.cluster.brokers if node.server is not None]
        if not running:
            raise NetworkError("no broker runs")
        (found,) = (await self.call(self.cluster.rng.choice(running), request)).coordinators
        raise_for(found.error_code, found.error_message)
        node_id: int = found.node_id
        self._coordinators[key, kind] = node_id
        return node_id

    async def coordinated(self, key: str, request: Any, kind: int = group_pb2.TRANSACTION) -> Any:
        """The answer of a coordinator, tried once; raises its error."""
        try:
            answer = await self.call(await self.coordinator(key, kind), request)
            if "error_code" in answer.DESCRIPTOR.fields_by_name:
                raise_for(answer.error_code, answer.error_message)
        except ApiError:
            self._coordinators.pop((key, kind), None)
            raise
        return answer

    async def repeated(
        self, attempt: Callable[[], Awaitable[Any]], *also: type[ApiError], for_s: float
    ) -> Any:
        """The answer of an attempt, repeated after errors that are retriable, or of a type of
        `also`."""
        loop = asyncio.get_running_loop()
        deadline = loop.time() + for_s
        while True:
            try:
                return await attempt()
            except ApiError as error:
                if not (error.retriable or isinstance(error, also)) or loop.time() > deadline:
                    raise
            await asyncio.sleep(_PAUSE_S)

    def forget(self) -> None:
        """Has all coordinators found again."""
        self._coordinators.clear()

    async def close(self) -> None:
        for channel in self._channels.values():
            await channel.close(None)
        self._channels.clear()


class Stranger:
    """A producer with a transactional id."""

    def __init__(self, cluster: Cluster, transactional_id: str, timeout_ms: int) -> None:
        self._caller = Caller(cluster)
        self._cluster = cluster
        self._id = transactional_id
        self._timeout_ms = timeout_ms
        self.producer_id = -1
        self.epoch = -1
        self._sequences: dict[TopicPartition, int] = {}

    async def init(self) -> None:
        """Fences earlier producers."""
        request = log_pb2.InitProducerIdRequest(
            transactional_id=self._id,
            transaction_timeout_ms=self._timeout_ms,
            producer_id=-1,
            producer_epoch=-1,
        )
        self._become(
            await self._caller.repeated(
                lambda: self._caller.coordinated(self._id, request), for_s=_PATIENCE_S
            )
        )

    def begin(self) -> None:
        """Nothing: the first record begins a transaction."""

    async def send(self, partition: TopicPartition, values: list[bytes]) -> None:
        """Returns when a batch is appended by all in-sync replicas."""
        sequence = self._sequences.get(partition, 0)
        self._sequences[partition] = sequence + len(values)
        request = log_pb2.ProduceRequest(acks=-1, timeout_ms=2_000, transactional_id=self._id)
        request.partition_data.add(
            topic=partition.topic,
            index=partition.partition,
            records=encode_batch(
                [Record(0, _NOW_MS, None, value) for value in values],
                producer_id=self.producer_id,
                producer_epoch=self.epoch,
                base_sequence=sequence,
                transactional=True,
            ),
        )

        async def attempt() -> None:
            leader = self._cluster.leader(*partition)
            if leader is None:
                raise NetworkError(f"{partition} has no leader")
            (found,) = (await self._caller.call(leader, request)).responses
            raise_for(found.error_code, found.error_message)

        await self._caller.repeated(attempt, OutOfOrderSequenceNumberError, for_s=_PATIENCE_S / 2)

    async def send_offsets(self, offsets: Mapping[TopicPartition, int], of: AsyncConsumer) -> None:
        """Commits offsets of a member's group in the transaction."""
        member = of._member
        assert member is not None
        settings = member.core.settings
        request = group_pb2.TxnOffsetCommitRequest(
            transactional_id=self._id, producer_id=self.producer_id, producer_epoch=self.epoch
        )
        found = {p: OffsetAndMetadata(offset) for p, offset in offsets.items()}
        commit = commit_request(settings.group_id, found, member.core.owned)
        commit.member_id = settings.member_id
        commit.member_epoch = member.core.epoch
        request.offsets.CopyFrom(commit)

        async def attempt() -> None:
            answer = await self._caller.coordinated(settings.group_id, request, group_pb2.GROUP)
            for code, message in of_commit(answer):
                raise_for(code, message)

        await self._caller.repeated(attempt, for_s=_PATIENCE_S / 2)

    async def commit(self) -> None:
        """Raises NotCommittedError, and other errors if the outcome is not known."""
        try:
            await self._end(True)
        except InvalidTxnStateError as error:
            raise NotCommittedError(str(error)) from error

    async def abort(self) -> None:
        """Raises TransactionViolation if the coordinator says that it was committed."""
        try:
            await self._end(False)
        except InvalidTxnStateError as error:
            raise TransactionViolation(f"a transaction has two outcomes: {error}") from error

    async def _end(self, committed: bool) -> None:
        request = self._end_request(committed)
        tries = 0

        async def attempt() -> Any:
            nonlocal tries
            tries += 1
            return await self._caller.coordinated(self._id, request)

        try:
            answer = await self._caller.repeated(attempt, for_s=_PATIENCE_S)
        except (ProducerFencedError, InvalidProducerIdMappingError) as error:
            if tries == 1 and committed:
                raise NotCommittedError(str(error)) from error
            raise
        self._become(answer)

    def _end_request(self, committed: bool) -> pb.EndTxnRequest:
        return pb.EndTxnRequest(
            transactional_id=self._id,
            producer_id=self.producer_id,
            producer_epoch=self.epoch,
            committed=committed,
        )

    async def change_of_mind(self, committed: bool, after: Callable[[], Awaitable[None]]) -> None:
        """Ends a transaction by `after`, and asks for the other outcome then. Raises
        TransactionViolation if it gets it."""
        request = self._end_request(not committed)
        await after()
        try:
            await self._caller.coordinated(self._id, request)
        except ApiError:
            return
        raise TransactionViolation("a transaction has two outcomes: the second one was accepted")

    def _become(self, answer: Any) -> None:
        self.producer_id, self.epoch = answer.producer_id, answer.producer_epoch
        self._sequences.clear()

    async def close(self) -> None:
        await self._caller.close()
