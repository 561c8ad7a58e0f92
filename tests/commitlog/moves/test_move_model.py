"""Random histories of logs that move between two directories while they are written, cut, expired
and compacted.

Moves are begun, copied piece by piece, cancelled and swapped, and power is lost at any operation.
The log equals its model as if it had never moved.
"""

from __future__ import annotations

from typing import Any

from hypothesis import strategies as st
from hypothesis.stateful import initialize, invariant, precondition, rule

from commitlog.cleaner.manager import LogCleaner
from commitlog.disk.memory_files import MemoryDirectory
from commitlog.disk.names import FUTURE_SUFFIX
from commitlog.log.log import Log
from commitlog.manager.manager import LogManager
from commitlog.moves.future_log import CopyPiece
from tests.commitlog.builders import NOW, TP, config, model_settings
from tests.commitlog.cleaner.test_cleaner_model import CompactionMachine
from tests.commitlog.log.test_log_model import LogMachine
from tests.commitlog.moves.moving import (
    SERVER,
    Power,
    PowerLoss,
    begin_move,
    copy_all,
    manager,
    number_names,
    random_names,
    two_directories,
)
from tidemark.config import TopicConfig
from tidemark.errors import TidemarkError


class _Moves:
    """Rules of moves, for a machine with `logs`; `self.piece` was copied and not taken yet."""

    logs: LogManager
    log: Log
    power: Power
    piece: tuple[CopyPiece, tuple[int, int | None]] | None = None
    lose_power: Any

    def teardown(self) -> None:
        random_names()

    @property
    def is_moving(self) -> bool:
        return self.logs.moves.get(TP) is not None

    @precondition(lambda self: not self.is_moving)
    @rule()
    def begin_a_move(self) -> None:
        begin_move(self.logs)

    @precondition(lambda self: self.is_moving)
    @rule(count=st.integers(1, 6))
    def copy_pieces(self, count: int) -> None:
        self.take_piece()
        future = self.logs.moves.get(TP)
        assert future is not None
        for _ in range(count):
            piece = future.next_piece()
            if piece is None:
                break
            future.take(piece, piece.run())

    @precondition(lambda self: self.is_moving)
    @rule()
    def copy_a_piece_and_take_it_later(self) -> None:
        self.take_piece()
        future = self.logs.moves.get(TP)
        assert future is not None
        piece = future.next_piece()
        if piece is not None:
            self.piece = (piece, piece.run())

    def take_piece(self) -> None:
        future, piece = self.logs.moves.get(TP), self.piece
        self.piece = None
        if future is not None and piece is not None and piece[0].target is future.directory:
            future.take(*piece)

    @precondition(lambda self: self.is_moving)
    @rule()
    def swap(self) -> None:
        self.take_piece()
        future = self.logs.moves.get(TP)
        assert future is not None
        home = self.logs.moves.destination_of(TP)
        future.sync_piece()
        self.logs.moves.swap(TP)
        assert self.logs.directory_of(TP) is home
        assert self.logs.get(TP) is self.log

    @precondition(lambda self: self.is_moving)
    @rule()
    def cancel_the_move(self) -> None:
        self.logs.moves.cancel(TP)

    @rule(after=st.integers(0, 60))
    def lose_power_in_a_move(self, after: int) -> None:
        self.take_piece()
        self.before_a_loss()
        self.power.left = after
        try:
            if not self.is_moving:
                begin_move(self.logs)
            future = self.logs.moves.get(TP)
            assert future is not None
            copy_all(future)
            self.logs.moves.swap(TP)
        except PowerLoss:
            assert self.power.left == 0
        self.power.left = None
        self.lose_power()

    def before_a_loss(self) -> None:
        """Updates the model: records that are not flushed may be lost."""

    @invariant()
    def one_directory_has_the_log(self) -> None:
        names = [name for home in self.logs.directories for name in home.list()]
        assert names.count(str(TP)) == 1
        futures = [name for name in names if name.endswith(FUTURE_SUFFIX)]
        assert len(futures) == int(self.is_moving)
        future = self.logs.moves.get(TP)
        if future is not None:
            assert future.end_offset <= self.log.log_end_offset
            assert future.bytes_left >= 0


