"""The events that seeds must meet: the fault list of the metadata quorum, and the table of role
transitions. `python -m tests.sim --seeds 1000 --stats` counts them.
"""

from __future__ import annotations

from quorum.raft.roles import TRANSITIONS
from tests.sim.rot import AT_REST, WHILE_RUNNING

NETWORK = (
    "message dropped",
    "message repeated",
    "message overtaken",
    "cut one way",
    "cut both ways",
    "nobody answers there",
    "checkpoint rots on the way",
    "answer damaged on the way",
    "damaged answer refused",
    "malformed request",
)
PROCESS = (
    "crash",
    "all crash at once",
    "crash while a checkpoint is written",
    "crash while a checkpoint is installed",
    "paused",
    "machine suspended",
    "leader resigns",
    "leader shut down in order",
    "restart at another address",
)
DISK = (
    "un-synced writes lost",
    "write torn",
    "restart with an empty disk",
    "restart with an older disk",
    "static voter with an empty disk",
    "static voter with an older disk",
    "dynamic voter with an older disk",
    "checkpoint broken on disk",
    "slow fsync of the log",
    "slow write of quorum-state",
    "slow write of a checkpoint",
    "fsync fails: log",
    "fsync fails: quorum-state",
    "fsync fails: checkpoint",
    "fsync fails: directory",
    "disk full: log",
    "disk full: quorum-state",
    "disk full: checkpoint",
    "start on a full disk",
    "start on a full disk refused",
)
DAMAGE = (
    *(f"damaged at rest: {kind}" for kind in AT_REST),
    *(f"damaged while it runs: {kind}" for kind in WHILE_RUNNING),
    "damaged node refuses to start",
    "damaged node healed",
    "own records found damaged",
    "own log found damaged",
    "no checkpoint of a damaged log",
    "checkpoint set aside",
    "checkpoint takes the place of damage",
)
CLOCK = ("clock runs wrong", "wall clock is days off")
QUORUM = (
    "voters changed",
    "voter change without a healthy majority",
    "rival changes of the voters",
    "static voters into the log",
    "checkpoint made",
    "checkpoint fetched",
    "log truncated",
)
ROLES = tuple(
    f"{old.__name__} -> {new.__name__}"
    for old, following in TRANSITIONS.items()
    for new in sorted(following, key=lambda role: role.__name__)
)
KINDS = frozenset({*NETWORK, *PROCESS, *DISK, *DAMAGE, *CLOCK, *QUORUM, *ROLES})
RARE = frozenset(
    {
        "Leader -> Follower",
        "Leader -> Unattached",
        "checkpoint rots on the way",
        "disk full: checkpoint",
        "disk full: quorum-state",
        "fsync fails: checkpoint",
        "restart at another address",
        *DAMAGE,
        "dynamic voter with an older disk",
        "rival changes of the voters",
        "restart with an older disk",
        "start on a full disk refused",
    }
)
"""Kinds that some dozens of seeds may miss; hundreds of seeds meet them, too."""
