"""The whole cluster in the test suite: seeds hold, and runs repeat exactly."""

from __future__ import annotations

import functools
import gc
import logging
import os
from collections import Counter
from collections.abc import Iterator

import pytest

from node.server import GARBAGE_THRESHOLDS
from tests.hash_seeds import outputs
from tests.sim.cluster.racks import run_racked
from tests.sim.cluster.world import ClusterOutcome, run_cluster

SEEDS = max(5, int(os.environ.get("TIDEMARK_SIM_SEEDS", "60")) // 16)
"""Five are the fewest that meet each fault."""


@pytest.fixture(autouse=True)
def quiet() -> Iterator[None]:
    before = gc.get_threshold()
    logging.disable(logging.CRITICAL)
    gc.set_threshold(*GARBAGE_THRESHOLDS)
    yield
    gc.set_threshold(*before)
    logging.disable(logging.NOTSET)


@functools.cache
def outcome_of(seed: int) -> ClusterOutcome:
    try:
        return run_cluster(seed)
    except Exception as error:
        command = f"python -m tests.sim --cluster --seeds 1 --start {seed} --verbose"
        raise AssertionError(f"seed {seed}: {error}; repeat it: {command}") from error


@pytest.mark.parametrize("seed", range(SEEDS))
def test_no_promise_to_clients_is_broken_under_faults(seed: int) -> None:
    outcome = outcome_of(seed)
    assert outcome.elections > 0
    assert outcome.committed > 100


def test_the_seeds_meet_what_they_are_for() -> None:
    seen: Counter[str] = Counter()
    for seed in range(SEEDS):
        seen.update(outcome_of(seed).seen)
    for kind in ("killed", "power lost", "unsynced writes lost", "paused", "stopped in order"):
        assert seen[kind], kind
    assert seen["cut one way"] + seen["cut both ways"]
    assert seen["leader began"] > SEEDS


@pytest.mark.parametrize("seed", range(9, 9 + max(1, SEEDS // 31)))
def test_no_promise_is_broken_where_consumers_read_from_followers(seed: int) -> None:
    outcome = run_racked(seed)
    assert outcome.seen["read at a follower"] > 100


def test_the_same_seed_gives_the_same_trace_whatever_the_hash_seed() -> None:
    code = (
        "import logging; logging.disable(50); from tests.sim.cluster.world import run_cluster;"
        "print(run_cluster(3).trace_hash)"
    )
    assert len(outputs(code)) == 1
