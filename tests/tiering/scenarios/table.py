"""Two brokers and a tier, set up as a table of KIP-405 says, and what a consumer is answered."""

from __future__ import annotations

import random
from collections.abc import Awaitable, Callable
from dataclasses import replace
from random import Random
from typing import Any
from unittest.mock import patch

from commitlog.disk.memory_files import MemoryDirectory
from commitlog.log.expiration import delete_expired
from commitlog.log.log import Log
from tests import virtual_time
from tests.client.consuming.harness import RETRY, FakeLeaders
from tests.inline import Inline
from tests.node.cluster import TOPIC, Cluster, Node, batch
from tidemark.client.consuming.core import FetchCore
from tidemark.client.consuming.damage import examine
from tidemark.client.consuming.partition import Position
from tidemark.client.consuming.requests import FetchSettings
from tidemark.errors import ErrorCode
from tidemark.records import decode_batch, iter_batches
from tidemark.types import TopicIdPartition, TopicPartition
from tidemark.wire import FetchResponse
from tiering.manager import RemoteLogManager
from tiering.metadata.memory import MemoryHistory, MemoryRemoteLogMetadataManager
from tiering.metadata.segments import RemoteLogSegmentMetadata
from tiering.store.directory import DirectoryRemoteStorageManager
from tiering.threads import DaemonPool

A, B = 1, 2
ONE = TopicPartition(TOPIC, 0)
Row = tuple[int, str, int]
"""Offset, message and leader epoch: "3: msg 3 LE-1" of the KIP."""


def row(offset: int, epoch: int, message: int | None = None) -> Row:
    """A row whose message has the number of its offset, unless another is given."""
    return offset, f"msg {offset if message is None else message}", epoch


class Table(Cluster):
    """Brokers A and B; what they do to the tier is done by `copy` and `expire` alone."""

    def __init__(self) -> None:
        super().__init__()
        self.store = DirectoryRemoteStorageManager(MemoryDirectory("tier"))
        self.remote_metadata = MemoryHistory()

    def tier_of(self, node: Node) -> Any:
        return RemoteLogManager(
            node.config,
            self.store,
            MemoryRemoteLogMetadataManager(self.remote_metadata),
            node.clock.wall_ms,
            cache_directory=node.directory,
            rng=random.Random(1),
        )

    def log(self, node: int) -> Log:
        return self.nodes[node].hosted().log

    def begin(self, *replicas: int, leader: int = A, **configs: str) -> None:
        """Creates the topic, of which no segment rolls or goes by itself."""
        self.start(A, B, remote_log_storage_system_enable="true")
        self.create_topic(
            replicas or (A, B),
            leader,
            remote_storage_enable="true",
            min_insync_replicas="1",
            unclean_leader_election_enable="true",
            **configs,
        )

    def isolate(self, node: int) -> None:
        """The node is behind from now on, and out of the ISR."""
        other = A + B - node
        self.cut |= {(A, B), (B, A)}
        self.change(isr=(other,))

    async def append(self, node: int, *messages: int) -> None:
        """Appends messages, one batch each, in the leader epoch of now."""
        for message in messages:
            result = await self.nodes[node].produce(raw=batch(f"msg {message}"), acks=1)
            assert not result.error_code, result

    def lead(self, node: int) -> None:
        """Begins the next leader epoch."""
        self.change(leader=node)

    def roll(self, *nodes: int) -> None:
        for node in nodes:
            self.log(node).roll(self.nodes[node].clock.wall_ms())

    async def copy(self, node: int) -> None:
        """Makes a pass of the tier: a leader copies what is rolled, then expires."""
        await self.nodes[node].tier.run_once(self.identity)

    @property
    def identity(self) -> TopicIdPartition:
        return TopicIdPartition(self.topic_id, TOPIC, 0)

    def drop_local(self, node: int, below: int) -> None:
        """Local retention deletes the copied segments below an offset."""
        log = self.log(node)
        kept = sum(s.size_bytes for s in log.segments if s.base_offset >= below)
        config = log.config
        log.config = replace(config, local_retention_bytes=kept)
        delete_expired(log, self.nodes[node].clock.wall_ms())
        log.config = config
        assert log.local_log_start_offset == below

    # The cells of the table.

    def rows(self, node: int) -> list[Row]:
        """The records on the node's disk."""
        log = self.log(node)
        found, offset = [], log.local_log_start_offset
        while offset < log.log_end_offset:
            result = log.read(offset, 1 << 20)
            found += rows_of(bytes(result.records), offset)
            offset = result.next_offset
        return found

    def epochs(self, node: int) -> list[tuple[int, int]]:
        """The leader epoch checkpoint."""
        return list(self.log(node).epochs.entries())

    def remote(self) -> list[tuple[int, int, list[tuple[int, int]]]]:
        """First and last offset and epochs of each remote segment, in order."""
        return sorted(
            (one.start_offset, one.end_offset, [tuple(e) for e in one.segment_leader_epochs])
            for one in self.remote_segments()
        )

    def remote_segments(self) -> list[RemoteLogSegmentMetadata]:
        cache = self.remote_metadata.caches.get(self.identity)
        return [] if cache is None else list(cache.segments())

    async def consume(self, node: int, offset: int, epoch: int = -1, reset: str = "none") -> Any:
        """Reads on at `offset` as our consumer does, after a record of `epoch` (-1: it knows
        none); returns rows, or the error. With a policy it may begin elsewhere.
        """
        return await Reader(self, node, reset).read(offset, epoch)

    async def refusal(self, node: int, offset: int, leader_epoch: int) -> ErrorCode:
        """The error of a fetch in this leader epoch."""
        answer = await self.nodes[node].fetch(offset, current_leader_epoch=leader_epoch)
        return ErrorCode(answer.error_code)


