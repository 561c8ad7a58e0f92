"""What the replica may see of its log: offsets and epochs, never bytes; and the rule that judges a
fetch position.

The view reads the log as it is now: the edge carries out a step's effects before it makes the next
step.
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
        """Epoch of the last record, or of the snapshot the log begins at; 0 for an empty log."""
        ...

    def end_offset_for_epoch(self, epoch: int) -> tuple[int, int]:
        """(the largest epoch of the log that is not above `epoch`, its end offset)."""
        ...

    @property
    def voters(self) -> VoterSet | None:
        """The voters by the newest Voters record, committed or not; None: the log names none."""
        ...

    @property
    def voters_offset(self) -> int | None:
        """Offset of that record; -1 when the bootstrap checkpoint says it."""
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
        """None when there is no such checkpoint (any more)."""
        ...


@dataclass(slots=True, frozen=True)
class Valid:
    """The fetcher's log is a prefix of ours up to its fetch offset."""


@dataclass(slots=True, frozen=True)
class Diverging:
    """The fetcher holds records that we do not: it must truncate to this (epoch, end offset)."""

    epoch: int
    end_offset: int


@dataclass(slots=True, frozen=True)
class NeedsSnapshot:
    """The fetch position is behind our log start: the checkpoint comes first."""

    snapshot: SnapshotId


def validate_offset_and_epoch(
    log: LogView, fetch_offset: int, last_fetched_epoch: int
) -> Valid | Diverging | NeedsSnapshot:
    """Judges where a follower wants to fetch (KIP-595 "Fetch", KIP-630 "Validation of Fetch")."""
    earliest, latest = log.earliest_snapshot, log.latest_snapshot
    if fetch_offset == 0 and latest is not None and latest.end_offset > 0:
        return NeedsSnapshot(latest)  # a new replica loads the newest state instead of all history
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
