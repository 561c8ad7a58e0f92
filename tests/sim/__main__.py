"""`python -m tests.sim --seeds N [--start N] [--canary NAME] [--partitions | --servers |
--cluster | --racks | --tier | --groups | --transactions] [--stats] [--verbose]`.
"""

from __future__ import annotations

import argparse
import gc
import logging
import sys
import time
import traceback
from collections import Counter
from collections.abc import Callable

from node.server import GARBAGE_THRESHOLDS
from tests.sim.canaries import CANARIES, Canary
from tests.sim.cluster.canaries import CANARIES as CLUSTER_CANARIES
from tests.sim.cluster.racks import run_racked
from tests.sim.cluster.world import ClusterOutcome, run_cluster
from tests.sim.groups.canaries import CANARIES as GROUP_CANARIES
from tests.sim.groups.world import run_groups
from tests.sim.kinds import KINDS
from tests.sim.partitions import kinds as partition_kinds
from tests.sim.partitions.canaries import CANARIES as PARTITION_CANARIES
from tests.sim.partitions.world import PartitionOutcome, run_partitions
from tests.sim.servers.canaries import CANARIES as SERVER_CANARIES
from tests.sim.servers.canaries import Servers
from tests.sim.servers.world import run_servers
from tests.sim.tier.canaries import CANARIES as TIER_CANARIES
from tests.sim.tier.world import run_tier
from tests.sim.transactions.canaries import CANARIES as TRANSACTION_CANARIES
from tests.sim.transactions.world import run_transactions
from tests.sim.world import Outcome, run_seed


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.sim", description=__doc__)
    parser.add_argument("--seeds", type=int, default=200, help="how many seeds to run")
    parser.add_argument("--start", type=int, default=0, help="the first seed")
    bugs = {*CANARIES, *PARTITION_CANARIES, *SERVER_CANARIES, *CLUSTER_CANARIES, *TIER_CANARIES}
    bugs |= {*GROUP_CANARIES, *TRANSACTION_CANARIES}
    parser.add_argument("--canary", choices=sorted(bugs))
    parser.add_argument("--partitions", action="store_true", help="brokers and their records")
    parser.add_argument("--servers", action="store_true", help="the real servers, ten times slower")
    parser.add_argument("--stats", action="store_true", help="count each kind of fault seen")
    parser.add_argument("--verbose", action="store_true", help="print every event")
    parser.add_argument("--cluster", action="store_true", help="all of production, and clients")
    parser.add_argument("--tier", action="store_true", help="that with tiered topics")
    parser.add_argument("--groups", action="store_true", help="that with consumer groups")
    parser.add_argument("--transactions", action="store_true", help="that with transactions")
    parser.add_argument("--racks", action="store_true", help="that with reads from followers")
    arguments = parser.parse_args()
    logging.disable(logging.CRITICAL)  # broken disks are intended
    if arguments.tier or arguments.canary in TIER_CANARIES:
        return main_of_cluster(arguments, run_tier, "--tier")
    if arguments.groups or arguments.canary in GROUP_CANARIES:
        return main_of_coordinators(arguments, run_groups)
    if arguments.transactions or arguments.canary in TRANSACTION_CANARIES:
        return main_of_coordinators(arguments, run_transactions)
    if arguments.racks:
        return main_of_cluster(arguments, run_racked, "--racks")
    if arguments.cluster or arguments.canary in CLUSTER_CANARIES:
        return main_of_cluster(arguments, run_cluster, "--cluster")
    if arguments.servers or arguments.canary in SERVER_CANARIES:
        bug = SERVER_CANARIES[arguments.canary]() if arguments.canary else None
        return main_of_servers(arguments.start, arguments.seeds, bug, verbose=arguments.verbose)
    run, kinds, mode = runner(arguments.canary, arguments.partitions, arguments.verbose)
    outcomes: list[Outcome | PartitionOutcome] = []
    failed: list[int] = []
    started = time.monotonic()
    for seed in range(arguments.start, arguments.start + arguments.seeds):
        try:
            outcomes.append(run(seed))
        except Exception as error:
            failed.append(seed)
            print(f"seed {seed} failed: {type(error).__name__}: {error}", flush=True)
            if arguments.verbose:
                traceback.print_exc()
            bug = f" --canary {arguments.canary}" if arguments.canary else ""
            print(f"  repeat it: python -m tests.sim --seeds 1 --start {seed} --verbose{bug}{mode}")
    elapsed_s = time.monotonic() - started
    report(outcomes, failed, elapsed_s)
    if arguments.stats:
        print_stats(outcomes, kinds)
    return 1 if failed else 0


