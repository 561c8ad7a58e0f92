"""The cluster with a tier in the test suite: seeds hold, and runs repeat exactly."""

from __future__ import annotations

import functools
import logging
import os
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator

import pytest

from tests.sim.cluster.world import ClusterOutcome
from tests.sim.tier.world import run_tier
from tiering.tasks.expirer import Expirer

SEEDS = max(2, int(os.environ.get("TIDEMARK_SIM_SEEDS", "60")) // 100)
"""`scripts/test` runs 10."""


@pytest.fixture(autouse=True)
def quiet() -> Iterator[None]:
    logging.disable(logging.CRITICAL)
    yield
    logging.disable(logging.NOTSET)


@functools.cache
def outcome_of(seed: int) -> ClusterOutcome:
    try:
        return run_tier(seed)
    except Exception as error:
        command = f"python -m tests.sim --tier --seeds 1 --start {seed} --verbose"
        raise AssertionError(f"seed {seed}: {error}; repeat it: {command}") from error


@pytest.mark.parametrize("seed", range(SEEDS))
def test_no_record_of_a_tiered_topic_is_lost_and_no_object_is_left_over(seed: int) -> None:
    outcome = outcome_of(seed)
    assert outcome.committed > 100
    assert outcome.seen["remote segments"] > 0


def test_the_seeds_meet_what_they_are_for() -> None:
    seen: Counter[str] = Counter()
    for seed in range(SEEDS):
        seen.update(outcome_of(seed).seen)
    for kind in ("store away: copy", "killed", "leader began"):
        assert seen[kind], kind
    assert seen["remote segments"] > 10 * SEEDS
    if SEEDS >= 10:
        for kind in ("object damaged", "store late: copy", "bootstrap done", "records expired"):
            assert seen[kind], kind


def test_a_pass_that_ends_by_an_unforeseen_error_fails_the_seed_though_it_is_repeated(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def fails(*_: object) -> None:
        raise KeyError("unforeseen")

    monkeypatch.setattr(Expirer, "expire", fails)
    with pytest.raises(KeyError, match="unforeseen"):
        run_tier(0)


def test_the_same_seed_gives_the_same_trace_whatever_the_hash_seed() -> None:
    code = (
        "import logging; logging.disable(50); from tests.sim.tier.world import run_tier;"
        "print(run_tier(0).trace_hash)"
    )
    traces = {
        subprocess.run(
            [sys.executable, "-c", code],
            env=os.environ | {"PYTHONHASHSEED": hash_seed},
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        for hash_seed in ("1", "4242")
    }
    assert len(traces) == 1
