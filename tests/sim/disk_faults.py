"""What goes wrong with the disks of the simulated world.

Silent faults (a flipped bit in a checkpoint, an older copy, an empty disk) come with a restart.
Loud ones come while the node runs: a failed fsync (EIO) of the log, of quorum-state, of a
checkpoint or of the directory, or a full disk. Whatever must be durable then stops the process
(RULES.md rule 4); a checkpoint that did not fit is left out.
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
"""What is left of a disk that is about to be full: some batches, or half a checkpoint."""


def make_slow(node: SimNode, rng: random.Random) -> None:
    """A disk whose every write that somebody waits for may take long."""
    node.flush_max_ms = 120
    node.state_write_max_ms = rng.choice([0, 60, 300])
    node.snapshot_write_max_ms = 400


def break_disk(node: SimNode, rng: random.Random) -> None:
    """The node's next fsync of some kind fails, or its disk gets full soon."""
    if rng.random() < 0.6:
        what = rng.choice(sorted(EIO_PATTERNS))
        node.syncs_fail = what
        node.disk.fail_fsync(EIO_PATTERNS[what])
    else:
        node.writes_fail = True
        node.disk.set_capacity(node.disk.disk.used_bytes + rng.randrange(ROOM_MAX_BYTES))


def kind_of_disk_fault(node: SimNode, error: Exception) -> str | None:
    """Which planned fault an error is; None for an error that nobody planned."""
    text = str(error)
    if node.syncs_fail is not None and "Input/output error" in text:
        return f"fsync fails: {node.syncs_fail}"
    if node.writes_fail and "the disk is full" in text:
        if ".checkpoint" in text:
            return "disk full: checkpoint"
        return "disk full: quorum-state" if "quorum-state" in text else "disk full: log"
    return None


def copy_disk(source: MemoryDirectory, seed: int) -> MemoryDirectory:
    """All files of a disk that is at rest, durably, on another one."""
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
    """Flips a bit in one checkpoint of a node that is down, where the node can do without it: the
    log begins at 0, or another checkpoint covers the log's beginning, or it is a mere broker.
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