class MovingLogMachine(_Moves, LogMachine):
    """The machine of a log, in two directories."""

    @initialize(seed=st.integers(0, 2**32), density=st.sampled_from([0, 100, 300, 4096]))
    def begin(self, seed: int, density: int) -> None:
        number_names(seed)
        self.disk = MemoryDirectory(seed=seed)
        self.settings = config(segment_bytes=900, index_interval_bytes=density)
        self.batches = []
        self.durable_end = 0
        self.epoch = 1
        self.now = NOW
        self.open()

    def open(self) -> None:
        self.power, self.piece = Power(), None
        settings = self.settings
        self.logs = manager(self.disk, self.power, topic_config=lambda _: settings)
        self.log = self.logs.get_or_create(TP, None, settings)

    @property
    def directory(self) -> object:
        return self.log.directory

    @rule()
    def restart_cleanly(self) -> None:
        self.logs.close()
        self.durable_end = self.log.log_end_offset
        self.open()
        assert self.log.recovered_bytes_cut == 0

    @rule(use_checkpoint=st.booleans(), short=st.booleans())
    def crash(self, use_checkpoint: bool, short: bool) -> None:
        self.lose_power(use_checkpoint, short)

    def lose_power(self, use_checkpoint: bool = True, short: bool = False) -> None:
        start, end = self.log.log_start_offset, self.end
        if use_checkpoint:
            self.logs._write_recovery_points()
        self.logs.checkpoint_log_start_offsets()
        self.disk.crash()
        self.disk.set_short_writes(short)
        self.open()
        found = self.log.log_end_offset
        assert found >= self.durable_end, "what was flushed is lost"
        assert found <= max(end, start)
        self.cut(found)
        first = self.log.segments[0].base_offset
        self.batches = [b for b in self.batches if b.first >= first]
        self.durable_end = found
        self.epoch += 1


class MovingCompactionMachine(_Moves, CompactionMachine):
    """The machine of a compacted log, in two directories."""

    topic: TopicConfig
    opened = 0

    def open(self) -> None:
        self.opened += 1
        number_names(self.opened)
        self.power, self.piece = Power(), None
        self.logs = LogManager(
            two_directories(self.directory, self.power),
            SERVER,
            now_ms=lambda: self.now,
            topic_config=lambda _: self.topic,
        )
        self.logs.open()
        self.directory.fsync()
        self.log = self.logs.get_or_create(TP, None, self.topic)
        self.log.update_high_watermark(self.log.log_end_offset)
        self.cleaner = LogCleaner(self.logs, self.server, now_ms=lambda: self.now)
        self.cleaner.start()
        self.cleaning = None

    def end_cleaning(self) -> None:
        try:
            super().end_cleaning()
        except TidemarkError as error:  # the log moved meanwhile
            assert self.cleaning is not None
            self.cleaner.finish(self.cleaning, error)
            self.cleaning = None

    def before_a_loss(self) -> None:
        """Avoids a loss of records: the model does not cover what compaction leaves of a log that
        lost its end.
        """
        self.log.flush()

    @rule()
    def crash(self) -> None:
        self.before_a_loss()
        self.lose_power()

    def lose_power(self) -> None:
        CompactionMachine.crash(self)

    @rule()
    def purge(self) -> None:
        self.logs.purge_deleted(self.now)

    @rule(after=st.integers(0, 40))
    def power_loss_in_a_swap(self, after: int) -> None:
        self.lose_power_in_a_move(after)


for machine in (MovingLogMachine, MovingCompactionMachine):
    machine.TestCase.settings = model_settings()
TestMovingLogAgainstItsModel = MovingLogMachine.TestCase
TestMovingCompactedLogAgainstItsModel = MovingCompactionMachine.TestCase
