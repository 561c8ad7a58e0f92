"""The voter sets and kraft.versions of a log, by the offset of their record (KIP-853).

A Voters record is in force from its append on, committed or not. Truncation reverts the records it
removes, and a checkpoint starts with the state at its end. So the history is a function of the log
alone, and only the owner of the log keeps it.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Generic, TypeVar

from quorum.raft.voters import ReplicaKey, VoterSet

BOOTSTRAP_OFFSET = -1
"""Offset of the bootstrap checkpoint 0-0: before every record, and not replicated."""

T = TypeVar("T")


class _ByOffset(Generic[T]):
    """Values by offset, ascending; the newest is in force."""

    def __init__(self) -> None:
        self._entries: list[tuple[int, T]] = []

    def add(self, offset: int, value: T) -> None:
        if self._entries and offset <= self._entries[-1][0]:
            last = self._entries[-1][0]
            raise ValueError(f"offset {offset} is not behind the newest entry's, {last}")
        self._entries.append((offset, value))

    def newest_first(self) -> Iterator[tuple[int, T]]:
        return reversed(self._entries)

    def newest(self, before: int | None = None) -> tuple[int, T] | None:
        for offset, value in reversed(self._entries):
            if before is None or offset < before:
                return offset, value
        return None

    def truncate_to(self, end_offset: int) -> None:
        while self._entries and self._entries[-1][0] >= end_offset:
            self._entries.pop()

    def drop_before(self, start_offset: int) -> None:
        while len(self._entries) > 1 and self._entries[1][0] < start_offset:
            self._entries.pop(0)


class VoterHistory:
    """Voter sets and kraft.versions of one log."""

    def __init__(self) -> None:
        self._voters: _ByOffset[VoterSet] = _ByOffset()
        self._versions: _ByOffset[int] = _ByOffset()

    def add_voters(self, offset: int, voters: VoterSet) -> None:
        self._voters.add(offset, voters)

    def add_version(self, offset: int, kraft_version: int) -> None:
        self._versions.add(offset, kraft_version)

    @property
    def voters(self) -> VoterSet | None:
        """The newest voter set; None if the log has none (static voters)."""
        found = self._voters.newest()
        return None if found is None else found[1]

    @property
    def voters_offset(self) -> int | None:
        """Offset of the newest Voters record; BOOTSTRAP_OFFSET for the bootstrap checkpoint's."""
        found = self._voters.newest()
        return None if found is None else found[0]

    @property
    def kraft_version(self) -> int:
        found = self._versions.newest()
        return 0 if found is None else found[1]

    def at(self, end_offset: int) -> tuple[int, VoterSet | None]:
        """The (kraft.version, voters) of the records before `end_offset`, as a checkpoint states
        them.
        """
        version, voters = self._versions.newest(end_offset), self._voters.newest(end_offset)
        return (0 if version is None else version[1]), (None if voters is None else voters[1])

    def was_voter_since(self, key: ReplicaKey, end_offset: int) -> bool:
        """Whether the set in force at `end_offset`, or any later one, has this voter."""
        for offset, voters in self._voters.newest_first():
            if voters.is_voter(key):
                return True
            if offset < end_offset:
                return False
        return False

    def truncate_to(self, end_offset: int) -> None:
        """Removes the records from `end_offset` on: earlier sets are in force again."""
        self._voters.truncate_to(end_offset)
        self._versions.truncate_to(end_offset)

    def drop_before(self, start_offset: int) -> None:
        """Removes what a log that begins at `start_offset` no longer needs; the values in force
        there are kept.
        """
        self._voters.drop_before(start_offset)
        self._versions.drop_before(start_offset)
