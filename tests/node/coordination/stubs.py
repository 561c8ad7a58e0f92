"""A producer of transactions from generated stubs alone, as a stranger's client is one."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from typing import Any, TypeVar

import grpc.aio

from tidemark.errors import ApiError, NetworkError, raise_for
from tidemark.records import Record, encode_batch
from tidemark.testing import Cluster
from tidemark.v1 import admin_pb2, group_pb2, log_pb2
from tidemark.v1 import transaction_pb2 as pb
from tidemark.wire.network import Channels
from tidemark.wire.rpcs import Rpc, rpcs_of

T = TypeVar("T")

SETTINGS = {
    "offsets.topic.num.partitions": "3",
    "transaction.state.log.num.partitions": "3",
    "min.insync.replicas": "2",
}
_RPCS: dict[str, Rpc] = {
    rpc.name: rpc
    for file in (log_pb2, group_pb2, pb, admin_pb2)
    for service in file.DESCRIPTOR.services_by_name.values()
    if service.name != "Replication"
    for rpc in rpcs_of(service)
}


class Stubs:
    """Calls of nodes of a simulated cluster. Retriable errors are repeated for a minute."""

    def __init__(self, cluster: Cluster) -> None:
        self.cluster = cluster

    async def call(self, node_id: int, request: Any) -> Any:
        """The answer of a node. Raises NetworkError."""
        rpc = _RPCS[request.DESCRIPTOR.name.removesuffix("Request")]
        channel = Channels().open(f"node-{node_id}:9092")
        ask = channel.unary_unary(
            rpc.path,
            request_serializer=rpc.request.SerializeToString,
            response_deserializer=rpc.response.FromString,
        )
        try:
            return await ask(request, timeout=10)
        except grpc.aio.AioRpcError as error:
            raise NetworkError(f"node {node_id}: {error.details()}") from error
        finally:
            await channel.close(None)

    async def retried(self, attempt: Callable[[], Any]) -> Any:
        """The answer of an attempt, repeated after errors that say so."""
        deadline = asyncio.get_running_loop().time() + 60
        while True:
            try:
                return await attempt()
            except ApiError as error:
                if not error.retriable or asyncio.get_running_loop().time() > deadline:
                    raise
            await asyncio.sleep(0.1)

    async def coordinator(self, key: str, kind: int = group_pb2.TRANSACTION) -> int:
        """The node that coordinates a transactional id, or a group."""

        async def attempt() -> int:
            request = group_pb2.FindCoordinatorRequest(
                key_type=kind,  # type: ignore[arg-type]
                coordinator_keys=[key],
            )
            answer = await self.call(self.any_node(), request)
            (found,) = answer.coordinators
            raise_for(found.error_code, found.error_message)
            node_id: int = found.node_id
            return node_id

        found: int = await self.retried(attempt)
        return found

    def any_node(self) -> int:
        """A broker that runs."""
        return next(node.node_id for node in self.cluster.brokers if node.server is not None)

    async def coordinated(self, key: str, request: Any, kind: int = group_pb2.TRANSACTION) -> Any:
        """The answer of a coordinator; raises its error."""

        async def attempt() -> Any:
            answer = await self.call(await self.coordinator(key, kind), request)
            raise_for(answer.error_code, answer.error_message)
            return answer

        return await self.retried(attempt)

    async def led(self, topic: str, partition: int, request: Any, of: Callable[[Any], Any]) -> Any:
        """The part `of` the answer of a partition's leader; raises its error."""

        async def attempt() -> Any:
            leader = self.cluster.leader(topic, partition)
            if leader is None:
                raise NetworkError("no leader")
            part = of(await self.call(leader, request))
            raise_for(part.error_code, part.error_message)
            return part

        return await self.retried(attempt)

    async def read(self, topic: str, partition: int = 0, *, committed: bool = True) -> list[str]:
        """The values that plain fetches give, from offset 0 to the end."""
        offset, values = 0, list[str]()
        while True:
            request = log_pb2.FetchRequest(
                max_bytes=1 << 20, plain_records=True, isolation_level=1 if committed else 0
            )
            request.partitions.add(topic=topic, partition=partition, fetch_offset=offset)
            part = await self.led(topic, partition, request, lambda answer: answer.responses[0])
            values += [record.value.decode() for record in part.plain_records]
            if part.next_offset <= offset:
                return values
            offset = part.next_offset


