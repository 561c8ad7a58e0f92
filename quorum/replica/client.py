"""The interface of the Raft quorum to the rest of a node: `RaftClient`, and the listener it calls.

Modelled on Apache Kafka's RaftClient and RaftClient.Listener. `RaftClient` is a protocol, so that a
controller or a metadata loader can be tested with a fake; `quorum.replica.server.RaftServer`
implements it. All calls and callbacks run on one event loop. Callbacks are plain functions and must
not block.
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
from tidemark.types import Endpoint, Listener, OwnDamage


@dataclass(slots=True, frozen=True)
class CommittedBatch:
    """A committed batch of the metadata log; record i of `values` has offset `base_offset + i`."""

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
    """A state machine over the metadata log. Commits come in order, also on the leader."""

    def handle_commit(self, batches: Sequence[CommittedBatch]) -> None:
        """Takes records below the high watermark, each exactly once and in order, without control
        records.
        """

    def handle_load_snapshot(self, reader: SnapshotReader) -> Generator[None, None, None] | None:
        """Replaces all state with the snapshot's: the log no longer holds the next records of this
        listener.

        Returns None if done at once, or a generator with one step per `next`. The event loop runs
        between steps, and the listener gets no other call before the last one. If a newer snapshot
        is needed, the generator is closed and the load is abandoned.
        """

    def handle_caught_up(self) -> None:
        """Called once, when this listener has everything committed before the current leader's
        epoch began, as reported by the leader (or known from its own leadership). Earlier commits
        and checkpoints may be far in the past."""

    def handle_snapshot_wanted(self) -> None:
        """Requests a checkpoint soon (`RaftClient.create_snapshot`): log or checkpoint are damaged,
        and it takes their place."""

    def handle_leader_change(self, leader: LeaderAndEpoch) -> None:
        """Reports a new leader or epoch. The leader's own listener gets its leadership only after
        it applied every committed record up to the start of the epoch. It may generate records from
        its state at once."""


@dataclass(slots=True, frozen=True)
class ReplicaInfo:
    """A voter or observer as seen by the leader. Offsets and times are None while unknown; times
    are wall clock in ms.
    """

    replica_id: int
    directory_id: UUID | None
    log_end_offset: int | None
    last_fetch_timestamp_ms: int | None
    last_caught_up_timestamp_ms: int | None
    listeners: tuple[Listener, ...] = ()
    own_damage: OwnDamage = OwnDamage.NONE


@dataclass(slots=True, frozen=True)
class QuorumInfo:
    """The state of the quorum (KIP-836). Fetch positions are known only on the leader."""

    leader_id: int | None
    leader_epoch: int
    high_watermark: int | None
    voters: tuple[ReplicaInfo, ...]
    observers: tuple[ReplicaInfo, ...]
    endpoints: dict[int, Endpoint]
    kraft_version: int = 0


class RaftClient(Protocol):
    """The client interface of `RaftServer(config, *, cluster_id, directory, directory_id, rng,
    now_ms, transport=None)`.
    """

    @property
    def node_id(self) -> int: ...

    @property
    def leader_and_epoch(self) -> LeaderAndEpoch:
        """The replica's current view, which may be ahead of the listeners."""
        ...

    @property
    def epoch(self) -> int: ...

    @property
    def high_watermark(self) -> int | None:
        """The end of the committed records, exclusive; None until known in this run."""
        ...

    @property
    def log_end_offset(self) -> int: ...

    @property
    def fatal(self) -> asyncio.Future[None]:
        """Future that fails with FatalError when this process must stop. It never completes
        otherwise.
        """
        ...

    def append(self, epoch: int, values: Sequence[bytes]) -> int:
        """Appends `values` atomically and returns the offset of the last one.

        They are one batch, perhaps with other appends of the same turn of the event loop. They are
        committed (and delivered to the listeners) later, or lost with the leadership. Raises
        NotControllerError if this node does not lead in `epoch`, RecordListTooLargeError beyond 8
        MiB, and ThrottlingQuotaExceededError if too many records are uncommitted."""
        ...

    def register(self, listener: RaftListener) -> None:
        """Adds a listener. It gets the newest snapshot (if any), every later commit, and the
        current leader.
        """
        ...

    def resign(self, epoch: int) -> None:
        """Resigns the leadership of `epoch`. Does nothing if this node does not lead in it."""
        ...

    async def create_snapshot(self, end_offset: int, values: Iterable[bytes]) -> None:
        """Writes a checkpoint of the state after `end_offset - 1`, so that the log before it can be
        cleaned.

        `end_offset` must be a batch boundary, at most the high watermark. Does nothing if there is
        a checkpoint at or above it. `values` is consumed on a worker thread and must not change
        meanwhile."""
        ...

    async def handle(self, request: AnyRequest) -> Response:
        """Answers a request of the quorum, here by this node itself."""
        ...

    def describe(self) -> QuorumInfo: ...

    def leader_endpoint(self) -> Endpoint | None:
        """Address of the current leader (its controller listener); None if there is none."""
        ...

    async def start(self) -> None: ...

    async def shutdown(self) -> None:
        """Shuts down gracefully: a leader first notifies the voters (EndQuorumEpoch)."""
        ...