def rows_of(records: bytes | memoryview, begin: int) -> list[Row]:
    found = []
    for position, header in iter_batches(records):
        for record in decode_batch(records, position):
            if record.offset >= begin:
                value = (record.value or b"").decode()
                found.append((record.offset, value, header.partition_leader_epoch))
    return found


class Reader:
    """The consumer's core, with the answers of one node."""

    def __init__(self, table: Table, node: int, reset: str) -> None:
        self._node = table.nodes[node]
        self._leaders = leaders = FakeLeaders()
        leaders.leaders[ONE] = node
        leaders.epochs[ONE] = table.partition.leader_epoch
        leaders.ids[TOPIC] = table.topic_id.bytes
        self._core = FetchCore(FetchSettings(RETRY, reset), leaders, Random(1))
        self._core.assign([ONE], 0)

    async def read(self, offset: int, epoch: int) -> Any:
        core, now_ms = self._core, 0.0
        ends: list[tuple[int, int]] = []
        core.seek(core.assignment.partitions[ONE], Position(offset, epoch))
        for _ in range(4):
            now_ms += 1_000
            for request in core.step(now_ms).requests:
                if not request.is_fetch:
                    await self._look_up(request, now_ms)
                    continue
                ask = request.asked[ONE]
                assert isinstance(ask.target, Position)
                answer = await self._node.fetch(
                    ask.target.offset,
                    max_wait_ms=100,
                    current_leader_epoch=ask.leader_epoch,
                    last_fetched_epoch=None if ask.target.epoch < 0 else ask.target.epoch,
                    topic_id=ask.topic_id,
                )
                answer.records = answer.payload
                ends.append((answer.error_code, answer.high_watermark - ask.target.offset))
                core.answered(request.request_id, FetchResponse([answer]), now_ms)
            error = core.assignment.error_due(now_ms, got_nothing=True)
            if error is not None:
                return error
            for _, items in core.assignment.waiting():
                for item in items:
                    assert examine(item.raw, decodes=True, check_crcs=True).error is None
                    return rows_of(item.raw.buffer, item.raw.first_offset)
        assert ends, "nothing was fetched"
        assert set(ends) == {(0, 0)}, "it waits at the end of the log, and was refused nothing"
        return []

    async def _look_up(self, request: Any, now_ms: float) -> None:
        target = request.asked[ONE].target
        found = await self._node.handlers.offsets.list_offset(TOPIC, 0, target.where)
        self._core.found(request.request_id, {ONE: found}, now_ms)


def scenario(test: Callable[[Table], Awaitable[None]]) -> None:
    """Runs a scenario on virtual time; afterwards no node may have met a fatal error."""

    async def main() -> None:
        table = Table()
        await test(table)
        running = list(table.nodes.values())
        await table.stop()
        assert [node.fatal for node in running] == [[] for _ in running]

    with patch.object(DaemonPool, "submit", Inline().submit):
        virtual_time.run(main())
