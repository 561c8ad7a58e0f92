"""The simulator within the test suite: seeds hold and meet every fault of the list, runs repeat
exactly, planted bugs are caught.
"""

from __future__ import annotations

import functools
import logging
import os
import subprocess
import sys
from collections import Counter

import pytest

from tests.sim.canaries import CANARIES
from tests.sim.checks import Violation
from tests.sim.kinds import KINDS, RARE
from tests.sim.world import Outcome, run_seed
from tidemark.errors import FatalError

SEEDS = int(os.environ.get("TIDEMARK_SIM_SEEDS", "60"))
"""How many seeds the suite runs; `scripts/test` runs 1,000, `scripts/soak` many more."""
ENOUGH_FOR_ALL = 500

# Seeds that catch the planted bugs, and the rule that tells; `python -m tests.sim.canary_table`
# runs each bug from seed 0 on, and writes how many seeds it took.
CAUGHT_AT = {
    "skips-fsync": (range(3), "I3"),
    "retries-fsync": (range(26, 30), "synced survives"),
    "forgets-its-vote": (range(3), "I2"),
    "commits-old-epochs": (range(3), "I3"),
    "counts-itself-unsynced": (range(8), "I3"),
    "votes-twice": (range(16, 20), "I2"),
    "cuts-too-much": (range(12), "I6"),
    "resumes-leadership": (range(3), "I1"),
    "counts-old-voters": (range(14, 18), "I3"),
    "changes-without-waiting": (range(40, 44), "I7"),
    "counts-removed-leader": (range(20, 26), "I3"),
    "keeps-truncated-voters": (range(31, 35), "I8"),
    "snapshots-without-voters": (range(33, 37), "liveness"),
    "snapshots-uncommitted": (range(2), "SnapshotId"),
}


@pytest.fixture(autouse=True)
def quiet_logs():
    """Torn files are the point here: recovery need not tell of each."""
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


def trace_hashes(hash_seed: str) -> str:
    code = "from tests.sim.world import run_seed; print([run_seed(s).trace_hash for s in range(8)])"
    done = subprocess.run(
        [sys.executable, "-c", code],
        env=os.environ | {"PYTHONHASHSEED": hash_seed},
        capture_output=True,
        text=True,
        check=True,
    )
    return done.stdout


def test_the_same_seed_gives_the_same_trace_whatever_the_hash_seed():
    first = trace_hashes("1")
    assert "[" in first
    assert trace_hashes("4242") == first


@pytest.mark.parametrize("name", sorted(CANARIES))
def test_a_planted_bug_is_caught(name):
    seeds, rule = CAUGHT_AT[name]
    findings = []
    for seed in seeds:
        try:
            run_seed(seed, CANARIES[name]())
        except (Violation, FatalError, AssertionError) as error:
            findings.append(str(error))
    assert findings, f"{name} was not caught by the seeds {seeds}"
    assert any(rule in finding for finding in findings), findings
