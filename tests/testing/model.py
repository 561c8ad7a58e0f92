"""A correct cluster as a model, which writes a history, and corruptions of such a history.

A partition is a list of records and a high watermark. Records with acks=all are acknowledged below
it; a change of leader cuts what is above it. Consumers read below it. Answers get lost, plain
producers repeat, polls are cancelled.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass, field, replace

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
    Outcome,
    PollCancelled,
    ProducerMade,
    ReadDone,
    Sent,
    Sought,
    identity_of,
)

TOPIC, PARTITIONS, LIMIT_MS = "t", 2, 500.0
PRODUCERS = {
    "i": (-1, True),
    "j": (-1, True),
    "all": (-1, False),
    "one": (1, False),
    "no": (0, False),
}
CONSUMERS = ("c", "d")


@dataclass
class _Log:
    records: list[str] = field(default_factory=list)
    high_watermark: int = 0
    waiting: list[tuple[int, str, tuple[tuple[int, int], ...]]] = field(default_factory=list)
    """Sends with acks=all that are not acknowledged: (end, op, places)."""


class Model:
    """Writes one history under a seed; `entries` has it."""

    def __init__(self, seed: int) -> None:
        self.rng = random.Random(seed)
        self.entries: list[Entry] = []
        self.logs = [_Log() for _ in range(PARTITIONS)]
        self.sequences = dict.fromkeys(PRODUCERS, 0)
        self.positions: dict[tuple[str, int], int] = {}
        for name, (acks, idempotent) in PRODUCERS.items():
            self.add(ProducerMade(0, name, acks, idempotent, SINGLE, LIMIT_MS))
        assigned = tuple((TOPIC, p) for p in range(PARTITIONS))
        for name in CONSUMERS:
            self.add(ConsumerMade(0, name, "read_uncommitted", assigned))
            for partition in range(PARTITIONS):
                self._seek(name, partition, 0)

    def add(self, entry: Entry) -> None:
        self.entries.append(replace(entry, at_ms=float(len(self.entries))))

    def run(self, steps: int = 120) -> list[Entry]:
        actions = (self.send, self.send, self.commit, self.read, self.read, self.change_leader)
        for _ in range(steps):
            self.rng.choice((*actions, self.look, self.seek, self.cancel))(faults=True)
        for partition in range(PARTITIONS):
            self._commit(partition)
        self.add(Calmed(0))
        for _ in range(steps // 4):
            self.rng.choice((self.send, self.commit, self.read))(faults=False)
        for partition, log in enumerate(self.logs):
            self._commit(partition)
            end = len(log.records)
            self._read("final", FINAL, partition, 0, end)
            self.add(LogEnded(0, TOPIC, partition, 0, end))
            for name in CONSUMERS:
                self._read(name, "poll", partition, self.positions[name, partition], end)
        return self.entries

    def send(self, *, faults: bool) -> None:
        name = self.rng.choice(list(PRODUCERS))
        acks, idempotent = PRODUCERS[name]
        partition = self.rng.randrange(PARTITIONS)
        log = self.logs[partition]
        first = self.sequences[name] + 1
        records = tuple((first + n, self.rng.choice("abc")) for n in range(self.rng.randint(1, 3)))
        self.sequences[name] += len(records)
        op = f"{name}/{first}"
        stated = self.rng.choice((partition, None))
        self.add(Sent(0, name, op, TOPIC, stated, records))
        luck = self.rng.random()
        if luck < 0.1:
            self.add(Outcome(0, op, REFUSED, (), "MessageTooLargeError"))
            return
        if faults and luck < 0.2:
            self.add(Outcome(0, op, UNKNOWN, (), "RequestTimedOutError"))
            if luck < 0.15:
                return  # it was not written, the others were
        named = [identity_of(name, sequence, key) for sequence, key in records]
        if faults and not idempotent and luck > 0.9:
            log.records += named  # its answer is lost, and it is sent again
        begin = len(log.records)
        log.records += named
        places = tuple((partition, begin + n) for n in range(len(named)))
        if faults and luck < 0.2:
            return
        if acks == -1:
            log.waiting.append((len(log.records), op, places))
        else:
            unknown = tuple((partition, -1) for _ in named)
            self.add(Outcome(0, op, ACKNOWLEDGED, places if acks else unknown))

    def commit(self, *, faults: bool) -> None:
        self._commit(self.rng.randrange(PARTITIONS))

    def _commit(self, partition: int) -> None:
        log = self.logs[partition]
        log.high_watermark = len(log.records)
        for _, op, places in log.waiting:
            self.add(Outcome(0, op, ACKNOWLEDGED, places))
        log.waiting = []

    def change_leader(self, *, faults: bool) -> None:
        partition = self.rng.randrange(PARTITIONS)
        log = self.logs[partition]
        self.add(FaultNoted(0, f"the leader of {partition} changes"))
        del log.records[self.rng.randint(log.high_watermark, len(log.records)) :]
        for end, op, _ in log.waiting:
            if end > len(log.records):
                self.add(Outcome(0, op, UNKNOWN, (), "RequestTimedOutError"))
        log.waiting = [found for found in log.waiting if found[0] <= len(log.records)]

    def read(self, *, faults: bool) -> None:
        name, partition = self.rng.choice(CONSUMERS), self.rng.randrange(PARTITIONS)
        end, begin = self.logs[partition].high_watermark, self.positions[name, partition]
        if begin < end:
            self._read(name, "poll", partition, begin, self.rng.randint(begin + 1, end))

    def _read(self, name: str, how: str, partition: int, begin: int, end: int) -> None:
        log = self.logs[partition]
        records = tuple((offset, log.records[offset]) for offset in range(begin, end))
        watermark = self.rng.choice((-1, log.high_watermark))
        self.add(ReadDone(0, name, how, TOPIC, partition, records, end, watermark))
        self.positions[name, partition] = end

    def look(self, *, faults: bool) -> None:
        partition = self.rng.randrange(PARTITIONS)
        self.add(EndSeen(0, "c", TOPIC, partition, self.logs[partition].high_watermark))

    def seek(self, *, faults: bool) -> None:
        name, partition = self.rng.choice(CONSUMERS), self.rng.randrange(PARTITIONS)
        self._seek(name, partition, self.rng.randint(0, self.logs[partition].high_watermark))

    def _seek(self, name: str, partition: int, offset: int) -> None:
        self.add(Sought(0, name, TOPIC, partition, offset))
        self.positions[name, partition] = offset

    def cancel(self, *, faults: bool) -> None:
        self.add(PollCancelled(0, self.rng.choice(CONSUMERS), "poll"))


# Corruptions. Each changes one thing; None if the history has no place for it.

Corruption = Callable[[list[Entry], random.Random], list[Entry] | None]


def _pick(
    entries: list[Entry], rng: random.Random, fits: Callable[[Entry], bool]
) -> tuple[int, Entry] | None:
    found = [(index, entry) for index, entry in enumerate(entries) if fits(entry)]
    return rng.choice(found) if found else None


def _with(entries: list[Entry], index: int, *instead: Entry) -> list[Entry]:
    return [*entries[:index], *instead, *entries[index + 1 :]]


def _acks(entries: list[Entry], op: str) -> int:
    return PRODUCERS[op.split("/")[0]][0]


def _is_read(how: str) -> Callable[[Entry], bool]:
    return lambda e: isinstance(e, ReadDone) and e.how == how and len(e.records) > 0


def loses_an_acknowledged_record(entries: list[Entry], rng: random.Random) -> list[Entry] | None:
    found = _pick(
        entries,
        rng,
        lambda e: isinstance(e, Outcome) and e.state == ACKNOWLEDGED and _acks(entries, e.op) == -1,
    )
    if found is None:
        return None
    assert isinstance(found[1], Outcome)
    partition, offset = rng.choice(found[1].places)
    for index, entry in enumerate(entries):
        if isinstance(entry, ReadDone) and entry.how == FINAL and entry.partition == partition:
            kept = tuple(record for record in entry.records if record[0] != offset)
            return _with(entries, index, replace(entry, records=kept))
    return None


def acknowledges_another_offset(entries: list[Entry], rng: random.Random) -> list[Entry] | None:
    found = _pick(
        entries,
        rng,
        lambda e: isinstance(e, Outcome) and e.state == ACKNOWLEDGED and _acks(entries, e.op) == -1,
    )
    if found is None:
        return None
    index, entry = found
    assert isinstance(entry, Outcome)
    places = tuple((partition, offset + 1) for partition, offset in entry.places)
    return _with(entries, index, replace(entry, places=places))


def damages_a_record(entries: list[Entry], rng: random.Random) -> list[Entry] | None:
    found = _pick(entries, rng, _is_read(rng.choice(("poll", FINAL))))
    if found is None:
        return None
    index, entry = found
    assert isinstance(entry, ReadDone)
    spot = rng.randrange(len(entry.records))
    records = list(entry.records)
    records[spot] = (records[spot][0], records[spot][1] + "?")
    return _with(entries, index, replace(entry, records=tuple(records)))


def writes_a_refused_record(entries: list[Entry], rng: random.Random) -> list[Entry] | None:
    refused = [e.op for e in entries if isinstance(e, Outcome) and e.state == REFUSED]
    sends = [e for e in entries if isinstance(e, Sent) and e.op in refused]
    final = _pick(entries, rng, lambda e: isinstance(e, LogEnded))
    if not sends or final is None:
        return None
    sent = rng.choice(sends)
    identity = identity_of(sent.client, *sent.records[0])
    return _appended(entries, final[0], identity)


def writes_an_idempotent_record_twice(
    entries: list[Entry], rng: random.Random
) -> list[Entry] | None:
    found = _pick(
        entries,
        rng,
        lambda e: isinstance(e, ReadDone) and e.how == FINAL and any(_idem(r) for r in e.records),
    )
    if found is None:
        return None
    index, entry = found
    assert isinstance(entry, ReadDone)
    _, identity = rng.choice([record for record in entry.records if _idem(record)])
    return _appended(entries, index + 1, identity)


def _idem(record: tuple[int, str]) -> bool:
    return PRODUCERS[record[1].split(":")[0]][1]


def _appended(entries: list[Entry], index: int, identity: str) -> list[Entry]:
    """The final log that ends at `index` with one more record."""
    end, read = entries[index], entries[index - 1]
    assert isinstance(end, LogEnded) and isinstance(read, ReadDone)
    records = (*read.records, (end.end, identity))
    longer = replace(read, records=records, next_offset=end.end + 1)
    return [*entries[: index - 1], longer, replace(end, end=end.end + 1), *entries[index + 1 :]]


def swaps_records_of_an_idempotent_producer(
    entries: list[Entry], rng: random.Random
) -> list[Entry] | None:
    """Everywhere, so that all readers agree."""
    found = _pick(
        entries,
        rng,
        lambda e: (
            isinstance(e, ReadDone)
            and e.how == FINAL
            and sum(record[1].startswith("i:") for record in e.records) > 1
        ),
    )
    if found is None:
        return None
    assert isinstance(found[1], ReadDone)
    one, other = rng.sample([r[1] for r in found[1].records if r[1].startswith("i:")], 2)
    exchange = {one: other, other: one}
    return [
        replace(e, records=tuple((o, exchange.get(name, name)) for o, name in e.records))
        if isinstance(e, ReadDone)
        else e
        for e in entries
    ]


def shows_another_record(entries: list[Entry], rng: random.Random) -> list[Entry] | None:
    found = _pick(entries, rng, _is_read("poll"))
    if found is None:
        return None
    index, entry = found
    assert isinstance(entry, ReadDone)
    spot = rng.randrange(len(entry.records))
    others = [e for e in entries[:index] if isinstance(e, Sent)]
    sent = rng.choice(others)
    identity = identity_of(sent.client, *sent.records[0])
    if identity == entry.records[spot][1]:
        return None
    records = list(entry.records)
    records[spot] = (records[spot][0], identity)
    return _with(entries, index, replace(entry, records=tuple(records)))


def skips_a_record(entries: list[Entry], rng: random.Random) -> list[Entry] | None:
    found = _pick(entries, rng, _is_read("poll"))
    if found is None:
        return None
    index, entry = found
    assert isinstance(entry, ReadDone)
    spot = rng.randrange(len(entry.records))
    kept = (*entry.records[:spot], *entry.records[spot + 1 :])
    return _with(entries, index, replace(entry, records=kept))


def reads_again(entries: list[Entry], rng: random.Random) -> list[Entry] | None:
    found = _pick(entries, rng, _is_read("poll"))
    return None if found is None else _with(entries, found[0], found[1], found[1])


def forgets_an_outcome(entries: list[Entry], rng: random.Random) -> list[Entry] | None:
    found = _pick(entries, rng, lambda e: isinstance(e, Outcome))
    return None if found is None else _with(entries, found[0])


def answers_too_late(entries: list[Entry], rng: random.Random) -> list[Entry] | None:
    found = _pick(entries, rng, lambda e: isinstance(e, Outcome))
    if found is None:
        return None
    late = replace(found[1], at_ms=found[1].at_ms + LIMIT_MS + len(entries))
    return _with(entries, found[0], late)


def fails_after_the_faults(entries: list[Entry], rng: random.Random) -> list[Entry] | None:
    calm = next(index for index, entry in enumerate(entries) if isinstance(entry, Calmed))
    late = {entry.op for entry in entries[calm:] if isinstance(entry, Sent)}
    found = _pick(
        entries,
        rng,
        lambda e: isinstance(e, Outcome) and e.state == ACKNOWLEDGED and e.op in late,
    )
    if found is None:
        return None
    assert isinstance(found[1], Outcome)
    return _with(entries, found[0], Outcome(found[1].at_ms, found[1].op, UNKNOWN, (), "?"))


def stops_a_consumer(entries: list[Entry], rng: random.Random) -> list[Entry] | None:
    """The last read of a consumer is missing."""
    name, partition = rng.choice(CONSUMERS), rng.randrange(PARTITIONS)
    for index in range(len(entries) - 1, -1, -1):
        entry = entries[index]
        if isinstance(entry, ReadDone) and (entry.client, entry.partition) == (name, partition):
            return _with(entries, index) if entry.records else None
    return None


def shows_an_end_too_far(entries: list[Entry], rng: random.Random) -> list[Entry] | None:
    ends = {e.partition: e.end for e in entries if isinstance(e, LogEnded)}
    found = _pick(entries, rng, lambda e: isinstance(e, EndSeen))
    if found is None:
        return None
    assert isinstance(found[1], EndSeen)
    return _with(entries, found[0], replace(found[1], offset=ends[found[1].partition] + 1))


def shows_a_record_that_is_truncated(
    entries: list[Entry], rng: random.Random
) -> list[Entry] | None:
    """The last record of the final log, which a consumer has seen, is gone."""
    found = _pick(entries, rng, _is_read(FINAL))
    if found is None:
        return None
    read, end = found[1], entries[found[0] + 1]
    assert isinstance(read, ReadDone) and isinstance(end, LogEnded)
    shorter = replace(read, records=read.records[:-1], next_offset=end.end - 1)
    cut = [*entries[: found[0]], shorter, replace(end, end=end.end - 1)]
    return [*cut, *entries[found[0] + 2 :]]


def reads_before_the_send(entries: list[Entry], rng: random.Random) -> list[Entry] | None:
    found = _pick(entries, rng, _is_read("poll"))
    if found is None:
        return None
    index, entry = found
    return [entry, *entries[:index], *entries[index + 1 :]]


CORRUPTIONS: dict[Corruption, set[str]] = {
    loses_an_acknowledged_record: {"acknowledged"},
    acknowledges_another_offset: {"acknowledged"},
    damages_a_record: {"no phantom"},
    writes_a_refused_record: {"no phantom"},
    writes_an_idempotent_record_twice: {"no duplicate"},
    swaps_records_of_an_idempotent_producer: {"order"},
    shows_another_record: {"never changes"},
    skips_a_record: {"positions"},
    reads_again: {"positions"},
    forgets_an_outcome: {"every delivery ends"},
    answers_too_late: {"every delivery ends"},
    fails_after_the_faults: {"every delivery ends"},
    stops_a_consumer: {"the end is reached"},
    shows_an_end_too_far: {"never changes"},
    shows_a_record_that_is_truncated: {"never changes"},
    reads_before_the_send: {"no phantom"},
}
"""Each corruption, and rules that must find it."""
