"""The promises of a cluster to its clients, each a pure function over the facts of a history.

A rule counts the things it examined and reports those that break it. A correct cluster breaks none
whatever happens to it, as long as no election is unclean and no topic is made anew.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import pairwise
from typing import NamedTuple

from tidemark.testing.facts import Acknowledgement, Facts, Sight
from tidemark.testing.history import (
    ACKNOWLEDGED,
    REFUSED,
    EndSeen,
    Misbehaved,
    Outcome,
    ReadDone,
    Sent,
    Sought,
)
from tidemark.types import TopicPartition


class Breach(NamedTuple):
    """One case of a broken promise, and the lines of the history that show it."""

    message: str
    lines: tuple[int, ...]


@dataclass(slots=True)
class Verdict:
    """The result of one rule: the number of things it examined, and its findings."""

    rule: str
    promise: str
    examined: int = 0
    findings: list[Breach] = field(default_factory=list)

    def broken(self, message: str, *lines: int) -> None:
        """Adds a finding."""
        self.findings.append(Breach(message, tuple(sorted({n for n in lines if n > 0}))))


Rule = Callable[[Facts, Verdict], None]


def acknowledged(facts: Facts, verdict: Verdict) -> None:
    """A record acknowledged with acks=all is at its offset."""
    places = {identity for log in facts.final.values() for identity, _ in log.values()}
    for place in facts.acknowledged(-1):
        _at_its_offset(facts, verdict, place, places)


def acknowledged_by_one(facts: Facts, verdict: Verdict) -> None:
    """A record acknowledged with acks=1 after the faults is at its offset.

    The leader alone has it, so that one acknowledged among faults may be lost with its leader.
    """
    places = {identity for log in facts.final.values() for identity, _ in log.values()}
    for place in facts.acknowledged(1):
        if facts.calm_line is not None and facts.sends[place.sent.op][0] > facts.calm_line:
            _at_its_offset(facts, verdict, place, places)


def _at_its_offset(
    facts: Facts, verdict: Verdict, place: Acknowledgement, anywhere: set[str]
) -> None:
    verdict.examined += 1
    sent_line = facts.sends[place.sent.op][0]
    wanted = place.sent.partition
    if wanted is not None and place.partition.partition != wanted:
        verdict.broken(
            f"{place.identity} was sent to partition {wanted} and acknowledged in "
            f"{place.partition}",
            sent_line,
            place.line,
        )
    bounds = facts.bounds.get(place.partition)
    if bounds is None or 0 <= place.offset < bounds.start:
        return
    if place.offset < 0:
        if place.identity not in anywhere:
            verdict.broken(
                f"{place.identity} was acknowledged and is nowhere in the log",
                sent_line,
                place.line,
            )
        return
    found = facts.final.get(place.partition, {}).get(place.offset)
    if found is None or found.identity != place.identity:
        there = "nothing" if found is None else found.identity
        verdict.broken(
            f"{place.identity} was acknowledged at {place.partition} offset {place.offset}; "
            f"{there} is there in the end",
            sent_line,
            place.line,
            0 if found is None else found.line,
        )


def no_phantom(facts: Facts, verdict: Verdict) -> None:
    """A record that is read was sent before, to this partition, and not refused."""
    for line, read in facts.reads:
        for offset, identity in read.records:
            verdict.examined += 1
            where = f"{read.topic}-{read.partition} offset {offset}"
            known = facts.sent.get(identity)
            if known is None:
                verdict.broken(f"{identity} was read at {where}; nobody sent it", line)
                continue
            sent_line, sent = known
            if sent_line > line:
                verdict.broken(f"{identity} was read at {where} before its send", line, sent_line)
            if (sent.topic, sent.partition) not in (
                (read.topic, read.partition),
                (read.topic, None),
            ):
                verdict.broken(
                    f"{identity} was read at {where}; it was sent to {sent.topic}-{sent.partition}",
                    sent_line,
                    line,
                )
            end = facts.outcomes.get(sent.op)
            if end is not None and end[1].state == REFUSED:
                verdict.broken(
                    f"{identity} was refused ({end[1].error}) and read at {where}",
                    sent_line,
                    end[0],
                    line,
                )


def no_duplicate(facts: Facts, verdict: Verdict) -> None:
    """A record of an idempotent producer has one offset."""
    found: dict[str, tuple[TopicPartition, int, int]] = {}
    for partition, seen in facts.seen.items():
        for offset, (identity, line) in sorted(seen.items()):
            known = facts.sent.get(identity)
            if known is None or not _is_idempotent(facts, known[1]):
                continue
            verdict.examined += 1
            first = found.setdefault(identity, (partition, offset, line))
            if first[:2] != (partition, offset):
                verdict.broken(
                    f"{identity} of an idempotent producer is at {first[0]} offset {first[1]} and "
                    f"at {partition} offset {offset}",
                    first[2],
                    line,
                )


def _is_idempotent(facts: Facts, sent: Sent) -> bool:
    made = facts.producers.get(sent.client)
    return made is not None and made.idempotent


def in_order(facts: Facts, verdict: Verdict) -> None:
    """Records of one producer have the order of their sends within a partition.

    Those of an idempotent one as they are in the log. Those of others as they are acknowledged: a
    copy whose answer was lost may be anywhere. With acks=1 an acknowledged record counts if it is
    at its offset and nowhere else.
    """
    rows: dict[tuple[str, TopicPartition], list[tuple[int, int, int, str]]] = {}
    copies: dict[str, int] = {}
    for partition, log in facts.final.items():
        for offset, (identity, line) in log.items():
            copies[identity] = copies.get(identity, 0) + 1
            known = facts.sent.get(identity)
            if known is not None and _is_idempotent(facts, known[1]):
                row = (int(identity.split(":")[1]), offset, line, identity)
                rows.setdefault((known[1].client, partition), []).append(row)
    for acks in (-1, 1):
        for place in facts.acknowledged(acks):
            if place.offset < 0:
                continue
            if acks == 1:
                there = facts.final.get(place.partition, {}).get(place.offset)
                if there is None or there.identity != place.identity:
                    continue
                if copies[place.identity] > 1:
                    continue
            row = (place.sequence, place.offset, place.line, place.identity)
            rows.setdefault((place.sent.client, place.partition), []).append(row)
    for (_, partition), of_one in rows.items():
        of_one.sort()
        for before, after in pairwise(of_one):
            verdict.examined += 1
            if before[1] >= after[1] and before[0] < after[0]:
                verdict.broken(
                    f"{after[3]} was sent after {before[3]} and is before it in {partition}: "
                    f"offsets {after[1]} and {before[1]}",
                    before[2],
                    after[2],
                )


def behind_committed(facts: Facts, verdict: Verdict) -> None:
    """A record lies behind everything that was known to be committed before it was sent."""
    for partition, log in facts.final.items():
        for offset, (identity, line) in log.items():
            known = facts.sent.get(identity)
            if known is None:
                continue
            verdict.examined += 1
            last, shown = facts.committed_before(partition, known[0])
            if last >= offset:
                verdict.broken(
                    f"{identity} is at {partition} offset {offset}, but offset {last} was "
                    f"committed before it was sent",
                    shown,
                    known[0],
                    line,
                )


def never_changes(facts: Facts, verdict: Verdict) -> None:
    """An offset that a consumer has seen has the same record for every reader, for ever.

    An end offset or high watermark that a consumer has seen is not beyond the end of the log.
    """
    for line, read in facts.reads:
        partition = TopicPartition(read.topic, read.partition)
        _not_beyond_end(facts, verdict, partition, read.high_watermark, line)
        for offset, identity in read.records:
            verdict.examined += 1
            first = facts.seen[partition][offset]
            if first.identity != identity:
                verdict.broken(
                    f"{partition} offset {offset} was {first.identity} and then {identity}",
                    first.line,
                    line,
                )
    for partition, seen in facts.seen.items():
        bounds, final = facts.bounds.get(partition), facts.final.get(partition, {})
        if bounds is None:
            continue
        for offset, (identity, line) in seen.items():
            if offset >= bounds.start and offset not in final:
                verdict.broken(
                    f"{identity} was read at {partition} offset {offset}; the log from "
                    f"{bounds.start} to {bounds.end} does not have it in the end",
                    line,
                )
    for line, entry in enumerate(facts.entries, start=1):
        if isinstance(entry, EndSeen):
            partition = TopicPartition(entry.topic, entry.partition)
            _not_beyond_end(facts, verdict, partition, entry.offset, line)


def _not_beyond_end(
    facts: Facts, verdict: Verdict, partition: TopicPartition, end: int, line: int
) -> None:
    bounds = facts.bounds.get(partition)
    if end < 0 or bounds is None:
        return
    verdict.examined += 1
    if end > bounds.end:
        verdict.broken(
            f"{partition} was committed up to {end}, and ends at {bounds.end} in the end", line
        )


def positions_go_forward(facts: Facts, verdict: Verdict) -> None:
    """A consumer that does not seek goes forward and skips no record."""
    positions: dict[tuple[str, TopicPartition], tuple[int | None, int]] = {}
    for line, entry in enumerate(facts.entries, start=1):
        if isinstance(entry, Sought):
            place = entry.client, TopicPartition(entry.topic, entry.partition)
            positions[place] = entry.offset, line
        elif isinstance(entry, ReadDone):
            place = entry.client, TopicPartition(entry.topic, entry.partition)
            verdict.examined += 1
            before, shown = positions.get(place, (None, 0))
            _follows(facts, verdict, entry, line, before, shown)
            positions[place] = entry.next_offset, line


def _follows(
    facts: Facts, verdict: Verdict, read: ReadDone, line: int, before: int | None, shown: int
) -> None:
    """Checks a read after a position that line `shown` tells."""
    partition = TopicPartition(read.topic, read.partition)
    offsets = [offset for offset, _ in read.records]
    start = before if before is not None else (offsets[0] if offsets else read.next_offset)
    steps = [start, *(offset + 1 for offset in offsets), read.next_offset]
    if any(after < step for step, after in zip(steps, [*offsets, read.next_offset], strict=False)):
        verdict.broken(
            f"{read.client} was at {start} of {partition} and went back: offsets "
            f"{_short(offsets)}, then the position {read.next_offset}",
            shown,
            line,
        )
        return
    bounds = facts.bounds.get(partition)
    first = max(start, bounds.start if bounds is not None else 0)
    given = set(offsets)
    known = facts.seen.get(partition, {})
    skipped: list[tuple[int, Sight]] = [
        (offset, known[offset])
        for offset in range(first, read.next_offset)
        if offset in known and offset not in given
    ]
    if skipped:
        verdict.broken(
            f"{read.client} went from {start} to {read.next_offset} of {partition} and did not "
            f"get {_short([offset for offset, _ in skipped])}",
            shown,
            line,
            skipped[0][1].line,
        )


def _short(offsets: list[int]) -> str:
    if len(offsets) > 6:
        return f"{offsets[0]}..{offsets[-1]} ({len(offsets)})"
    return ", ".join(map(str, offsets)) or "none"


def every_delivery_ends(facts: Facts, verdict: Verdict) -> None:
    """Every delivery has one outcome, in its time. After the faults it is acknowledged or
    refused.
    """
    ended: dict[str, int] = {}
    for line, entry in enumerate(facts.entries, start=1):
        if isinstance(entry, Outcome):
            if entry.op not in facts.sends:
                verdict.broken(f"{entry.op} has an outcome and was not sent", line)
            elif entry.op in ended:
                verdict.broken(f"{entry.op} has two outcomes", ended[entry.op], line)
            elif entry.state == ACKNOWLEDGED:
                sent = facts.sends[entry.op][1]
                if len(entry.places) != len(sent.records):
                    verdict.broken(
                        f"{entry.op} sent {len(sent.records)} records and has "
                        f"{len(entry.places)} places",
                        facts.sends[entry.op][0],
                        line,
                    )
            ended.setdefault(entry.op, line)
    for op, (line, sent) in facts.sends.items():
        verdict.examined += 1
        end = facts.outcomes.get(op)
        if end is None:
            verdict.broken(f"{op} has no outcome", line)
            continue
        made = facts.producers.get(sent.client)
        took_ms = end[1].at_ms - sent.at_ms
        if made is not None and took_ms > made.limit_ms:
            verdict.broken(
                f"{op} had its outcome after {took_ms:.0f} ms; its limit is {made.limit_ms:.0f}",
                line,
                end[0],
            )
        late = facts.calm_line is not None and line > facts.calm_line
        if late and end[1].state not in (ACKNOWLEDGED, REFUSED):
            verdict.broken(
                f"{op} was sent after the faults and failed: {end[1].error}", line, end[0]
            )


def consumers_reach_the_end(facts: Facts, verdict: Verdict) -> None:
    """After the faults every log is read to its end, by each consumer that has it."""
    if facts.calm_line is None:
        return
    wanted = {TopicPartition(*p) for _, made in facts.consumers.values() for p in made.assigned}
    wanted |= {place.partition for acks in (-1, 0, 1) for place in facts.acknowledged(acks)}
    for partition in sorted(wanted - facts.bounds.keys()):
        verdict.broken(f"{partition} was not read to its end after the faults", facts.calm_line)
    last: dict[tuple[str, TopicPartition], tuple[int, int]] = {}
    for line, read in facts.reads:
        if line > facts.calm_line:
            place = read.client, TopicPartition(read.topic, read.partition)
            last[place] = read.next_offset, line
    for client, (made_line, made) in facts.consumers.items():
        for partition in (TopicPartition(*p) for p in made.assigned):
            bounds = facts.bounds.get(partition)
            if bounds is None:
                continue
            verdict.examined += 1
            position, line = last.get((client, partition), (-1, made_line))
            if position < bounds.end:
                at = "nowhere" if position < 0 else str(position)
                verdict.broken(
                    f"{client} did not reach the end of {partition} after the faults: it was at "
                    f"{at} of {bounds.end}",
                    facts.calm_line,
                    line,
                )


def nothing_unforeseen(facts: Facts, verdict: Verdict) -> None:
    """No client hangs, and none raises an error that nobody foresaw."""
    verdict.examined = len(facts.producers) + len(facts.consumers)
    for line, entry in enumerate(facts.entries, start=1):
        if isinstance(entry, Misbehaved):
            verdict.broken(f"{entry.client}: {entry.what}", line)


RULES: dict[str, Rule] = {
    "acknowledged": acknowledged,
    "acknowledged by one": acknowledged_by_one,
    "no phantom": no_phantom,
    "no duplicate": no_duplicate,
    "order": in_order,
    "behind committed": behind_committed,
    "never changes": never_changes,
    "positions": positions_go_forward,
    "every delivery ends": every_delivery_ends,
    "the end is reached": consumers_reach_the_end,
    "nothing unforeseen": nothing_unforeseen,
}
"""All rules by name."""
