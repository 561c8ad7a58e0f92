"""The state machine of one partition, as the runtime drives it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

from coordinator.runtime.now import Now
from coordinator.runtime.result import CoordinatorResult


class CoordinatorShard(Protocol):
    """Pure: no clock, no IO. Only `replay` and `end_transaction` change what the log tells."""

    def replay(self, key: Any, value: Any | None, offset: int, producer_id: int) -> None:
        """Applies a record, of the log at a load or of the last decision. `producer_id` is that of
        a transaction's batch, else -1."""
        ...

    def end_transaction(self, producer_id: int, committed: bool) -> None:
        """Applies a transaction marker."""
        ...

    def loaded(self, epoch: int, now: Now) -> None:
        """The log was replayed; `epoch` is the leader epoch of this broker."""
        ...

    def next_deadline_ms(self) -> int | None:
        """When `on_deadline` is to be called, by the monotonic clock; None: not before the next
        event."""
        ...

    def on_deadline(self, now: Now) -> Sequence[CoordinatorResult[None]]:
        """Decisions that are due; a bounded number. Called again while a deadline has passed."""
        ...
