"""A broker that is one dict of record batches, behind the real `Log` service on a loopback port.

It is enough for readers: Metadata, ListOffsets, FetchStream. Tests add batches, cut the log's
start, and read through the real client and over real gRPC.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any
from uuid import UUID

import grpc

from tests.client.fetch_sessions import FakeSession
from tidemark.errors import ErrorCode
from tidemark.records import Record, encode_batch, read_header
from tidemark.types import TopicPartition
from tidemark.v1 import admin_pb2, admin_pb2_grpc, log_pb2, log_pb2_grpc


@dataclass
class FakePartition:
    """A log: batches in order, and its start offset."""

    batches: list[bytes] = field(default_factory=list)
    log_start_offset: int = 0
    log_end_offset: int = 0
    diverging: tuple[int, int] | None = None  # (epoch, end offset), told to fetches beyond it

    def append(self, records: Sequence[Record], **options: Any) -> None:
        """Appends one batch at the end, or at the first record's offset if that is higher."""
        base = max(records[0].offset, self.log_end_offset)
        options = {"partition_leader_epoch": 0} | options
        self.batches.append(encode_batch(records, base_offset=base, **options))
        self.log_end_offset = base + len(records)

    def read(self, offset: int) -> bytes:
        """The batch with `offset`, or the first after it; empty at the end."""
        for batch in self.batches:
            if read_header(batch).next_offset > offset:
                return batch
        return b""

    def offset_for(self, timestamp_ms: int) -> int:
        """The answer of ListOffsets; correct for batches of one record."""
        if timestamp_ms == -1:
            return self.log_end_offset
        if timestamp_ms == -2:
            return self.log_start_offset
        for batch in self.batches:
            if read_header(batch).max_timestamp_ms >= timestamp_ms:
                return read_header(batch).base_offset
        return -1


class FakeLog(log_pb2_grpc.LogServicer):
    """The service over `partitions`; `fetches` counts requests of FetchStream.

    All topics have the id `topic_id`, and fetches of another one are refused. `unlisted` topics
    are not in the answers of ListTopics.
    """

    def __init__(self, partitions: dict[TopicPartition, FakePartition]) -> None:
        self.partitions = partitions
        self.topic_id = UUID(bytes=b"\x01" * 16)
        self.leader_epoch = 0
        self.port = 0
        self.fetches = 0
        self.unlisted: set[str] = set()

    @property
    def bootstrap_servers(self) -> str:
        return f"127.0.0.1:{self.port}"

    def Metadata(self, request: Any, context: Any) -> Any:
        answer = log_pb2.MetadataResponse(cluster_id="fake", controller_id=1)
        answer.brokers.add(node_id=1, host="127.0.0.1", port=self.port)
        for name in request.topics:
            numbers = [tp.partition for tp in self.partitions if tp.topic == name]
            topic = answer.topics.add(name=name, topic_id=self.topic_id.bytes)
            if not numbers:
                topic.error_code = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
            for number in numbers:
                topic.partitions.add(
                    partition_index=number,
                    leader_id=1,
                    leader_epoch=self.leader_epoch,
                    replica_nodes=[1],
                )
        return answer

    def ListOffsets(self, request: Any, context: Any) -> Any:
        answer = log_pb2.ListOffsetsResponse()
        for asked in request.partitions:
            partition = self.partitions[TopicPartition(asked.topic, asked.partition_index)]
            offset = partition.offset_for(asked.timestamp)
            answer.partitions.add(
                topic=asked.topic,
                partition_index=asked.partition_index,
                offset=offset,
                timestamp=asked.timestamp if offset >= 0 and asked.timestamp >= 0 else -1,
                leader_epoch=self.leader_epoch,
            )
        return answer

    def PlanRead(self, request: Any, context: Any) -> Any:
        return log_pb2.PlanReadResponse(tail_offset=request.start_offset, not_direct="no tier")

    def FetchStream(self, requests: Any, context: Any) -> Any:
        session = FakeSession()
        for request in requests:
            self.fetches += 1
            answer = self._fetch(session.whole(request))
            yield log_pb2.FetchResponse(responses=session.news(answer.responses))

    def _fetch(self, request: log_pb2.FetchRequest) -> log_pb2.FetchResponse:
        answer = log_pb2.FetchResponse()
        for asked in request.partitions:
            log = self.partitions.get(TopicPartition(asked.topic, asked.partition))
            if log is None or asked.topic_id not in (b"", self.topic_id.bytes):
                unknown = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
                answer.responses.add(
                    topic=asked.topic,
                    partition_index=asked.partition,
                    error_code=unknown if log is None else ErrorCode.UNKNOWN_TOPIC_ID,
                )
                continue
            found = answer.responses.add(
                topic=asked.topic,
                partition_index=asked.partition,
                high_watermark=log.log_end_offset,
                last_stable_offset=log.log_end_offset,
                log_start_offset=log.log_start_offset,
            )
            checks = asked.last_fetched_epoch >= 0 and log.diverging is not None
            if checks and asked.fetch_offset > log.diverging[1]:
                found.diverging_epoch.epoch, found.diverging_epoch.end_offset = log.diverging
            elif log.log_start_offset <= asked.fetch_offset <= log.log_end_offset:
                found.records = log.read(asked.fetch_offset)
            else:
                found.error_code = ErrorCode.OFFSET_OUT_OF_RANGE
        return answer


class FakeAdmin(admin_pb2_grpc.AdminServicer):
    """ListTopics over the fake."""

    def __init__(self, fake: FakeLog) -> None:
        self._fake = fake

    def ListTopics(self, request: Any, context: Any) -> Any:
        answer = admin_pb2.ListTopicsResponse()
        for name in {tp.topic for tp in self._fake.partitions} - self._fake.unlisted:
            answer.topics.add(name=name)
        return answer


@contextmanager
def serving(partitions: dict[TopicPartition, FakePartition]) -> Iterator[FakeLog]:
    """The fake on a free loopback port."""
    fake = FakeLog(partitions)
    server = grpc.server(ThreadPoolExecutor(8))
    log_pb2_grpc.add_LogServicer_to_server(fake, server)
    admin_pb2_grpc.add_AdminServicer_to_server(FakeAdmin(fake), server)
    fake.port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    try:
        yield fake
    finally:
        server.stop(None).wait(10)


def records(first: int, count: int, timestamp_ms: int = 1_000) -> list[Record]:
    """Records of consecutive offsets; keys and values contain the offset."""
    return [
        Record(
            offset=offset,
            timestamp_ms=timestamp_ms + offset,
            key=None if offset % 5 == 0 else f"k{offset}".encode(),
            value=f"v{offset}".encode(),
            headers=(("n", str(offset).encode()), ("none", None)),
        )
        for offset in range(first, first + count)
    ]
