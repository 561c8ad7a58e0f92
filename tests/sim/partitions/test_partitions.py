"""The partitions' world in the test suite: seeds hold and meet every event of the list, and
runs repeat exactly.
"""

from __future__ import annotations

import functools
from collections import Counter

import pytest

from tests.hash_seeds import outputs
from tests.sim.partitions.kinds import KINDS, RARE
from tests.sim.partitions.world import PartitionOutcome, run_partitions
from tests.sim.test_simulator import ENOUGH_FOR_ALL, SEEDS


@functools.cache
def outcome_of(seed: int) -> PartitionOutcome:
    try:
        return run_partitions(seed)
    except Exception as error:
        command = f"python -m tests.sim --partitions --seeds 1 --start {seed} --verbose"
        raise AssertionError(f"seed {seed}: {error}; repeat it: {command}") from error


@pytest.mark.parametrize("start", range(0, SEEDS, 20))
def test_a_clean_election_loses_no_committed_record_and_partitions_recover(start):
    assert sum(outcome_of(seed).committed for seed in range(start, start + 20)) > 0


def test_the_seeds_meet_every_event():
    seen: Counter[str] = Counter()
    for seed in range(SEEDS):
        seen.update(outcome_of(seed).seen)
    wanted = KINDS if SEEDS >= ENOUGH_FOR_ALL else KINDS - RARE
    assert not {kind for kind in wanted if not seen[kind]}


def test_every_event_that_is_counted_is_in_the_list():
    seen = {kind for seed in range(min(SEEDS, 60)) for kind in outcome_of(seed).seen}
    assert seen <= KINDS


def test_the_same_seed_gives_the_same_run_whatever_the_hash_seed():
    code = (
        "from tests.sim.partitions.world import run_partitions; "
        "print([(o.events, o.committed) for o in map(run_partitions, range(8))])"
    )
    traces = outputs(code)
    assert len(traces) == 1
    assert "(" in traces.pop()