class Transactions:
    """A producer with a transactional id."""

    def __init__(self, stubs: Stubs, transactional_id: str, timeout_ms: int = 60_000) -> None:
        self.stubs = stubs
        self.transactional_id = transactional_id
        self.timeout_ms = timeout_ms
        self.producer_id = -1
        self.epoch = -1
        self.sequences: dict[tuple[str, int], int] = {}

    async def init(self) -> Transactions:
        """Begins; fences the producer before."""
        answer = await self.stubs.coordinated(
            self.transactional_id,
            log_pb2.InitProducerIdRequest(
                transactional_id=self.transactional_id,
                transaction_timeout_ms=self.timeout_ms,
                producer_id=-1,
                producer_epoch=-1,
            ),
        )
        self.become(answer)
        return self

    def become(self, answer: Any) -> None:
        """Takes the id and the epoch of an answer."""
        self.producer_id, self.epoch = answer.producer_id, answer.producer_epoch
        self.sequences.clear()

    def batch(self, values: Iterable[str], sequence: int) -> bytes:
        """A transactional batch."""
        records = [
            Record(position, 1_400_000_000_000, None, value.encode())
            for position, value in enumerate(values)
        ]
        return encode_batch(
            records,
            producer_id=self.producer_id,
            producer_epoch=self.epoch,
            base_sequence=sequence,
            transactional=True,
        )

    def request(self, topic: str, partition: int, *values: str) -> log_pb2.ProduceRequest:
        """A produce request with the next sequences."""
        sequence = self.sequences.get((topic, partition), 0)
        self.sequences[topic, partition] = sequence + len(values)
        request = log_pb2.ProduceRequest(
            acks=-1, timeout_ms=5_000, transactional_id=self.transactional_id
        )
        request.partition_data.add(
            topic=topic, index=partition, records=self.batch(values, sequence)
        )
        return request

    async def send(self, topic: str, partition: int, *values: str) -> int:
        """Appends a batch; returns its first offset."""
        request = self.request(topic, partition, *values)
        found = await self.stubs.led(topic, partition, request, lambda a: a.responses[0])
        offset: int = found.base_offset
        return offset

    async def end(self, *, committed: bool) -> None:
        """Commits or aborts."""
        request = self.end_request(committed=committed)
        self.become(await self.stubs.coordinated(self.transactional_id, request))

    async def prepare(self) -> None:
        """Has the transaction wait for its end without a timeout."""
        request = pb.PrepareTxnRequest(
            transactional_id=self.transactional_id,
            producer_id=self.producer_id,
            producer_epoch=self.epoch,
        )
        await self.stubs.coordinated(self.transactional_id, request)

    def end_request(self, *, committed: bool) -> pb.EndTxnRequest:
        """A commit or an abort."""
        return pb.EndTxnRequest(
            transactional_id=self.transactional_id,
            producer_id=self.producer_id,
            producer_epoch=self.epoch,
            committed=committed,
        )

    async def commit_offset(self, group: str, topic: str, offset: int) -> None:
        """Commits an offset of partition 0 in the transaction."""
        request = group_pb2.TxnOffsetCommitRequest(
            transactional_id=self.transactional_id,
            producer_id=self.producer_id,
            producer_epoch=self.epoch,
        )
        request.offsets.group_id = group
        request.offsets.topics.add(name=topic).partitions.add(
            partition_index=0, committed_offset=offset
        )
        answer = await self.stubs.coordinated(group, request, group_pb2.GROUP)
        raise_for(answer.topics[0].partitions[0].error_code)

    async def describe(self) -> pb.DescribeTransactionsResponse.Description:
        """The transaction as its coordinator describes it."""
        request = pb.DescribeTransactionsRequest(transactional_ids=[self.transactional_id])

        async def attempt() -> Any:
            node = await self.stubs.coordinator(self.transactional_id)
            (found,) = (await self.stubs.call(node, request)).transactions
            raise_for(found.error_code, found.error_message)
            return found

        found: pb.DescribeTransactionsResponse.Description = await self.stubs.retried(attempt)
        return found

    async def until(self, state: str) -> None:
        """Waits for a state of the transaction."""
        for _ in range(600):
            if (await self.describe()).transaction_state == state:
                return
            await asyncio.sleep(0.1)
        raise AssertionError(f"{await self.describe()} does not become {state}")
