"""Indexes over a history that the rules share: sends by identity, the final log, the first sight of
each offset.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from tidemark.testing.history import (
    ACKNOWLEDGED,
    FINAL,
    Calmed,
    ConsumerMade,
    EndSeen,
    Entry,
    LogEnded,
    Outcome,
    ProducerMade,
    ReadDone,
    Sent,
    identity_of,
)
from tidemark.types import TopicPartition


class Sight(NamedTuple):
    """An identity, and the line that shows it."""

    identity: str
    line: int


class Acknowledgement(NamedTuple):
    """A record that was acknowledged, and where; `line` is that of the outcome."""

    identity: str
    sequence: int
    sent: Sent
    partition: TopicPartition
    offset: int
    line: int


class Facts:
    """A history with its indexes. Lines count from 1."""

    def __init__(self, entries: Sequence[Entry]) -> None:
        self.entries = entries
        self.producers: dict[str, ProducerMade] = {}
        self.consumers: dict[str, tuple[int, ConsumerMade]] = {}
        self.sends: dict[str, tuple[int, Sent]] = {}
        self.outcomes: dict[str, tuple[int, Outcome]] = {}
        self.sent: dict[str, tuple[int, Sent]] = {}
        self.reads: list[tuple[int, ReadDone]] = []
        self.final: dict[TopicPartition, dict[int, Sight]] = {}
        self.seen: dict[TopicPartition, dict[int, Sight]] = {}
        self.bounds: dict[TopicPartition, LogEnded] = {}
        self.calm_line: int | None = None
        self._committed: dict[TopicPartition, tuple[list[int], list[int]]] = {}
        for line, entry in enumerate(entries, start=1):
            self._take(line, entry)

    def _take(self, line: int, entry: Entry) -> None:
        match entry:
            case Sent():
                self.sends.setdefault(entry.op, (line, entry))
                for sequence, key in entry.records:
                    identity = identity_of(entry.client, sequence, key)
                    self.sent.setdefault(identity, (line, entry))
            case Outcome():
                self.outcomes.setdefault(entry.op, (line, entry))
                if entry.op in self.sends and self.acks_of(self.sends[entry.op][1]) == -1:
                    for place in self._places(entry.op):
                        self._commit(place.partition, place.offset, line)
            case ReadDone():
                self._read(line, entry)
            case EndSeen():
                partition = TopicPartition(entry.topic, entry.partition)
                self._commit(partition, entry.offset - 1, line)
            case ProducerMade():
                self.producers[entry.client] = entry
            case ConsumerMade():
                self.consumers[entry.client] = (line, entry)
            case LogEnded():
                self.bounds[TopicPartition(entry.topic, entry.partition)] = entry
            case Calmed():
                self.calm_line = line

    def _read(self, line: int, entry: ReadDone) -> None:
        self.reads.append((line, entry))
        partition = TopicPartition(entry.topic, entry.partition)
        seen = self.seen.setdefault(partition, {})
        final = self.final.setdefault(partition, {}) if entry.how == FINAL else {}
        for offset, identity in entry.records:
            seen.setdefault(offset, Sight(identity, line))
            final.setdefault(offset, Sight(identity, line))
        if entry.records:
            self._commit(partition, entry.records[-1][0], line)
        self._commit(partition, entry.high_watermark - 1, line)

    def _commit(self, partition: TopicPartition, offset: int, line: int) -> None:
        lines, offsets = self._committed.setdefault(partition, ([], []))
        if offset > (offsets[-1] if offsets else -1):
            lines.append(line)
            offsets.append(offset)

    def committed_before(self, partition: TopicPartition, line: int) -> tuple[int, int]:
        """The last offset known to be committed before a line, and the line that shows it.

        (-1, 0) if none was.
        """
        lines, offsets = self._committed.get(partition, ([], []))
        index = bisect_left(lines, line) - 1
        return (offsets[index], lines[index]) if index >= 0 else (-1, 0)

    def acks_of(self, sent: Sent) -> int:
        """The acks of a send's producer; 0, which promises nothing, if it is not known."""
        made = self.producers.get(sent.client)
        return 0 if made is None else made.acks

    def _places(self, op: str) -> Iterator[Acknowledgement]:
        line, outcome = self.outcomes[op]
        sent = self.sends[op][1]
        if outcome.state != ACKNOWLEDGED:
            return
        for (sequence, key), (number, offset) in zip(sent.records, outcome.places, strict=False):
            identity = identity_of(sent.client, sequence, key)
            partition = TopicPartition(sent.topic, number)
            yield Acknowledgement(identity, sequence, sent, partition, offset, line)

    def acknowledged(self, acks: int) -> Iterator[Acknowledgement]:
        """The records acknowledged with these acks, in the order of their outcomes."""
        for op in self.outcomes:
            if op in self.sends and self.acks_of(self.sends[op][1]) == acks:
                yield from self._places(op)
