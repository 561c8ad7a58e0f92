"""An in-memory quorum behind RaftClient: one log, any number of nodes, manual commits.

The promises of RaftClient hold:

- appends are atomic and have consecutive offsets;
- listeners receive committed batches once and in order;
- the leader is notified of its leadership after everything that was committed;
- uncommitted batches are lost with the leadership.

`tests/quorum/replica/test_raft_contract.py` runs the same suite over it and over the real server.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field

import grpc.aio

from quorum.replica.client import (
    CommittedBatch,
    LeaderAndEpoch,
    QuorumInfo,
    RaftListener,
    ReplicaInfo,
)
from snapshot.names import SnapshotId
from tidemark.errors import NotControllerError
from tidemark.types import Endpoint


@dataclass(slots=True)
class FakeSnapshot:
    """A frozen checkpoint in memory."""

    id: SnapshotId
    values: list[bytes]

    def batches(self) -> Iterator[list[bytes]]:
        for start in range(0, len(self.values), 3):
            yield self.values[start : start + 3]


@dataclass(slots=True)
class FakeQuorum:
    """The log that all nodes share.

    With `auto_commit`, an append is committed on the loop's next turn.
    """

    auto_commit: bool = True
    leader_id: int | None = None
    epoch: int = 0
    end_offset: int = 0
    high_watermark: int = 0
    committed: list[CommittedBatch] = field(default_factory=list)
    pending: list[CommittedBatch] = field(default_factory=list)
    nodes: dict[int, FakeRaft] = field(default_factory=dict)

    def node(self, node_id: int) -> FakeRaft:
        return self.nodes.setdefault(node_id, FakeRaft(self, node_id))

    def elect(self, leader_id: int | None) -> None:
        """Begins a new epoch: uncommitted batches are lost, the leader's own record is
        committed.
        """
        self.epoch += 1
        self.leader_id = leader_id
        if self.pending:
            self.end_offset = self.pending[0].base_offset
            self.pending.clear()
        if leader_id is not None:
            # The LeaderChange control record takes an offset and reaches no listener.
            self.end_offset += 1
            self.high_watermark = self.end_offset
        for node in self.nodes.values():
            node.tell_leader()

    def commit(self, batches: int | None = None) -> None:
        """Commits this many pending batches (None: all)."""
        count = len(self.pending) if batches is None else batches
        done, self.pending = self.pending[:count], self.pending[count:]
        if not done:
            return
        self.committed.extend(done)
        self.high_watermark = done[-1].last_offset + 1
        for node in self.nodes.values():
            node.deliver()

    def append(self, values: Sequence[bytes]) -> int:
        batch = CommittedBatch(
            base_offset=self.end_offset,
            last_offset=self.end_offset + len(values) - 1,
            epoch=self.epoch,
            append_timestamp_ms=0,
            values=list(values),
            size_bytes=sum(map(len, values)),
        )
        self.end_offset = batch.last_offset + 1
        self.pending.append(batch)
        if self.auto_commit:
            asyncio.get_running_loop().call_soon(self.commit)
        return batch.last_offset


class FakeRaft:
    """One node's RaftClient over a FakeQuorum."""

    def __init__(self, quorum: FakeQuorum, node_id: int) -> None:
        self._quorum = quorum
        self.node_id = node_id
        self._listeners: dict[int, tuple[RaftListener, int]] = {}
        self._caught_up: set[int] = set()
        self.snapshots: list[FakeSnapshot] = []
        self.endpoints: dict[int, Endpoint] = {}
        self.fail_snapshots = False

    @property
    def leader_and_epoch(self) -> LeaderAndEpoch:
        return LeaderAndEpoch(self._quorum.leader_id, self._quorum.epoch)

    @property
    def epoch(self) -> int:
        return self._quorum.epoch

    @property
    def high_watermark(self) -> int | None:
        return self._quorum.high_watermark

    @property
    def log_end_offset(self) -> int:
        return self._quorum.end_offset

    @property
    def fatal(self) -> asyncio.Future[None]:
        return asyncio.get_running_loop().create_future()

    def append(self, epoch: int, values: Sequence[bytes]) -> int:
        if self._quorum.leader_id != self.node_id or self._quorum.epoch != epoch:
            raise NotControllerError()
        return self._quorum.append(values)

    def register(self, listener: RaftListener) -> None:
        self._listeners[id(listener)] = (listener, 0)
        if self.snapshots:
            newest = self.snapshots[-1]
            for _ in listener.handle_load_snapshot(newest) or ():
                """Nothing comes in between here."""
            self._listeners[id(listener)] = (listener, newest.id.end_offset)
        self.deliver()
        if self._quorum.leader_id is not None:
            self._tell_caught_up(listener)
            listener.handle_leader_change(self.leader_and_epoch)

    def deliver(self) -> None:
        """Passes to every listener what it has not received yet."""
        for key, (listener, next_offset) in list(self._listeners.items()):
            news = [b for b in self._quorum.committed if b.base_offset >= next_offset]
            if news:
                self._listeners[key] = (listener, news[-1].last_offset + 1)
                listener.handle_commit(news)
                self._tell_caught_up(listener)

    def _tell_caught_up(self, listener: RaftListener) -> None:
        if id(listener) not in self._caught_up:
            self._caught_up.add(id(listener))
            listener.handle_caught_up()

    def tell_leader(self) -> None:
        for listener, _ in list(self._listeners.values()):
            if self._quorum.leader_id is not None:
                self._tell_caught_up(listener)
            listener.handle_leader_change(self.leader_and_epoch)

    def resign(self, epoch: int) -> None:
        if self._quorum.leader_id == self.node_id and self._quorum.epoch == epoch:
            self._quorum.elect(None)

    async def create_snapshot(self, end_offset: int, values: Iterable[bytes]) -> None:
        if self.fail_snapshots:
            raise OSError("no space left on device")
        assert end_offset <= self._quorum.high_watermark
        epoch = next(
            b.epoch for b in reversed(self._quorum.committed) if b.last_offset < end_offset
        )
        self.snapshots.append(FakeSnapshot(SnapshotId(end_offset, epoch), list(values)))

    def describe(self) -> QuorumInfo:
        voters = tuple(ReplicaInfo(n, None, None, None, None) for n in sorted(self._quorum.nodes))
        return QuorumInfo(
            self._quorum.leader_id, self.epoch, self.high_watermark, voters, (), self.endpoints
        )

    def leader_endpoint(self) -> Endpoint | None:
        leader_id = self._quorum.leader_id
        return None if leader_id is None else self.endpoints.get(leader_id)

    def add_to_server(self, server: grpc.aio.Server) -> None:
        """Does nothing: other nodes of the fake reach this one through their FakeQuorum."""

    async def start(self) -> None:
        return None

    async def shutdown(self) -> None:
        return None