def runner(
    canary: str | None, partitions: bool, verbose: bool
) -> tuple[Callable[[int], Outcome | PartitionOutcome], frozenset[str], str]:
    """Returns what runs one seed, the kinds it should meet, and the option that chose it."""
    if partitions or canary in PARTITION_CANARIES:
        bug = PARTITION_CANARIES[canary]() if canary else None
        return (
            lambda seed: run_partitions(seed, bug, verbose=verbose),
            partition_kinds.KINDS,
            " --partitions",
        )
    planted: Canary = CANARIES[canary]() if canary else Canary()
    return lambda seed: run_seed(seed, planted, verbose=verbose), KINDS, ""


def main_of_servers(start: int, seeds: int, bug: Servers | None, *, verbose: bool) -> int:
    total: Counter[str] = Counter()
    failed = 0
    for seed in range(start, start + seeds):
        try:
            outcome = run_servers(seed, bug, verbose=verbose)
        except Exception as error:
            failed += 1
            print(f"seed {seed} failed: {type(error).__name__}: {error}", flush=True)
            print(f"  repeat it: python -m tests.sim --servers --seeds 1 --start {seed} --verbose")
        else:
            total.update(outcome.seen)
            total.update({f"answered {name}": n for name, n in outcome.answers.items()})
    for name, count in sorted(total.items()):
        print(f"{name:45} {count:9}")
    print(f"{seeds} seeds, {failed} failed")
    return 1 if failed else 0


def main_of_coordinators(arguments: argparse.Namespace, run: Callable[..., Counter[str]]) -> int:
    """Runs a world of groups or of transactions."""
    total: Counter[str] = Counter()
    failed, bug = 0, arguments.canary
    canary = {**GROUP_CANARIES, **TRANSACTION_CANARIES}[bug]() if bug else None
    for seed in range(arguments.start, arguments.start + arguments.seeds):
        try:
            total += run(seed, canary)
        except Exception as error:
            failed += 1
            print(f"seed {seed} failed: {type(error).__name__}: {error}", flush=True)
    for name, count in sorted(total.items()) if arguments.stats else ():
        print(f"{name:45} {count:9}")
    print(f"{arguments.seeds} seeds, {failed} failed, {total['records']} records processed")
    return 1 if failed else 0


def main_of_cluster(
    arguments: argparse.Namespace, run: Callable[..., ClusterOutcome], world: str
) -> int:
    """Runs the whole cluster; a failing seed prints its command, and with --verbose its trace."""
    gc.set_threshold(*GARBAGE_THRESHOLDS)
    total: Counter[str] = Counter()
    failed, bug = 0, arguments.canary
    canary = {**CLUSTER_CANARIES, **TIER_CANARIES}[bug]() if bug else None
    started = time.monotonic()
    for seed in range(arguments.start, arguments.start + arguments.seeds):
        try:
            outcome = run(seed, canary, verbose=arguments.verbose)
        except Exception as error:
            failed += 1
            print(f"seed {seed} failed: {type(error).__name__}: {error}", flush=True)
            if arguments.verbose:
                traceback.print_exc()
            option = f" --canary {bug}" if bug else ""
            command = f"python -m tests.sim {world} --seeds 1 --start {seed} --verbose{option}"
            print(f"  repeat it: {command}", flush=True)
        else:
            total.update(outcome.seen)
            total.update(sends=outcome.sends, elections=outcome.elections)
    elapsed_s = time.monotonic() - started
    if arguments.stats:
        for name, count in sorted(total.items()):
            print(f"{name:45} {count:9}")
    print(
        f"{arguments.seeds} seeds, {failed} failed, {total['records committed']} records committed"
    )
    print(f"{elapsed_s:.1f} s, {arguments.seeds * 60 / elapsed_s:.0f} seeds per minute")
    return 1 if failed else 0


def report(outcomes: list[Outcome | PartitionOutcome], failed: list[int], elapsed_s: float) -> None:
    count = len(outcomes) + len(failed)
    events = sum(o.events for o in outcomes)
    print(
        f"{count} seeds, {len(failed)} failed, {events} events, "
        f"{sum(o.elections for o in outcomes)} elections, "
        f"{sum(o.committed for o in outcomes)} records committed"
    )
    print(f"{elapsed_s:.1f} s, {count * 60 / elapsed_s:.0f} seeds per minute")


def print_stats(outcomes: list[Outcome | PartitionOutcome], kinds: frozenset[str]) -> None:
    """Prints how often each kind occurred, and in how many seeds."""
    total: Counter[str] = Counter()
    seeds: Counter[str] = Counter()
    for outcome in outcomes:
        total.update(outcome.seen)
        seeds.update(name for name, count in outcome.seen.items() if count)
    for name in sorted(kinds | set(total)):
        print(f"{name:45} {total[name]:9} times in {seeds[name]:5} seeds")


if __name__ == "__main__":
    sys.exit(main())
