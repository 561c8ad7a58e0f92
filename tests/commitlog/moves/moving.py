"""Log managers with two directories on one disk in memory, moves between them, and a disk that
loses power between two operations.
"""

from __future__ import annotations

import random
from dataclasses import dataclass
from typing import Any
from uuid import UUID, uuid4

from commitlog.disk.files import Directory
from commitlog.disk.log_directory import LogDirectory
from commitlog.disk.memory_files import MemoryDirectory
from commitlog.log.log import Log
from commitlog.manager import manager as log_manager
from commitlog.manager.manager import LogManager
from commitlog.moves import directory_moves, future_log
from commitlog.moves.future_log import FutureLog
from tests.commitlog.builders import NOW, TP, batch, config
from tidemark.config import parse_server_config
from tidemark.types import random_uuid

TOPIC_ID = random_uuid()
SERVER = parse_server_config(
    {
        "process.roles": "broker",
        "node.id": "1",
        "controller.quorum.voters": "9@localhost:1",
        "log.cleaner.dedupe.buffer.size": "65536",
        "log.cleaner.io.buffer.size": "1024",
    }
)


def number_names(seed: int) -> None:
    """Numbers the names of directories that are otherwise random: the same in each run of a
    seed.
    """
    rng = random.Random(seed)
    for module in (directory_moves, future_log, log_manager):
        module.uuid4 = lambda: UUID(int=rng.getrandbits(128))  # type: ignore[attr-defined]


def random_names() -> None:
    """Undoes `number_names`."""
    for module in (directory_moves, future_log, log_manager):
        module.uuid4 = uuid4  # type: ignore[attr-defined]


def filled(logs: LogManager, batches: int = 40, **settings: object) -> Log:
    """Returns the log with some batches, in `a`."""
    log = logs.get_or_create(TP, TOPIC_ID, config(**settings))
    add(log, batches)
    return log


def add(log: Log, batches: int, epoch: int = 1) -> None:
    for _ in range(batches):
        log.append_as_leader(batch(3, timestamp=NOW + log.log_end_offset), epoch, NOW)
    log.update_high_watermark(log.log_end_offset)


def names(disk: MemoryDirectory, directory: str) -> list[str]:
    return [n for n in disk.subdirectory(directory).list() if TP.topic in n]


class PowerLoss(BaseException):
    """The machine stopped without any cleanup."""


@dataclass
class Power:
    """Number of name changes that the disk still makes; None: unlimited."""

    left: int | None = None

    def use(self) -> None:
        if self.left is not None:
            if self.left == 0:
                raise PowerLoss
            self.left -= 1


class PoweredDirectory(MemoryDirectory):
    """A directory in which each change and each sync of names needs power."""

    def __init__(self, path: str, power: Power, root: MemoryDirectory) -> None:
        super().__init__(path, disk=root.disk, node=root._node)
        self.power = power

    def subdirectory(self, name: str, *, create: bool = True) -> Directory:
        if create and not self.exists(name):
            self.power.use()
        inner = super().subdirectory(name, create=create)
        assert isinstance(inner, MemoryDirectory)
        return PoweredDirectory(inner.path, self.power, inner)

    def open(self, name: str, *, create: bool = False) -> Any:
        if create and not self.exists(name):
            self.power.use()
        return super().open(name, create=create)

    def remove(self, name: str) -> None:
        if self.exists(name):
            self.power.use()
        super().remove(name)

    def rename(self, old: str, new: str) -> None:
        self.power.use()
        super().rename(old, new)

    def fsync(self) -> None:
        self.power.use()
        super().fsync()


def two_directories(disk: MemoryDirectory, power: Power | None = None) -> list[Directory]:
    """Returns `a` and `b` of a disk."""
    found = []
    for name in "ab":
        inner = disk.subdirectory(name)
        assert isinstance(inner, MemoryDirectory)
        found.append(PoweredDirectory(name, power or Power(), inner))
    return [*found]


def manager(disk: MemoryDirectory, power: Power | None = None, **options: Any) -> LogManager:
    """Returns a node's logs in `a` and `b`, opened."""
    options.setdefault("now_ms", lambda: NOW)
    logs = LogManager(two_directories(disk, power), SERVER, **options)
    logs.open()
    disk.fsync()
    return logs


def home_of(logs: LogManager) -> str:
    """Returns the name of the directory that holds the log."""
    home = logs.directory_of(TP)
    assert home is not None
    return home.path


def other_home(logs: LogManager) -> LogDirectory:
    """Returns the directory that does not hold the log."""
    return next(d for d in logs.directories if d is not logs.directory_of(TP))


def begin_move(logs: LogManager) -> FutureLog:
    """Begins to move the log to the other directory."""
    log = logs.get(TP)
    assert log is not None
    return logs.moves.begin(log, other_home(logs))


def copy_all(future: FutureLog) -> None:
    """Copies what the log has, as a worker does between other work."""
    while (piece := future.next_piece()) is not None:
        future.take(piece, piece.run())


def move(logs: LogManager) -> None:
    """Does a whole move at once."""
    copy_all(begin_move(logs))
    logs.moves.swap(TP)
