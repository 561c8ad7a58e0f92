"""The simulator within the test suite: seeds hold, runs repeat exactly, planted bugs are caught."""

from __future__ import annotations

import logging
import os
import subprocess
import sys

import pytest

from tests.sim.canaries import CANARIES
from tests.sim.checks import Violation
from tests.sim.world import run_seed
from tidemark.errors import FatalError

SEEDS = int(os.environ.get("TIDEMARK_SIM_SEEDS", "60"))
"""How many seeds the suite runs; `scripts/soak` runs many more."""

# Track record: how many seeds it takes at most until the planted bug is caught, and by which rule
# it is usually caught.
CAUGHT_WITHIN = {
    "skips-fsync": (3, "I3"),
    "forgets-its-vote": (3, "I2"),
    "commits-old-epochs": (3, "I3"),
    "counts-itself-unsynced": (8, "I3"),
    "votes-twice": (3, "I2"),
    "cuts-too-much": (12, "I6"),
    "resumes-leadership": (3, "once"),
    "counts-old-voters": (6, "I3"),
    "changes-without-waiting": (8, "I4"),
    "snapshots-uncommitted": (2, "SnapshotId"),
}


@pytest.fixture(autouse=True)
def quiet_logs():
    """Torn files are the point here: recovery need not tell of each."""
    logging.disable(logging.CRITICAL)
    yield
    logging.disable(logging.NOTSET)


@pytest.mark.parametrize("start", range(0, SEEDS, 10))
def test_the_invariants_hold_and_the_cluster_recovers(start):
    for seed in range(start, start + 10):
        try:
            outcome = run_seed(seed)
        except Exception as error:
            command = f"python -m tests.sim --seeds 1 --start {seed} --verbose"
            raise AssertionError(f"seed {seed}: {error}; repeat it: {command}") from error
        assert outcome.elections > 0
        assert outcome.committed > 0


def test_the_seeds_meet_what_they_are_for():
    outcomes = [run_seed(seed) for seed in range(20)]
    assert sum(o.crashes for o in outcomes) > 50
    assert sum(o.truncations for o in outcomes) > 3
    assert sum(o.snapshots_installed for o in outcomes) > 3
    assert sum(o.voter_changes for o in outcomes) > 10
    assert sum(o.disks_lost for o in outcomes) > 3
    assert sum(o.checkpoints_broken for o in outcomes) > 3


def trace_hashes(hash_seed: str) -> str:
    code = (
        "from tests.sim.world import run_seed; print([run_seed(s).trace_hash for s in (1, 4, 7)])"
    )
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
    within, rule = CAUGHT_WITHIN[name]
    findings = []
    for seed in range(within):
        try:
            run_seed(seed, CANARIES[name]())
        except (Violation, FatalError, AssertionError) as error:
            findings.append(str(error))
    assert findings, f"{name} was not caught within {within} seeds"
    assert any(rule in finding for finding in findings), findings
