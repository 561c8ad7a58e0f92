"""`python -m tests.sim.canary_table`: runs every planted bug until it is caught, and writes
tests/sim/CANARIES.md. Fails if one is not caught within the limit.

The table is never edited by hand. Its text comes from the code (`test_planted_bugs.py` compares
them), and the tests begin at its seeds.
"""

from __future__ import annotations

import argparse
import logging
import re
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from tests.sim import canaries
from tests.sim.cluster import canaries as of_cluster
from tests.sim.cluster.world import run_cluster
from tests.sim.groups import canaries as of_groups
from tests.sim.groups.world import run_groups
from tests.sim.partitions import canaries as of_partitions
from tests.sim.partitions.world import run_partitions
from tests.sim.servers import canaries as of_servers
from tests.sim.servers.world import run_servers
from tests.sim.tier import canaries as of_tier
from tests.sim.tier.world import run_tier
from tests.sim.transactions import canaries as of_transactions
from tests.sim.transactions.world import run_transactions
from tests.sim.world import run_seed
from tidemark.errors import TidemarkError

TABLE = Path(__file__).parent / "CANARIES.md"
HEAD = """# Bugs planted on purpose, and what catches them

Written by `python -m tests.sim.canary_table`, which takes names of single bugs, too. Seeds count
from 0, and a seed moves when the timing of the code changes. To see one:
`python -m tests.sim --seeds 1 --start SEED --canary NAME --verbose`; the option --canary finds the
world by the name.

| bug | world | what it breaks | caught by | first seed |
|---|---|---|---|---|
"""


@dataclass(frozen=True)
class World:
    """One of the simulated worlds, with the bugs that it has to catch."""

    name: str
    bugs: dict[str, type]
    run: Callable[[int, object], object]
    limit: int
    """Seeds that are searched for a bug before it counts as not caught."""


WORLDS = (
    World("quorum", dict(canaries.CANARIES), lambda s, bug: run_seed(s, bug), 500),  # type: ignore[arg-type]
    World(
        "partitions",
        dict(of_partitions.CANARIES),
        lambda s, bug: run_partitions(s, bug),  # type: ignore[arg-type]
        500,
    ),
    World("servers", dict(of_servers.CANARIES), lambda s, bug: run_servers(s, bug), 100),  # type: ignore[arg-type]
    World("cluster", dict(of_cluster.CANARIES), lambda s, bug: run_cluster(s, bug), 40),  # type: ignore[arg-type]
    World("tier", dict(of_tier.CANARIES), lambda s, bug: run_tier(s, bug), 30),  # type: ignore[arg-type]
    World("groups", dict(of_groups.CANARIES), lambda s, bug: run_groups(s, bug), 60),  # type: ignore[arg-type]
    World(
        "transactions",
        dict(of_transactions.CANARIES),
        lambda s, bug: run_transactions(s, bug),  # type: ignore[arg-type]
        20,
    ),
)

CAUGHT_BY = {
    "skips-fsync": "I3",
    "retries-fsync": "synced survives",
    "forgets-its-vote": "I2",
    "commits-old-epochs": "I3",
    "counts-itself-unsynced": "I3",
    "votes-twice": "I2|vote of epoch",
    "cuts-too-much": "I6",
    "resumes-leadership": "I1|once",
    "counts-old-voters": "I3",
    "changes-before-last-committed": "I[1-5]",
    "changes-before-own-commit": "I[1-5]",
    "forgets-voters-at-start": "",
    "counts-removed-leader": "I3",
    "keeps-truncated-voters": "I[1-8]|liveness|Voter",
    "snapshots-without-voters": "I[1-8]|liveness",
    "snapshots-uncommitted": "SnapshotId",
    "trusts-answers": "I[1-8]",
    "tells-old-high-watermarks": "I9",
    "makes-room-of-its-log": "synced survives",
    "forgets-the-watermark": "I6",
    "serves-unchecked": "liveness",
    "cuts-silently": "I4",
    "older-disk-votes": "I4",
    **dict.fromkeys(of_partitions.CANARIES, "I6"),
    "answers-before-commit": "clients: ",
    "leaves-out-of-snapshots": "I8|does not exist",
    "elects-outside-of-elr": "I4 a clean election",
    **of_cluster.CAUGHT_BY,
    **of_tier.CAUGHT_BY,
    **of_groups.CAUGHT_BY,
    **of_transactions.CAUGHT_BY,
}
"""Words of the finding that a bug has to cause."""


_DETAILS = re.compile(
    r" [0-9a-f-]{36}| at (?:node|broker|\d+) |, below|: partition | explains topic|: register"
    r"|: (?:__|in-|out-|other-|volatile-|writer-|copier-|that of producer|\d+$)"
    r"|: (?:orders|plain|expiring|lossy|single|broker|nothing|objects|\S{22}:)"
)
"""Beginnings of the details of one seed in a finding."""


@dataclass(frozen=True)
class Row:
    """One line of the table."""

    name: str
    world: str
    breaks: str
    finding: str
    seed: int

    def __str__(self) -> str:
        return f"| {self.name} | {self.world} | {self.breaks} | {self.finding} | {self.seed} |"


def world_of(name: str) -> World:
    return next(world for world in WORLDS if name in world.bugs)


def what_it_breaks(name: str) -> str:
    return " ".join((world_of(name).bugs[name].__doc__ or "").split())


def read_table() -> dict[str, Row]:
    """Returns the rows of the table in the tree, by name."""
    lines = TABLE.read_text(encoding="utf-8").splitlines()
    cells = [line.strip("| ").split(" | ") for line in lines if line.endswith(" |")]
    return {c[0]: Row(c[0], c[1], c[2], c[3], int(c[4])) for c in cells if c[-1].isdigit()}


def first_catch(name: str, first: int, limit: int) -> tuple[int, str] | None:
    """Returns (seed, finding) of the first seed from `first` on that catches the bug; None if none
    of `limit` seeds does.
    """
    world, words = world_of(name), re.compile(CAUGHT_BY[name])
    for seed in range(first, first + limit):
        try:
            world.run(seed, world.bugs[name]())
        except (AssertionError, TidemarkError) as error:  # anything else is a fault of the bug
            finding = f"{type(error).__name__}: {error}"
            if words.search(finding):
                return seed, finding
    return None


def rule_of(finding: str) -> str:
    """Returns the rule named by a finding, without the details of the seed."""
    kind, _, text = finding.partition(": ")
    if kind == "AssertionError" or "an invariant is broken" in text:
        return "the replica's own `validate()`"
    if kind == "CorruptLogError":
        return "the log's own checks"
    if text.startswith("liveness"):
        return "liveness"
    return _DETAILS.split(text.partition("\n")[0])[0]


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.sim.canary_table", description=__doc__)
    parser.add_argument("names", nargs="*", help="write the rows of these bugs only")
    asked = parser.parse_args().names
    logging.disable(logging.CRITICAL)
    rows, missed = read_table() if asked else {}, []
    for world in WORLDS:
        for name in world.bugs:
            if asked and name not in asked:
                continue
            caught = first_catch(name, 0, world.limit)
            if caught is None:
                missed.append(name)
                print(f"{name} is not caught in {world.limit} seeds", flush=True)
                continue
            seed, finding = caught
            rows[name] = Row(name, world.name, what_it_breaks(name), rule_of(finding)[:90], seed)
            print(rows[name], flush=True)
    in_order = [rows[name] for world in WORLDS for name in world.bugs if name in rows]
    TABLE.write_text(HEAD + "\n".join(map(str, in_order)) + "\n", encoding="utf-8")
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
