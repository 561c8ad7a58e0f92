"""The disk faults of the simulated world.

Silent faults (a flipped bit in a checkpoint, an older copy, an empty disk) come with a restart.
Loud faults come while the node runs: a full disk, or a failed fsync (EIO) of the log, quorum-state,
a checkpoint or the directory. A failure of what must be durable stops the process (RULES.md rule
4). A checkpoint that does not fit is omitted.
"""

from __future__ import annotations

import random
from typing import TYPE_CHECKING

from commitlog.disk.memory_files import MemoryDirectory

if TYPE_CHECKING:
    from tests.sim.node import SimNode

EIO_PATTERNS = {
    "log": "*.log",
    "quorum-state": "*quorum-state*",
    "checkpoint": "*.checkpoint.part",
    "directory": "*__cluster_metadata-0",
}
ROOM_MAX_BYTES = 1500
"""Room left on a disk that is about to be full, in bytes: some batches, or half a checkpoint."""


def make_slow(node: SimNode, rng: random.Random) -> None:
    """Makes every awaited write of a disk possibly slow."""
    node.flush_max_ms = 120
    node.state_write_max_ms = rng.choice([0, 60, 300])
    node.snapshot_write_max_ms = 400


def break_disk(node: SimNode, rng: random.Random) -> None:
    """Makes the node's next fsync of some kind fail, or its disk full soon."""
    if rng.random() < 0.6:
        what = rng.choice(sorted(EIO_PATTERNS))
        node.syncs_fail = what
        node.disk.fail_fsync(EIO_PATTERNS[what])
    else:
        node.writes_fail = True
        node.disk.set_capacity(node.disk.disk.used_bytes + rng.randrange(ROOM_MAX_BYTES))


def kind_of_disk_fault(node: SimNode, error: Exception) -> str | None:
    """Returns the planned fault behind an error; None for an unplanned error."""
    text = str(error)
    if node.syncs_fail is not None and "Input/output error" in text:
        return f"fsync fails: {node.syncs_fail}"
    if node.writes_fail and "the disk is full" in text:
        if ".checkpoint" in text:
            return "disk full: checkpoint"
        return "disk full: quorum-state" if "quorum-state" in text else "disk full: log"
    return None


def copy_disk(source: MemoryDirectory, seed: int) -> MemoryDirectory:
    """Copies all files of an idle disk durably to a new one."""
    target = MemoryDirectory(seed=seed)
    _copy(source, target)
    return target


def _copy(source, target) -> None:
    for name in source.list():
        if source.is_directory(name):
            _copy(source.subdirectory(name), target.subdirectory(name))
            continue
        file = target.open(name, create=True)
        file.append(source.read(name))
        file.fsync()
        file.close()
    target.fsync()


def break_a_checkpoint(node: SimNode, rng: random.Random) -> bool:
    """Flips a bit in one checkpoint of a stopped node that can do without it. The log begins at 0,
    or another checkpoint covers its beginning, or the node is a plain broker.
    """
    directory = node.disk.subdirectory("__cluster_metadata-0")
    names = directory.list()
    spared = node.broken | {node.needed}
    checkpoints = sorted(
        n
        for n in names
        if n.endswith(".checkpoint") and not n.startswith("0" * 20) and n not in spared
    )
    if not checkpoints:
        return False
    victim = checkpoints[rng.randrange(len(checkpoints))]
    bases = [int(n[:20]) for n in names if n.endswith(".log")]
    rest = [n for n in checkpoints if n != victim]
    base = min(bases, default=0)
    spare = any(int(n[:20]) >= base for n in rest) and node.log_start <= int(max(rest)[:20])
    newest_covered = victim != checkpoints[-1] or (bool(bases) and base < int(victim[:20]))
    if not node.is_mere_broker and not (newest_covered and (base == 0 or spare)):
        return False
    node.broken.add(victim)
    directory.flip_bit(victim, rng.randrange(directory.size_of(victim)), rng.randrange(8))
    return True
