"""`python -m tests.sim.canary_table`: runs every planted bug until it is caught, and writes
tests/sim/CANARIES.md. Fails if one is not caught within 500 seeds.
"""

from __future__ import annotations

import logging
import sys
from pathlib import Path

from tests.sim.canaries import CANARIES
from tests.sim.partitions.canaries import CANARIES as PARTITION_CANARIES
from tests.sim.partitions.world import run_partitions
from tests.sim.world import run_seed

LIMIT = 500
TABLE = Path(__file__).parent / "CANARIES.md"
HEAD = """# Bugs planted on purpose, and what catches them

Written by `python -m tests.sim.canary_table`; seeds count from 0. To see one:
`python -m tests.sim --seeds 1 --start SEED --canary NAME --verbose`. The last ones run in the world
of partitions.

| bug | what it breaks | caught by | seeds needed |
|---|---|---|---|
"""


def first_catch(name: str) -> tuple[int, str] | None:
    """Returns (seed, finding) of the first seed that fails with the bug; None within the limit."""
    for seed in range(LIMIT):
        try:
            if name in CANARIES:
                run_seed(seed, CANARIES[name]())
            else:
                run_partitions(seed, PARTITION_CANARIES[name]())
        except Exception as error:  # any failure counts: a check, an assertion, a fatal error
            return seed, f"{type(error).__name__}: {error}"
    return None


def rule_of(finding: str) -> str:
    """Returns the rule named by a finding, without the details of the seed."""
    kind, _, text = finding.partition(": ")
    if kind == "AssertionError" or "an invariant is broken" in text:
        return "the replica's own `validate()`"
    return (
        text.split(" at node ")[0]
        .split(" at broker ")[0]
        .split(" still ")[0]
        .split(", below")[0]
        .split(": partition ")[0][:90]
    )


def main() -> int:
    logging.disable(logging.CRITICAL)
    rows, missed = [], []
    for name, canary in (*CANARIES.items(), *PARTITION_CANARIES.items()):
        caught = first_catch(name)
        what = " ".join((canary.__doc__ or "").split())
        if caught is None:
            missed.append(name)
            rows.append(f"| {name} | {what} | **not caught** | more than {LIMIT} |")
        else:
            rows.append(f"| {name} | {what} | {rule_of(caught[1])} | {caught[0] + 1} |")
        print(rows[-1])
    TABLE.write_text(HEAD + "\n".join(rows) + "\n", encoding="utf-8")
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
