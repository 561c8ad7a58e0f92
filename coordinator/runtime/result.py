"""A coordinator's decision: records to append, and the answer once they are committed."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Generic, TypeVar

Answer = TypeVar("Answer", covariant=True)
CoordinatorRecord = tuple[Any, Any | None]
"""A key and a value of `coordinator.records`; a value that is None deletes the key."""


@dataclass(frozen=True, slots=True)
class CoordinatorResult(Generic[Answer]):
    """The records are appended as one batch, all or none; then they are replayed. The answer is
    given when they are committed, and with them all that was written before."""

    answer: Answer
    records: tuple[CoordinatorRecord, ...] = ()
