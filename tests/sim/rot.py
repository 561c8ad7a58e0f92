"""Damage of single files: a flipped bit or a lost end, at rest or while the node runs.

At most a minority of the voters is damaged at once. A node cannot notice by itself that it lost its
newest records, which `log-bounds` does not know yet. Such damage is only drawn where all other
voters have these records. Then nothing committed is lost, nothing wrong is served, and the node
heals or refuses its start with a typed error.
"""

from __future__ import annotations

import contextlib
import random
from dataclasses import dataclass
from typing import TYPE_CHECKING

from commitlog.disk.checkpoints import LEADER_EPOCH_CHECKPOINT, parse_epochs
from commitlog.disk.files import Directory
from commitlog.disk.memory_files import MemoryDirectory
from quorum.replica.log_bounds import LOG_BOUNDS_FILE, parse_bounds
from quorum.replica.quorum_state import QUORUM_STATE_FILE
from snapshot.cleaning import DAMAGED_SUFFIX
from snapshot.names import parse_name
from tests.sim.disk_faults import copy_disk
from tidemark.errors import CorruptMessageError
from tidemark.records import iter_batches

if TYPE_CHECKING:
    from tests.sim.node import SimNode

LOG_DIRECTORY = "__cluster_metadata-0"
AT_REST = ("log", "log cut", "checkpoint", "quorum-state", "log-bounds", "epochs", "index")
WHILE_RUNNING = ("log", "checkpoint")


@dataclass(slots=True, frozen=True)
class Damage:
    """Damage of one file, with what can be missing once the node has found it."""

    kind: str
    name: str
    position: int
    lost_from: int
    """Records from this offset on may be lost."""
    wrong_until: int = 0
    """End of the batch that is wrong while the node runs."""
    value: int = 0
    """The wrong byte."""
    bit: int = 0


def metadata_directory(node: SimNode) -> MemoryDirectory:
    directory: Directory = node.disk.subdirectory(LOG_DIRECTORY)
    assert isinstance(directory, MemoryDirectory)
    return directory


def known_end(directory: Directory) -> int:
    """Returns the end offset that the log cannot lose unnoticed."""
    if not directory.exists(LOG_BOUNDS_FILE):
        return 0
    try:
        return parse_bounds(directory.read(LOG_BOUNDS_FILE)).end_offset
    except ValueError:
        return 0


def _batch_at(directory: Directory, name: str, position: int) -> tuple[int, int]:
    """Returns base offset and end offset of the batch of a segment that holds this byte, or of the
    last one before earlier damage.
    """
    first, following = int(name[:20]), int(name[:20])
    with contextlib.suppress(CorruptMessageError):
        for begin, header in iter_batches(directory.read(name)):
            if begin > position:
                break
            first, following = header.base_offset, header.next_offset
    return first, following


def _last_epoch_start(directory: Directory) -> int:
    entries = parse_epochs(directory.read(LEADER_EPOCH_CHECKPOINT))
    return max((start for _, start in entries), default=0)


def _kinds(directory: Directory, spared: set[str | None]) -> dict[str, list[str]]:
    names = [n for n in directory.list() if directory.size_of(n) and n not in spared]
    return {
        "log": [n for n in names if n.endswith(".log")],
        "checkpoint": [n for n in names if n.endswith(".checkpoint")],
        "quorum-state": [n for n in names if n == QUORUM_STATE_FILE],
        "log-bounds": [n for n in names if n == LOG_BOUNDS_FILE],
        "epochs": [n for n in names if n == LEADER_EPOCH_CHECKPOINT],
        "index": [n for n in names if n.endswith(("index", ".snapshot"))],
    }


def rot_at_rest(node: SimNode, rng: random.Random, *, unnoticed: bool) -> Damage | None:
    """Damages one file of a stopped node. `unnoticed` damage of the newest records may be drawn,
    too. Returns None where nothing was damaged."""
    directory = metadata_directory(node)
    kinds = _kinds(directory, {node.needed, *node.broken})
    kind = rng.choice([*sorted(kinds), "log", "log", "log", "checkpoint"])
    if not kinds[kind]:
        return None
    name = rng.choice(kinds[kind])
    position = rng.randrange(directory.size_of(name))
    lost_from = node.durable_when_down
    if kind == "log":
        lost_from = _batch_at(directory, name, position)[0]
    elif kind == "epochs":
        lost_from = _last_epoch_start(directory)
    noticed = lost_from >= node.durable_when_down or lost_from < known_end(directory)
    if not noticed and not unnoticed:
        return None
    if kind != "log" or rng.random() < 0.6:
        directory.flip_bit(name, position, rng.randrange(8))
    else:
        kind = "log cut"
        directory.cut(name, position)
    return Damage(kind, name, position, lost_from)


