"""A history written by hand, in verbs. One topic "t"; times pass by 1 ms an entry."""

from __future__ import annotations

from dataclasses import replace

from tidemark.testing.checker import broken, judge
from tidemark.testing.history import (
    ACKNOWLEDGED,
    FINAL,
    REFUSED,
    SINGLE,
    UNKNOWN,
    Calmed,
    ConsumerMade,
    EndSeen,
    Entry,
    FaultNoted,
    LogEnded,
    Misbehaved,
    Outcome,
    PollCancelled,
    ProducerMade,
    ReadDone,
    Sent,
    Sought,
    identity_of,
)


class Story:
    """Collects entries; each verb returns the line it wrote."""

    def __init__(self) -> None:
        self.entries: list[Entry] = []

    def _add(self, entry: Entry) -> int:
        self.entries.append(replace(entry, at_ms=float(len(self.entries))))
        return len(self.entries)

    def producer(self, name: str, acks: int = -1, *, idempotent: bool = True) -> int:
        return self._add(ProducerMade(0, name, acks, idempotent, SINGLE, 1000))

    def consumer(self, name: str, *partitions: int) -> int:
        assigned = tuple(("t", p) for p in partitions or (0,))
        return self._add(ConsumerMade(0, name, "read_uncommitted", assigned))

    def send(self, name: str, *sequences: int, partition: int | None = 0) -> int:
        records = tuple((sequence, "k") for sequence in sequences)
        return self._add(Sent(0, name, f"{name}/{sequences[0]}", "t", partition, records))

    def acked(self, name: str, sequence: int, *offsets: int, partition: int = 0) -> int:
        places = tuple((partition, offset) for offset in offsets)
        return self._add(Outcome(0, f"{name}/{sequence}", ACKNOWLEDGED, places))

    def refused(self, name: str, sequence: int) -> int:
        return self._add(Outcome(0, f"{name}/{sequence}", REFUSED, (), "MessageTooLargeError"))

    def unknown(self, name: str, sequence: int) -> int:
        return self._add(Outcome(0, f"{name}/{sequence}", UNKNOWN, (), "RequestTimedOutError"))

    def seek(self, name: str, offset: int | None) -> int:
        return self._add(Sought(0, name, "t", 0, offset))

    def read(
        self, name: str, *records: tuple[int, str], to: int | None = None, watermark: int = -1
    ) -> int:
        """Records as (offset, "producer/sequence"); the position after them is `to`."""
        found = tuple((offset, _named(text)) for offset, text in records)
        position = found[-1][0] + 1 if to is None else to
        return self._add(ReadDone(0, name, "poll", "t", 0, found, position, watermark))

    def cancelled(self, name: str) -> int:
        return self._add(PollCancelled(0, name, "poll"))

    def end_seen(self, name: str, offset: int) -> int:
        return self._add(EndSeen(0, name, "t", 0, offset))

    def misbehaved(self, name: str, what: str) -> int:
        return self._add(Misbehaved(0, name, what))

    def fault(self, what: str) -> int:
        return self._add(FaultNoted(0, what))

    def calm(self) -> int:
        return self._add(Calmed(0))

    def log(self, *texts: str, start: int = 0, end: int | None = None, partition: int = 0) -> int:
        """The final read of a partition; "-" leaves an offset out. Returns the line of the read."""
        found = tuple(
            (offset, _named(text)) for offset, text in enumerate(texts, start) if text != "-"
        )
        last = start + len(texts) if end is None else end
        line = self._add(ReadDone(0, "final", FINAL, "t", partition, found, last))
        self._add(LogEnded(0, "t", partition, start, last))
        return line

    def broken(self) -> list[str]:
        return broken(judge(self.entries))

    def shown(self, rule: str) -> list[tuple[int, ...]]:
        """The lines of each finding of a rule."""
        return [
            finding.lines
            for verdict in judge(self.entries)
            if verdict.rule == rule
            for finding in verdict.findings
        ]


def told(story: Story, rule: str) -> str:
    """The messages of a rule's findings."""
    found = next(verdict for verdict in judge(story.entries) if verdict.rule == rule)
    return "\n".join(finding.message for finding in found.findings)


def _named(text: str) -> str:
    producer, _, sequence = text.partition("/")
    return identity_of(producer, int(sequence), "k") if sequence else text
