"""The lines of a history: client-side operations in the order in which they happened, as JSON.

Each entry is one line: its kind, its time, and its fields. Times are ms of the writer's clock and
for reading; rules use the order of lines, and times only for limits.

A record's identity is a text, `producer:sequence:key`. Its value begins with the identity and goes
on with a padding that the identity determines. A damaged or mixed-up record is therefore noticed by
the reader. A sequence counts the records of one producer over all partitions.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, fields
from typing import Any, TextIO

from tidemark.errors import TidemarkError

ACKNOWLEDGED, REFUSED, UNKNOWN = "acknowledged", "refused", "unknown"
SINGLE, ARROW = "single", "arrow"
FINAL = "final"


class HistoryError(TidemarkError):
    """A line is no entry of a history; the message names the line."""


@dataclass(frozen=True, slots=True)
class Entry:
    """Base of all entries."""

    at_ms: float


@dataclass(frozen=True, slots=True)
class ProducerMade(Entry):
    """A producer begins. Each of its records has an outcome within `limit_ms` of its send.

    `acks` is -1, 1 or 0. `form` is that of all its sends: single records, or Arrow tables.
    """

    client: str
    acks: int
    idempotent: bool
    form: str
    limit_ms: float


@dataclass(frozen=True, slots=True)
class ConsumerMade(Entry):
    """A consumer begins; `assigned` has its partitions as (topic, partition)."""

    client: str
    isolation: str
    assigned: tuple[tuple[str, int], ...]


@dataclass(frozen=True, slots=True)
class Sent(Entry):
    """One call of send; `records` are (sequence, key). A `partition` of None is left to the
    producer.
    """

    client: str
    op: str
    topic: str
    partition: int | None
    records: tuple[tuple[int, str], ...]


@dataclass(frozen=True, slots=True)
class Outcome(Entry):
    """The end of a send.

    - acknowledged: `places` has (partition, offset) of each record; the offset is -1 if unknown
    - refused: no record was written, nor will be
    - unknown: each record may be written, now or later
    """

    op: str
    state: str
    places: tuple[tuple[int, int], ...] = ()
    error: str = ""


@dataclass(frozen=True, slots=True)
class Sought(Entry):
    """A consumer's position was set; an `offset` of None is looked up by the next poll."""

    client: str
    topic: str
    partition: int
    offset: int | None


@dataclass(frozen=True, slots=True)
class ReadDone(Entry):
    """Records of one partition reached a consumer: `records` are (offset, identity).

    `next_offset` is its position afterwards. `how` is the call that was made, "position" for a
    position alone, or "final" for the read of the whole log at the end.
    `high_watermark` is -1 where the call reports none.
    """

    client: str
    how: str
    topic: str
    partition: int
    records: tuple[tuple[int, str], ...]
    next_offset: int
    high_watermark: int = -1


@dataclass(frozen=True, slots=True)
class PollCancelled(Entry):
    """A call of a consumer was cancelled: it delivers nothing and moves no position."""

    client: str
    how: str


@dataclass(frozen=True, slots=True)
class PollFailed(Entry):
    """A call of a consumer raised: it delivers nothing and moves no position."""

    client: str
    how: str
    error: str


@dataclass(frozen=True, slots=True)
class EndSeen(Entry):
    """A consumer asked for the end offset: everything below it is committed."""

    client: str
    topic: str
    partition: int
    offset: int


@dataclass(frozen=True, slots=True)
class Misbehaved(Entry):
    """A client did what none may do: it hung, or raised an error that is no TidemarkError."""

    client: str
    what: str


@dataclass(frozen=True, slots=True)
class FaultNoted(Entry):
    """A fault began or ended; for people who read the history."""

    what: str


@dataclass(frozen=True, slots=True)
class Calmed(Entry):
    """The faults are over and all replicas are in sync: from here on, everything succeeds."""


@dataclass(frozen=True, slots=True)
class LogEnded(Entry):
    """The final read of a partition is complete, from `start` up to `end`."""

    topic: str
    partition: int
    start: int
    end: int


KINDS: dict[str, type[Entry]] = {
    "producer": ProducerMade,
    "consumer": ConsumerMade,
    "send": Sent,
    "outcome": Outcome,
    "seek": Sought,
    "read": ReadDone,
    "cancelled": PollCancelled,
    "failed": PollFailed,
    "end": EndSeen,
    "misbehaved": Misbehaved,
    "fault": FaultNoted,
    "calm": Calmed,
    "log": LogEnded,
}
_NAMES = {kind: name for name, kind in KINDS.items()}


def identity_of(producer: str, sequence: int, key: str) -> str:
    """The identity of a record; a key of "" is that of a record without a key."""
    return f"{producer}:{sequence}:{key}"


def value_of(identity: str, padding_bytes: int) -> bytes:
    """The value of a record with this identity."""
    text = identity.encode()
    padding = (text * (padding_bytes // len(text) + 1))[:padding_bytes]
    return b"%s|%d|%s" % (text, padding_bytes, padding)


def identify(key: bytes | None, value: bytes | None) -> str:
    """The identity of a record as read; one that was sent by nobody if the record is damaged."""
    try:
        name, size, _ = (value or b"").split(b"|", 2)
        identity = name.decode()
        if value == value_of(identity, int(size)) and identity.split(":", 2)[2] == (
            (key or b"").decode()
        ):
            return identity
    except (ValueError, IndexError):
        pass
    return f"damaged, key {key!r}, value {(value or b'')[:60]!r}"


def to_line(entry: Entry) -> str:
    """An entry as a line of JSON, without the end of the line."""
    found: dict[str, Any] = {"is": _NAMES[type(entry)]}
    for item in fields(entry):
        found[item.name] = getattr(entry, item.name)
    found["at_ms"] = round(entry.at_ms, 3)
    return json.dumps(found, separators=(",", ":"))


def from_line(line: str, number: int = 0) -> Entry:
    """The entry of a line. Raises HistoryError."""
    try:
        found = json.loads(line)
        kind = KINDS[found.pop("is")]
        return kind(**{name: _frozen(value) for name, value in found.items()})
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise HistoryError(f"line {number} is no entry of a history ({error}): {line[:80]}") from (
            error
        )


def _frozen(value: Any) -> Any:
    return tuple(_frozen(item) for item in value) if isinstance(value, list) else value


def read_history(lines: Iterable[str]) -> list[Entry]:
    """The entries of a file. Leaves out a last line that was not written to its end.

    Raises HistoryError for any other line that is no entry.
    """
    return list(_entries(lines))


def _entries(lines: Iterable[str]) -> Iterator[Entry]:
    for number, line in enumerate(lines, start=1):
        if line.endswith("\n"):
            yield from_line(line, number)


class History:
    """Collects entries, and writes each to a file as it comes.

    `clock_ms` gives the time of an entry. The writer of a file may be killed at any moment.
    """

    def __init__(self, clock_ms: Callable[[], float], file: TextIO | None = None) -> None:
        self.entries: list[Entry] = []
        self._clock_ms = clock_ms
        self._file = file

    def now_ms(self) -> float:
        """The time for the next entry."""
        return self._clock_ms()

    def add(self, entry: Entry) -> None:
        """Appends an entry."""
        self.entries.append(entry)
        if self._file is not None:
            self._file.write(to_line(entry) + "\n")

    def note_fault(self, what: str) -> None:
        """Appends a fault that began or ended."""
        self.add(FaultNoted(self.now_ms(), what))
