"""Planted bugs are caught by the checks they are for, and CANARIES.md says so."""

from __future__ import annotations

import logging

import pytest

from tests.sim.canary_table import CAUGHT_BY, WORLDS, first_catch, read_table, what_it_breaks

SEARCHED = {
    "quorum": 150,
    "partitions": 150,
    "servers": 30,
    "cluster": 6,
    "tier": 6,
    "groups": 12,
    "transactions": 6,
}
"""Seeds behind the table's that are searched: timing changes move the seeds that meet a bug."""

BUGS = {name: world.name for world in WORLDS for name in world.bugs}


@pytest.fixture(autouse=True)
def quiet_logs():
    logging.disable(logging.CRITICAL)
    yield
    logging.disable(logging.NOTSET)


def test_the_table_says_of_every_bug_what_the_code_says():
    rows = read_table()
    assert {name: row.world for name, row in rows.items()} == BUGS
    assert {name: row.breaks for name, row in rows.items()} == {n: what_it_breaks(n) for n in BUGS}
    assert set(CAUGHT_BY) == set(BUGS)


@pytest.mark.parametrize("name", sorted(BUGS))
def test_a_planted_bug_is_caught(name):
    first = read_table()[name].seed
    caught = first_catch(name, first, SEARCHED[BUGS[name]])
    assert caught is not None, f"not in seeds {first} and following; run tests.sim.canary_table"
