"""The simulated cluster of real servers in the test suite: seeds hold, and runs repeat exactly."""

from __future__ import annotations

import functools
import logging
import os
from collections import Counter

import pytest

from tests.hash_seeds import outputs
from tests.sim.servers.world import ServerOutcome, run_servers

SEEDS = max(10, int(os.environ.get("TIDEMARK_SIM_SEEDS", "60")) // 16)
"""`scripts/test` runs 62, about 40 s."""
ENOUGH_FOR_A_FULL_DISK = 40
"""One in five seeds has one; ten may have none."""


@pytest.fixture(autouse=True)
def quiet_logs():
    logging.disable(logging.CRITICAL)
    yield
    logging.disable(logging.NOTSET)


@functools.cache
def outcome_of(seed: int) -> ServerOutcome:
    try:
        return run_servers(seed)
    except Exception as error:
        command = f"python -m tests.sim --servers --seeds 1 --start {seed} --verbose"
        raise AssertionError(f"seed {seed}: {error}; repeat it: {command}") from error


@pytest.mark.parametrize("seed", range(SEEDS))
def test_no_acknowledged_change_is_lost_and_all_images_are_equal(seed):
    outcome = outcome_of(seed)
    assert outcome.elections > 0
    assert any(answer.endswith("NONE") for answer in outcome.answers)  # topics, settings, moves


def test_the_seeds_meet_what_they_are_for():
    seen: Counter[str] = Counter()
    for seed in range(SEEDS):
        seen.update(outcome_of(seed).seen)
    for kind in (
        *("crash", "all crash at once", "un-synced writes lost", "write torn", "message dropped"),
        *("message repeated", "message cut", "leader resigns", "leader shut down in order"),
        *("checkpoint made", "ISR changed", "voters changed", "controller took over"),
        *("paused", "broker shut down in order", "broker let go", "broker's disks lost"),
        *("directory failed", "broker's directory replaced", "leader elected"),
        *("ELR switched on", "ELR switched off", "min.insync.replicas changed while degraded"),
    ):
        assert seen[kind], kind
    assert any(seen[kind] for kind in seen if kind.startswith("fsync fails"))
    full = any(seen[kind] for kind in seen if kind.startswith("disk full"))
    assert full or SEEDS < ENOUGH_FOR_A_FULL_DISK


def test_the_same_seed_gives_the_same_trace_whatever_the_hash_seed():
    code = (
        "import logging; logging.disable(50); from tests.sim.servers.world import run_servers;"
        "print([run_servers(s).trace_hash for s in (2, 6)])"
    )
    assert len(outputs(code)) == 1
