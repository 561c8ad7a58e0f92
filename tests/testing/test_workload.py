"""The workload in virtual time, on clients of a list in memory: a correct cluster passes, and bugs
of clients show in the history.
"""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from dataclasses import replace
from typing import Any

import pytest

from tests.testing.fake_clients import COUNT, FakeClients
from tests.virtual_time import run
from tidemark.testing.checker import broken, judge, report
from tidemark.testing.history import (
    Calmed,
    Entry,
    History,
    Outcome,
    ProducerMade,
    ReadDone,
    Sent,
    to_line,
)
from tidemark.testing.workload import Workload, WorkloadPace
from tidemark.testing.workload_senders import SENDERS

PACE = WorkloadPace(
    slack_ms=0, finish_ms=5_000, delivery_timeout_ms=3_000, request_timeout_ms=2_900
)


def worked(seed: int, *bugs: str, seconds: float = 6, pace: WorkloadPace = PACE) -> list[Entry]:
    """The history of some seconds of work."""

    async def work() -> list[Entry]:
        loop = asyncio.get_running_loop()
        history = History(lambda: loop.time() * 1000)
        clients: Any = FakeClients(seed, set(bugs))
        async with Workload(clients, history, random.Random(seed), {"t": COUNT}, pace) as workload:
            await asyncio.sleep(seconds)
            history.note_fault("answers are lost no more")
            clients.calm = True
            await workload.finish()
        return history.entries

    return run(work())


@pytest.mark.parametrize("seed", range(3))
def test_work_on_a_correct_cluster_keeps_every_promise(seed: int) -> None:
    entries = worked(seed)
    verdicts = judge(entries)
    assert broken(verdicts) == [], report(entries, verdicts)
    assert [verdict.rule for verdict in verdicts if not verdict.examined] == []


def test_work_repeats_exactly_under_its_seed() -> None:
    first, again = ([to_line(entry) for entry in worked(7, seconds=2)] for _ in range(2))
    assert first == again
    assert first != [to_line(entry) for entry in worked(8, seconds=2)]


def test_work_has_all_kinds_of_clients_calls_and_outcomes() -> None:
    entries = worked(1, seconds=10)
    kinds = Counter(type(entry).__name__ for entry in entries)
    assert len(kinds) == 12 - 1 and min(kinds.values()) > 0, kinds  # nobody misbehaved
    calls = Counter(entry.how for entry in entries if isinstance(entry, ReadDone))
    assert set(calls) == {"poll", "poll_arrow", "fetch_batches", "position", "final"}, calls
    states = Counter(entry.state for entry in entries if isinstance(entry, Outcome))
    assert set(states) == {"acknowledged", "refused", "unknown"}, states
    offsets = [p for e in entries if isinstance(e, Outcome) for p in e.places]
    assert any(offset == -1 for _, offset in offsets)  # acks=0
    assert len({partition for partition, _ in offsets}) == COUNT


def test_no_producer_is_closed_after_the_faults_with_records_under_way() -> None:
    pace = replace(PACE, sends_after=200, finish_ms=60_000)
    entries = worked(2, seconds=1, pace=pace)
    kinds = [type(entry) for entry in entries]
    assert ProducerMade in kinds[len(SENDERS) * 2 : kinds.index(Calmed)]  # it was before
    assert ProducerMade not in kinds[kinds.index(Calmed) :]
    assert kinds[kinds.index(Calmed) :].count(Sent) >= len(SENDERS) * 200


@pytest.mark.parametrize(
    ("bug", "rule"),
    [
        ("hangs", "every delivery ends"),
        ("raises", "nothing unforeseen"),
        ("acknowledges nothing", "acknowledged"),
        ("writes twice", "no duplicate"),
        ("tells the log end", "behind committed"),
        ("moves when cancelled", "positions"),
        ("reports a truncation", "nothing unforeseen"),
    ],
)
def test_a_bug_of_a_client_breaks_its_rule(bug: str, rule: str) -> None:
    assert rule in broken(judge(worked(3, bug)))
