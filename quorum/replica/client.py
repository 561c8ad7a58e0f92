"""What the rest of a node sees of the Raft quorum: the client face of `RaftServer`, and the
listener it calls.

Modelled on Apache Kafka's RaftClient and RaftClient.Listener. `RaftClient` is a protocol so that a
controller or a metadata loader can be tested over a fake; `quorum.replica.server.RaftServer` is the
real one. All calls and callbacks happen on the one event loop; callbacks are plain functions and
must not block.
"""

from __future__ import annotations

import asyncio
from collections.abc import Generator, Iterable, Sequence
from dataclasses import dataclass
from typing import Protocol
from uuid import UUID

from quorum.raft.effects import LeaderAndEpoch
from quorum.raft.messages import AnyRequest, Response
from snapshot.reader import SnapshotReader
from tidemark.types import Endpoint, Listener


@dataclass(slots=True, frozen=True)
class CommittedBatch:
    """One committed batch of the metadata log; record i of `values` has offset `base_offset +
    i`.
    """

    base_offset: int
    last_offset: int
    epoch: int
    append_timestamp_ms: int
    values: list[bytes]
    size_bytes: int = 0


__all__ = [
    "CommittedBatch",
    "LeaderAndEpoch",
    "QuorumInfo",
    "RaftClient",
    "RaftListener",
    "ReplicaInfo",
]


class RaftListener(Protocol):
    """A state machine over the metadata log. Commits come in order, on the leader too."""

    def handle_commit(self, batches: Sequence[CommittedBatch]) -> None:
        """Records below the high watermark, each exactly once and in order (control records are
        left out).
        """

    def handle_load_snapshot(self, reader: SnapshotReader) -> Generator[None, None, None] | None:
        """Replace all state by the snapshot's: the log no longer holds what comes next for this
        listener. Done at once (None), or in steps: each `next` of the generator is one, the event
        loop has its turn between them, and the listener hears of nothing else before the last.
        A load under way is given up (its generator is closed) when a newer snapshot is needed.
        """

    def handle_caught_up(self) -> None:
        """Once: this listener has heard of everything that was committed when the leader began, by
        what the leader told this replica (or by its own leadership). Commits and checkpoints that
        it heard of before may be far in the past."""

    def handle_leader_change(self, leader: LeaderAndEpoch) -> None:
        """A new leader or epoch. The leader's own listener hears of its leadership only once it
        has applied every committed record up to the start of the epoch: it may generate records
        from its state at once."""


@dataclass(slots=True, frozen=True)
class ReplicaInfo:
    """A voter or observer as the leader sees it; offsets and times are None while unknown. Times
    are wall clock, ms.
    """

    replica_id: int
    directory_id: UUID | None
    log_end_offset: int | None
    last_fetch_timestamp_ms: int | None
    last_caught_up_timestamp_ms: int | None
    listeners: tuple[Listener, ...] = ()


@dataclass(slots=True, frozen=True)
class QuorumInfo:
    """The quorum's state (KIP-836). Fetch positions are known on the leader only."""

    leader_id: int | None
    leader_epoch: int
    high_watermark: int | None
    voters: tuple[ReplicaInfo, ...]
    observers: tuple[ReplicaInfo, ...]
    endpoints: dict[int, Endpoint]
    kraft_version: int = 0


class RaftClient(Protocol):
    """The face of `RaftServer(config, *, cluster_id, directory, directory_id, rng, now_ms,
    transport=None)`.
    """

    @property
    def node_id(self) -> int: ...

    @property
    def leader_and_epoch(self) -> LeaderAndEpoch:
        """The replica's own view, without waiting for any listener."""
        ...

    @property
    def epoch(self) -> int: ...

    @property
    def high_watermark(self) -> int | None:
        """Exclusive; None until it is known in this run."""
        ...

    @property
    def log_end_offset(self) -> int: ...

    @property
    def fatal(self) -> asyncio.Future[None]:
        """Fails with FatalError when this process must stop; never completes otherwise."""
        ...

    def append(self, epoch: int, values: Sequence[bytes]) -> int:
        """Appends `values` atomically (in one batch, perhaps with what else was appended in the
        same turn of the event loop) and gives the offset of the last one; it is committed (and
        delivered to the listeners) later, or lost with the leadership. Raises
        NotControllerError when this node does not lead in `epoch`, RecordListTooLargeError beyond
        8 MiB, ThrottlingQuotaExceededError when too much is waiting."""
        ...

    def register(self, listener: RaftListener) -> None:
        """Adds a listener; it hears the newest snapshot (if any), every commit since, and the
        current leader.
        """
        ...

    def resign(self, epoch: int) -> None:
        """Gives up the leadership of `epoch`; nothing happens when this node does not lead in
        it.
        """
        ...

    async def create_snapshot(self, end_offset: int, values: Iterable[bytes]) -> None:
        """Writes a checkpoint of the state after `end_offset - 1` and lets the log before it be
        cleaned. `end_offset` must be at a batch boundary and at most the high watermark; nothing
        happens when there is one at or above it. `values` is consumed on a worker thread, so it
        must not change under way."""
        ...

    async def handle(self, request: AnyRequest) -> Response:
        """Answers a request of the quorum, here by this node itself."""
        ...

    def describe(self) -> QuorumInfo: ...

    def leader_endpoint(self) -> Endpoint | None:
        """Where the current leader answers (its controller listener)."""
        ...

    async def start(self) -> None: ...

    async def shutdown(self) -> None:
        """Graceful: a leader tells the voters (EndQuorumEpoch) before it goes."""
        ...
