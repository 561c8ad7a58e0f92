"""The simulator in the test suite: seeds hold and meet every fault of the list, runs repeat
exactly, and planted bugs are caught.
"""

from __future__ import annotations

import functools
import logging
import os
import re
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
"""Number of seeds in the suite; `scripts/test` runs 1,000, `scripts/soak` many more."""
ENOUGH_FOR_ALL = 500

# Seed where the search for a planted bug starts (timing changes move the seeds that meet it), and
# words of the expected finding; `python -m tests.sim.canary_table` counts from seed 0.
CAUGHT_FROM = {
    "skips-fsync": (0, "I3"),
    "retries-fsync": (0, "synced survives"),
    "forgets-its-vote": (0, "I2"),
    "commits-old-epochs": (0, "I3"),
    "counts-itself-unsynced": (0, "I3"),
    "votes-twice": (9, "I2"),
    "cuts-too-much": (0, "I6"),
    "resumes-leadership": (0, "I1|once"),
    "counts-old-voters": (0, "I3"),
    "changes-before-last-committed": (30, "I[1-5]"),
    "forgets-voters-at-start": (0, ""),
    "counts-removed-leader": (18, "I3"),
    "keeps-truncated-voters": (135, "I[1-8]|liveness|Voter"),
    "snapshots-without-voters": (26, "I[1-8]|liveness"),
    "snapshots-uncommitted": (0, "SnapshotId"),
    "trusts-answers": (0, "I[1-8]"),
    "tells-old-high-watermarks": (0, "I9"),
    "makes-room-of-its-log": (200, "synced survives"),
    "forgets-the-watermark": (0, "I6"),
}
SEARCHED = 150


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
    first, words = CAUGHT_FROM[name]
    findings = []
    for seed in range(first, first + SEARCHED):
        try:
            run_seed(seed, CANARIES[name]())
        except (Violation, FatalError, AssertionError) as error:
            findings.append(str(error))
            if re.search(words, str(error)):
                return
    raise AssertionError(f"{name} was not caught in {SEARCHED} seeds from {first}: {findings}")
