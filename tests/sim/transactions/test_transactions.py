"""Seeds of the world of transactions; the soak runs more."""

from __future__ import annotations

import logging
import os
from collections.abc import Iterator

import pytest

from tests.sim.transactions.world import FAULTS, World, run_seeds


@pytest.fixture(autouse=True)
def quiet_logs() -> Iterator[None]:
    logging.disable(logging.CRITICAL)
    yield
    logging.disable(logging.NOTSET)


@pytest.mark.parametrize("seed", range(4))
def test_no_promise_of_transactions_is_broken_under_faults(seed: int) -> None:
    World(seed).run()


@pytest.mark.timeout(3_600)
@pytest.mark.skipif("TIDEMARK_SOAK" not in os.environ, reason="scripts/soak runs it")
def test_many_seeds_of_transactions() -> None:
    found = run_seeds(range(4, 200))
    met = (*FAULTS, "zombies", "deaths", "deletions", "refused commits", "in_doubt")
    assert all(found[kind] for kind in met)
