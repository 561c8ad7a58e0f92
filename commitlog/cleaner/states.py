"""States of the cleanings by partition: truncation, deletion and retention take precedence.

    from        | to          | verb      | when
    ------------+-------------+-----------+-----------------------------------------------
    idle        | IN_PROGRESS | begin     | a cleaner takes the partition
    IN_PROGRESS | idle        | finish    | it is done, or failed
    IN_PROGRESS | ABORTED     | abort     | the log is cut, deleted or about to be paused
    IN_PROGRESS | ABORTED     | pause     | (its pauses are counted)
    ABORTED     | PAUSED      | finish    | the cleaner noticed; pauses are left
    ABORTED     | idle        | finish    | the cleaner noticed; no pause is left
    idle        | PAUSED      | pause     | no cleaning may begin
    PAUSED      | idle        | resume    | the last pause is over

Elsewhere `begin`, `finish` and a `resume` without a pause raise ValueError, and `abort` does
nothing. Source: Kafka's LogCleaningState. There pausing waits for the cleaner. Here it does not,
because an aborted cleaning can no longer change the log.
"""

from __future__ import annotations

import enum

from tidemark.types import TopicPartition


class CleaningState(enum.Enum):
    IN_PROGRESS = "in progress"
    ABORTED = "aborted"
    PAUSED = "paused"


class CleaningStates:
    """Partitions that are not idle; belongs to one thread."""

    def __init__(self) -> None:
        self._states: dict[TopicPartition, CleaningState] = {}
        self._pauses: dict[TopicPartition, int] = {}

    def get(self, partition: TopicPartition) -> CleaningState | None:
        """Returns the state of a partition; None if it is idle."""
        return self._states.get(partition)

    def begin(self, partition: TopicPartition) -> None:
        """Begins a cleaning. Raises ValueError if the partition is not idle."""
        if partition in self._states:
            raise ValueError(f"{partition} is {self._states[partition].value}: it can not begin")
        self._states[partition] = CleaningState.IN_PROGRESS

    def finish(self, partition: TopicPartition) -> bool:
        """Ends a cleaning; returns whether its result counts, that is, whether it was not
        aborted.
        """
        state = self._states.get(partition)
        if state not in (CleaningState.IN_PROGRESS, CleaningState.ABORTED):
            raise ValueError(f"{partition} is not being cleaned")
        if self._pauses.get(partition):
            self._states[partition] = CleaningState.PAUSED
        else:
            del self._states[partition]
        return state is CleaningState.IN_PROGRESS

    def abort(self, partition: TopicPartition) -> None:
        """Aborts the cleaning of a partition, if there is one: it ends without effect."""
        if self._states.get(partition) is CleaningState.IN_PROGRESS:
            self._states[partition] = CleaningState.ABORTED

    def pause(self, partition: TopicPartition) -> None:
        """Aborts the cleaning, and refuses others until as many calls of `resume`."""
        self.abort(partition)
        self._pauses[partition] = self._pauses.get(partition, 0) + 1
        self._states.setdefault(partition, CleaningState.PAUSED)

    def resume(self, partition: TopicPartition) -> None:
        """Ends one pause. Raises ValueError if there is none."""
        left = self._pauses.get(partition, 0) - 1
        if left < 0:
            raise ValueError(f"{partition} is not paused")
        if left:
            self._pauses[partition] = left
            return
        del self._pauses[partition]
        if self._states[partition] is CleaningState.PAUSED:
            del self._states[partition]

    def validate(self) -> None:
        """Asserts that paused partitions have pauses and idle ones none."""
        assert all(count > 0 for count in self._pauses.values())
        for partition in self._pauses:
            assert partition in self._states
            assert self._states[partition] is not CleaningState.IN_PROGRESS
        for partition, state in self._states.items():
            assert state is not CleaningState.PAUSED or partition in self._pauses
