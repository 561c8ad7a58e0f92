"""The events that seeds of the partitions' world must meet, as `tests.sim.kinds` has them for the
quorum. `python -m tests.sim --partitions --seeds 1000 --stats` counts them.
"""

from __future__ import annotations

PROCESS = (
    "broker killed",
    "all brokers stop",
    "broker stopped in order",
    "shutdown given up",
    "broker paused",
    "power lost",
    "un-flushed records lost",
    "registered again",
    "message lost",
)
DISK = (
    "directory failed",
    "directory replaced",
    "directories told",
    "log not made anew",
    "log truncated",
    "replica copied anew",
    "replica given up",
)
CHANGES = (
    "ELR switched",
    "ELR switched while a partition is offline",
    "min.insync.replicas changed",
    "min.insync.replicas changed while degraded",
    "reassignment begun",
    "reassignment completed",
)
ELECTIONS = (
    "ISR changed",
    "eligible replicas",
    "last known leader kept",
    "leader began",
    "leader from the ELR",
    "leader learned too late",
    "partition offline",
    "produce refused: too few in sync",
    "unclean election",
    "unclean election loses records",
)
REFUSALS = (
    "refused: DuplicateBrokerRegistrationError",
    "refused: StaleBrokerEpochError",
)
KINDS = frozenset({*PROCESS, *DISK, *CHANGES, *ELECTIONS, *REFUSALS})
RARE = frozenset(
    {
        "leader learned too late",
        "refused: StaleBrokerEpochError",
        "registered again",
        "shutdown given up",
    }
)
"""Kinds that some dozens of seeds may miss; hundreds of seeds meet them, too."""
