"""The replica's view of its log (offsets and epochs, never bytes), and the validation of fetch
positions.

The view shows the log as it is now: the edge carries out the effects of one step before it makes
the next.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from quorum.raft.voters import ReplicaKey, VoterSet
from snapshot.names import SnapshotId


class LogView(Protocol):
    """The metadata log, read-only. End offsets are exclusive."""

    @property
    def start_offset(self) -> int: ...

    @property
    def end_offset(self) -> int: ...

    @property
    def last_epoch(self) -> int:
        """Epoch of the last record, or of the snapshot where the log begins; 0 if empty."""
        ...

    def end_offset_for_epoch(self, epoch: int) -> tuple[int, int]:
        """The largest epoch of the log that is not above `epoch`, and its end offset."""
        ...

    @property
    def voters(self) -> VoterSet | None:
        """The voters of the newest Voters record, committed or not; None if the log has none."""
        ...

    @property
    def voters_offset(self) -> int | None:
        """Offset of that record; -1 if it is in the bootstrap checkpoint."""
        ...

    def was_voter_since(self, key: ReplicaKey, end_offset: int) -> bool:
        """Whether the voters at `end_offset`, or any later ones, include this replica."""
        ...

    @property
    def kraft_version(self) -> int:
        """0: static voters; 1: voters in the log (KIP-853)."""
        ...

    @property
    def earliest_snapshot(self) -> SnapshotId | None: ...

    @property
    def latest_snapshot(self) -> SnapshotId | None: ...

    def snapshot_size_bytes(self, snapshot: SnapshotId) -> int | None:
        """Size of the checkpoint; None if it does not exist."""
        ...


@dataclass(slots=True, frozen=True)
class KnownBounds:
    """Lower bounds that an earlier life of the replica left: everything below `end_offset` was
    durable in its log, and everything below `high_watermark` was committed."""

    end_offset: int = 0
    high_watermark: int = 0


NO_BOUNDS = KnownBounds()


@dataclass(slots=True, frozen=True)
class Valid:
    """The fetcher's log is a prefix of this one up to its fetch offset."""


@dataclass(slots=True, frozen=True)
class Diverging:
    """The fetcher holds records that this log does not: it must truncate to this (epoch, end
    offset).
    """

    epoch: int
    end_offset: int


@dataclass(slots=True, frozen=True)
class NeedsSnapshot:
    """The fetch position is before the log start: the fetcher must load the checkpoint first."""

    snapshot: SnapshotId


def validate_offset_and_epoch(
    log: LogView, fetch_offset: int, last_fetched_epoch: int
) -> Valid | Diverging | NeedsSnapshot:
    """Validates a follower's fetch position (KIP-595 "Fetch", KIP-630 "Validation of Fetch")."""
    earliest, latest = log.earliest_snapshot, log.latest_snapshot
    if fetch_offset == 0 and latest is not None and latest.end_offset > 0:
        return NeedsSnapshot(latest)  # a new replica loads the newest state, not the whole history
    if log.start_offset == 0 and fetch_offset == 0 and last_fetched_epoch == 0:
        return Valid()
    behind = earliest is not None and (
        fetch_offset < log.start_offset
        or (fetch_offset == log.start_offset and last_fetched_epoch != earliest.epoch)
        or last_fetched_epoch < earliest.epoch
    )
    if behind and latest is not None and log.start_offset > 0:
        return NeedsSnapshot(latest)
    epoch, end_offset = log.end_offset_for_epoch(last_fetched_epoch)
    if epoch != last_fetched_epoch or end_offset < fetch_offset:
        return Diverging(epoch, end_offset)
    return Valid()
