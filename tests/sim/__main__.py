"""`python -m tests.sim --seeds 200 [--start N] [--canary NAME] [--verbose]`."""

from __future__ import annotations

import argparse
import logging
import sys
import time
import traceback

from tests.sim.canaries import CANARIES, Canary
from tests.sim.world import Outcome, run_seed


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.sim", description=__doc__)
    parser.add_argument("--seeds", type=int, default=200, help="how many seeds to run")
    parser.add_argument("--start", type=int, default=0, help="the first seed")
    parser.add_argument("--canary", choices=sorted(CANARIES), help="plant this bug")
    parser.add_argument("--verbose", action="store_true", help="print every event")
    arguments = parser.parse_args()
    logging.disable(logging.CRITICAL)  # broken disks are the point here
    canary: Canary = CANARIES[arguments.canary]() if arguments.canary else Canary()
    outcomes: list[Outcome] = []
    failed: list[int] = []
    started = time.monotonic()
    for seed in range(arguments.start, arguments.start + arguments.seeds):
        try:
            outcomes.append(run_seed(seed, canary, verbose=arguments.verbose))
        except Exception as error:
            failed.append(seed)
            print(f"seed {seed} failed: {type(error).__name__}: {error}")
            if arguments.verbose:
                traceback.print_exc()
            bug = f" --canary {arguments.canary}" if arguments.canary else ""
            print(f"  repeat it: python -m tests.sim --seeds 1 --start {seed} --verbose{bug}")
    elapsed_s = time.monotonic() - started
    report(outcomes, failed, elapsed_s)
    return 1 if failed else 0


def report(outcomes: list[Outcome], failed: list[int], elapsed_s: float) -> None:
    count = len(outcomes) + len(failed)
    events = sum(o.events for o in outcomes)
    print(
        f"{count} seeds, {len(failed)} failed, {events} events, "
        f"{sum(o.elections for o in outcomes)} elections, {sum(o.crashes for o in outcomes)} "
        f"crashes, {sum(o.committed for o in outcomes)} records committed, "
        f"{sum(o.truncations for o in outcomes)} truncations, "
        f"{sum(o.snapshots_installed for o in outcomes)} checkpoints fetched, "
        f"{sum(o.voter_changes for o in outcomes)} voter changes, "
        f"{sum(o.disks_lost for o in outcomes)} disks lost, "
        f"{sum(o.checkpoints_broken for o in outcomes)} checkpoints broken"
    )
    print(f"{elapsed_s:.1f} s, {count * 60 / elapsed_s:.0f} seeds per minute")


if __name__ == "__main__":
    sys.exit(main())
