"""A cluster in this process: the Log service of several nodes over real gRPC on loopback, with
scripted faults.

Logs are lists of record batches. Duplicates and gaps of idempotent producers get the answers of a
partition leader (KIP-98). A script is a list of faults per partition; each produce takes the next
one.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import defaultdict, deque
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any
from uuid import UUID

import grpc
import grpc.aio

from tests.client.fetch_sessions import FakeSession
from tidemark import records, wire
from tidemark.errors import ErrorCode
from tidemark.types import TopicPartition
from tidemark.v1 import log_pb2
from tidemark.wire.exchange import answer_each, answer_in_order


@dataclass(frozen=True, slots=True)
class Fault:
    """The fault of one produce.

    `code` is answered without a write. `lose` loses the answer after the write, `drop` before it.
    `reached` is set when the produce arrives, `wait_for` delays it, and `move_to` first moves the
    leadership.
    """

    code: ErrorCode = ErrorCode.NONE
    lose: bool = False
    drop: bool = False
    wait_for: asyncio.Event | None = None
    reached: asyncio.Event | None = None
    move_to: int | None = None


@dataclass(slots=True)
class FakePartition:
    leader: int
    epoch: int = 0
    log: list[bytes] = field(default_factory=list)
    next_offset: int = 0
    start_offset: int = 0
    producers: dict[int, tuple[int, dict[int, tuple[int, int]]]] = field(default_factory=dict)

    def values(self) -> list[bytes | None]:
        return [r.value for batch in self.log for r in records.decode_batch(batch)]

    def append(self, batch: bytes) -> tuple[ErrorCode, int]:
        """(error, base offset), with the sequence rules of a leader."""
        header = records.read_header(batch)
        records.verify_crc(batch, 0, header)
        if header.producer_id >= 0:
            epoch, seen = self.producers.get(header.producer_id, (-1, {}))
            if header.producer_epoch < epoch:
                return ErrorCode.INVALID_PRODUCER_EPOCH, -1
            if header.producer_epoch > epoch:
                if header.base_sequence != 0:
                    return ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER, -1
                epoch, seen = header.producer_epoch, {}
            if header.base_sequence in seen:
                return ErrorCode.NONE, seen[header.base_sequence][0]
            expected = max((s + n for s, (_, n) in seen.items()), default=0)
            if header.base_sequence != expected:
                return ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER, -1
            seen[header.base_sequence] = (self.next_offset, header.record_count)
            self.producers[header.producer_id] = (epoch, seen)
        base = self.next_offset
        head = records.patch_header(batch[:61], base, self.epoch)
        self.log.append(head + batch[len(head) :])
        self.next_offset += header.record_count
        return ErrorCode.NONE, base


class FakeCluster:
    """Nodes 1..n; use `async with`."""

    def __init__(self, nodes: int = 1) -> None:
        self.node_ids = list(range(1, nodes + 1))
        self.ports: dict[int, int] = {}
        self.servers: dict[int, grpc.aio.Server] = {}
        self.partitions: dict[TopicPartition, FakePartition] = {}
        self.faults: dict[TopicPartition, deque[Fault]] = defaultdict(deque)
        self.calls: list[str] = []
        self.produced: list[tuple[int, list[TopicPartition]]] = []
        self.max_batch_bytes = 1 << 30
        self.fetch_errors: dict[TopicPartition, deque[ErrorCode]] = defaultdict(deque)
        self.known_nodes: list[int] = list(self.node_ids)
        self.outdated: dict[tuple[int, TopicPartition], FakePartition] = {}
        """State that a node still answers from, because it has not learned the newest."""
        self.hint_leaders = True
        self.changed = asyncio.Event()
        self._next_producer_id = 1000

    async def __aenter__(self) -> FakeCluster:
        for node_id in self.node_ids:
            await self.start_node(node_id)
        return self

    async def __aexit__(self, *_: object) -> None:
        for node_id in list(self.servers):
            await self.stop_node(node_id)

    @property
    def bootstrap_servers(self) -> str:
        return ",".join(f"127.0.0.1:{port}" for port in self.ports.values())

    async def start_node(self, node_id: int) -> None:
        server = grpc.aio.server(options=wire.CHANNEL_OPTIONS)
        methods: dict[str, Callable[[int, bytes, Any], Awaitable[bytes]]] = {
            "Metadata": self._metadata,
            "Produce": self._produce,
            "ListOffsets": self._list_offsets,
            "InitProducerId": self._init_producer_id,
        }

        def handler(method: Callable[[int, bytes, Any], Awaitable[bytes]], name: str) -> Any:
            async def serve(request: bytes, context: Any) -> bytes:
                self.calls.append(name)
                return await method(node_id, request, context)

            return grpc.unary_unary_rpc_method_handler(serve)

        async def produce_stream(requests: Any, context: Any) -> None:
            async def answer(request: bytes) -> bytes:
                self.calls.append("Produce")
                return await self._produce(node_id, request, context)

            await answer_in_order(context, answer)

        async def fetch_stream(requests: Any, context: Any) -> None:
            session = FakeSession()

            async def answer(request: bytes) -> bytes:
                self.calls.append("Fetch")
                return await self._fetch(node_id, request, session)

            await answer_each(context, answer)

        handlers = {name: handler(method, name) for name, method in methods.items()}
        handlers["FetchStream"] = grpc.stream_stream_rpc_method_handler(fetch_stream)
        handlers["ProduceStream"] = grpc.stream_stream_rpc_method_handler(produce_stream)
        server.add_generic_rpc_handlers(
            (grpc.method_handlers_generic_handler("tidemark.v1.Log", handlers),)
        )
        port = server.add_insecure_port(f"127.0.0.1:{self.ports.get(node_id, 0)}")
        self.ports[node_id] = port
        await server.start()
        self.servers[node_id] = server

    async def stop_node(self, node_id: int) -> None:
        await self.servers.pop(node_id).stop(None)

    def create_topic(self, name: str, partitions: int = 1) -> list[TopicPartition]:
        made = [TopicPartition(name, number) for number in range(partitions)]
        for number, partition in enumerate(made):
            leader = self.node_ids[number % len(self.node_ids)]
            self.partitions[partition] = FakePartition(leader)
        return made

    def move(self, partition: TopicPartition, leader: int) -> None:
        state = self.partitions[partition]
        state.leader, state.epoch = leader, state.epoch + 1

    def believed(self, node_id: int, partition: TopicPartition) -> FakePartition:
        """The partition as the node knows it."""
        return self.outdated.get((node_id, partition), self.partitions[partition])

    def values(self, topic: str) -> list[bytes | None]:
        return [
            v for p, s in sorted(self.partitions.items()) if p.topic == topic for v in s.values()
        ]

    async def _metadata(self, node_id: int, request: bytes, context: Any) -> bytes:
        asked = log_pb2.MetadataRequest.FromString(request)
        answer = log_pb2.MetadataResponse(cluster_id="fake", controller_id=1)
        for known in self.known_nodes:
            answer.brokers.add(node_id=known, host="127.0.0.1", port=self.ports[known])
        for name in asked.topics:
            found = {p: s for p, s in sorted(self.partitions.items()) if p.topic == name}
            topic = answer.topics.add(name=name, topic_id=UUID(int=7).bytes)
            if not found:
                topic.error_code = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
            for partition, state in found.items():
                topic.partitions.add(
                    partition_index=partition.partition,
                    leader_id=state.leader,
                    leader_epoch=state.epoch,
                )
        return answer.SerializeToString()

    async def _produce(self, node_id: int, request: bytes, context: Any) -> bytes:
        asked = wire.decode_produce_request(request)
        answer = log_pb2.ProduceResponse()
        self.produced.append(
            (node_id, [TopicPartition(d.topic, d.index) for d in asked.partition_data])
        )
        lose = False
        for data in asked.partition_data:
            partition = TopicPartition(data.topic, data.index)
            state = self.partitions[partition]
            queue = self.faults[partition]
            fault = queue.popleft() if queue else Fault()
            if fault.reached is not None:
                fault.reached.set()
            if fault.wait_for is not None:
                await fault.wait_for.wait()
            if fault.move_to is not None:
                self.move(partition, fault.move_to)
            lose = lose or fault.lose or fault.drop
            code, base = fault.code, -1
            if code == ErrorCode.NONE and state.leader != node_id:
                code = ErrorCode.NOT_LEADER_OR_FOLLOWER
            if code == ErrorCode.NONE and len(data.records) > self.max_batch_bytes:
                code = ErrorCode.MESSAGE_TOO_LARGE
            if code == ErrorCode.NONE and not fault.drop:
                code, base = state.append(bytes(data.records))
                self.changed.set()
                self.changed = asyncio.Event()
            response = answer.responses.add(
                topic=data.topic, index=data.index, error_code=code, base_offset=base
            )
            response.log_append_time_ms = -1
            if code == ErrorCode.NOT_LEADER_OR_FOLLOWER and self.hint_leaders:
                response.current_leader.leader_id = state.leader
                response.current_leader.leader_epoch = state.epoch
        if lose:
            await context.abort(grpc.StatusCode.UNAVAILABLE, "the connection broke")
        return answer.SerializeToString()

    async def _fetch(self, node_id: int, request: bytes, session: FakeSession) -> bytes:
        asked = session.whole(log_pb2.FetchRequest.FromString(request))
        deadline = asyncio.get_running_loop().time() + asked.max_wait_ms / 1000
        while True:
            waiter = self.changed
            answer = wire.FetchResponse([self._read(node_id, part) for part in asked.partitions])
            if any(r.error_code or r.records for r in answer.responses):
                break
            left = deadline - asyncio.get_running_loop().time()
            if left <= 0:
                break
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(waiter.wait(), left)
        answer.responses = session.news(answer.responses)
        return wire.encode_fetch_response(answer)

    def _read(
        self, node_id: int, asked: log_pb2.FetchRequest.FetchPartition
    ) -> wire.FetchPartitionData:
        partition = TopicPartition(asked.topic, asked.partition)
        answer = wire.FetchPartitionData(partition.topic, partition.partition)
        state = self.believed(node_id, partition)
        errors = self.fetch_errors[partition]
        if errors:
            answer.error_code = errors.popleft()
        elif wrong_epoch := _wrong_epoch(asked.current_leader_epoch, state):
            answer.error_code = wrong_epoch
            answer.current_leader = (state.leader, state.epoch)
        elif state.leader != node_id:
            answer.error_code = ErrorCode.NOT_LEADER_OR_FOLLOWER
            answer.current_leader = (state.leader, state.epoch)
        elif not state.start_offset <= asked.fetch_offset <= state.next_offset:
            answer.error_code = ErrorCode.OFFSET_OUT_OF_RANGE
        else:
            answer.high_watermark = state.next_offset
            answer.log_start_offset = state.start_offset
            found = b""
            for batch in state.log:
                if records.read_header(batch).last_offset >= asked.fetch_offset:
                    found += batch
            # As a node does: cut at the limit, but never below one whole batch.
            first = records.read_header(found).size_bytes if found else 0
            answer.records = found[: max(first, asked.partition_max_bytes)]
        return answer

    async def _list_offsets(self, node_id: int, request: bytes, context: Any) -> bytes:
        asked = log_pb2.ListOffsetsRequest.FromString(request)
        answer = log_pb2.ListOffsetsResponse()
        for part in asked.partitions:
            state = self.believed(node_id, TopicPartition(part.topic, part.partition_index))
            response = answer.partitions.add(
                topic=part.topic, partition_index=part.partition_index, timestamp=-1, offset=-1
            )
            response.leader_epoch = state.epoch
            if wrong_epoch := _wrong_epoch(part.current_leader_epoch, state):
                response.error_code = wrong_epoch
            elif state.leader != node_id:
                response.error_code = ErrorCode.NOT_LEADER_OR_FOLLOWER
            elif part.timestamp == -1:
                response.offset = state.next_offset
            elif part.timestamp == -2:
                response.offset = state.start_offset
            else:
                rows = [r for batch in state.log for r in records.decode_batch(batch)]
                later = [r for r in rows if r.timestamp_ms >= part.timestamp]
                if later:
                    response.offset, response.timestamp = later[0].offset, later[0].timestamp_ms
        return answer.SerializeToString()

    async def _init_producer_id(self, node_id: int, request: bytes, context: Any) -> bytes:
        self._next_producer_id += 1
        return log_pb2.InitProducerIdResponse(
            producer_id=self._next_producer_id, producer_epoch=0
        ).SerializeToString()


def _wrong_epoch(asked: int, state: FakePartition) -> ErrorCode | None:
    if asked in (-1, state.epoch):
        return None
    older = asked < state.epoch
    return ErrorCode.FENCED_LEADER_EPOCH if older else ErrorCode.UNKNOWN_LEADER_EPOCH


@contextlib.asynccontextmanager
async def cluster_with(
    topic: str, partitions: int = 1, nodes: int = 1
) -> AsyncIterator[FakeCluster]:
    """A running cluster that has one topic."""
    async with FakeCluster(nodes) as cluster:
        cluster.create_topic(topic, partitions)
        yield cluster
