"""Seeds of the group world; the soak runs more."""

from __future__ import annotations

import logging
import os

import pytest

from tests.sim.groups.world import World, run_seeds


@pytest.fixture(autouse=True)
def quiet_logs():
    logging.disable(logging.CRITICAL)
    yield
    logging.disable(logging.NOTSET)


@pytest.mark.parametrize("seed", range(8))
def test_no_promise_of_groups_is_broken_under_faults(seed: int) -> None:
    World(seed).run()


@pytest.mark.timeout(3_600)
@pytest.mark.skipif("TIDEMARK_SOAK" not in os.environ, reason="scripts/soak runs it")
def test_many_seeds_of_groups() -> None:
    found = run_seeds(range(8, 200))
    assert all(found[kind] for kind in ("kill", "power", "pause", "cut", "split", "stop"))