def _is_registered(node: SimNode, name: str) -> bool:
    snapshot_id = parse_name(name)
    return snapshot_id is not None and node.log.snapshot_size_bytes(snapshot_id) is not None


def rot_while_running(node: SimNode, rng: random.Random, committed: int) -> Damage | None:
    """Flips a bit in a committed batch or in a checkpoint of a running node. Returns None where
    nothing was damaged."""
    directory = metadata_directory(node)
    kinds = _kinds(directory, {node.needed, *node.broken})
    kinds["checkpoint"] = [n for n in kinds["checkpoint"] if _is_registered(node, n)]
    kind = rng.choice(WHILE_RUNNING)
    if not kinds[kind]:
        return None
    name = rng.choice(kinds[kind])
    position = rng.randrange(directory.size_of(name))
    lost_from, wrong_until = node.durable_offset, 0
    if kind == "log":
        lost_from, wrong_until = _batch_at(directory, name, position)
        known = min(known_end(directory), committed, node.log.durable_offset)
        if wrong_until > known:
            return None
    bit = rng.randrange(8)
    directory.flip_bit(name, position, bit)
    value = directory.read(name)[position]
    return Damage(kind, name, position, lost_from, wrong_until, value, bit)


class Wounds:
    """The damage of one node that it has not healed yet, and what it owes the others until then."""

    def __init__(self, node: SimNode) -> None:
        self._node = node
        self.running: Damage | None = None
        self.owed = 0
        """Everything below this offset was acknowledged, and counts as held (RULES.md I3)."""
        self._committed, self._epoch = 0, 0

    @property
    def is_open(self) -> bool:
        return self._rots or self.owed > 0

    @property
    def _rots(self) -> bool:
        if self.running is not None and not self._is_there(self.running):
            self.running = None
        return self.running is not None

    def _is_there(self, damage: Damage) -> bool:
        directory = metadata_directory(self._node)
        if not directory.exists(damage.name):
            return directory.exists(damage.name + DAMAGED_SUFFIX)
        data = directory.read(damage.name)
        return damage.position < len(data) and data[damage.position] == damage.value

    @property
    def wrong_until(self) -> int:
        """Records below this offset may be wrong."""
        return self.running.wrong_until if self.running is not None and self._rots else 0

    def forget(self) -> None:
        """The disk was replaced, or restored."""
        self.running, self.owed = None, 0

    def down(self) -> None:
        """The node stopped: the next start finds damage that came while it ran."""
        if self.running is not None and self._rots:
            self.owe(self.running.lost_from)

    def owe(self, lost_from: int) -> None:
        """Records from this offset on may be lost at the next start."""
        node, checks = self._node, self._node.world.checks
        if lost_from < node.durable_when_down:
            self.owed = max(self.owed, node.durable_when_down)
            node.durable_when_down = lost_from
            self._committed, self._epoch = checks.committed_end, checks.persisted(node).epoch

    def look(self) -> None:
        """Ends the debt once the node has what was committed, or all that it acknowledged."""
        node = self._node
        if not self.owed or not node.alive or node.replica.state.lost_tail:
            return
        known = node.replica.high_watermark or 0
        caught_up = known >= self._committed and node.replica.epoch > self._epoch
        if node.durable_offset >= self.owed or caught_up:
            self.owed = 0
            node.world.seen["damaged node healed"] += 1

    def undamaged_disk(self) -> MemoryDirectory:
        """Returns a copy of the stopped node's disk without damage that came while it ran."""
        node, damage = self._node, self.running
        copied = copy_disk(node.disk, node.world.seed * 1000 + node.node_id)
        if damage is not None and self._rots:
            directory = copied.subdirectory(LOG_DIRECTORY)
            assert isinstance(directory, MemoryDirectory)
            if not directory.exists(damage.name):
                directory.rename(damage.name + DAMAGED_SUFFIX, damage.name)
                directory.fsync()
            directory.flip_bit(damage.name, damage.position, damage.bit)
        return copied
