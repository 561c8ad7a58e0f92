"""Moves replicas between the log directories of a broker (KIP-113, KIP-858).

`alter` takes the operator's request; workers carry it out (Kafka's AlterReplicaLogDirsManager and
its threads).

    asked -> copying    a future log is made and copied in pieces, in a pool and within
                        replica.alter.log.dirs.io.max.bytes.per.second
          -> caught up  cleaning of the log is paused; new records are copied too
          -> promised   the controller records the new directory (AssignReplicasToDirs) before the
                        log is there: if the disk fails right after the swap, the controller knows
                        which leaders are gone
          -> swapped    `DirectoryMoves.swap`, on the event loop, which owns the logs

Requests and replication continue: the `Log` object is the same before and after. To delete the log,
or to take its directory offline, its future log is removed from `LogManager.moves`. A worker checks
there before and after each wait, so a cancelled move ends by itself, and its promise is taken back.
A move found at start continues.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from commitlog.cleaner.manager import LogCleaner
from commitlog.disk.log_directory import LogDirectory
from commitlog.disk.names import FUTURE_SUFFIX, NAME_BYTES_MAX
from commitlog.manager.manager import LogManager
from commitlog.moves.future_log import CopyPiece, FutureLog
from node.membership.directory_assignments import DirectoryAssignments
from node.partition.registry import PartitionRegistry
from node.runtime.tasks import OnFatal, cancel_all, spawn
from quorum.image.types import LOST_DIRECTORY
from tidemark.config import ServerConfig
from tidemark.errors import (
    FatalError,
    InvalidTopicError,
    KafkaStorageError,
    LogDirNotFoundError,
    ReplicaNotAvailableError,
    StorageError,
    TidemarkError,
)
from tidemark.types import TopicPartition

logger = logging.getLogger(__name__)

SWAP_BYTES_MAX = 1 << 20
"""Most bytes that a swap copies while the event loop waits."""
PREFERRED_MAX = 10_000
_LOOK_AGAIN_S = 0.1
_UNIQUE_CHARACTERS = 33  # the point and the 32 digits in a future log's name


Copied = tuple[int, int | None]
RunPiece = Callable[[Callable[[], Copied]], Awaitable[Copied]]


class Pace:
    """Limits all moves of a node together to a rate, which may change at any time."""

    def __init__(self, bytes_per_second: int) -> None:
        self.bytes_per_second = bytes_per_second
        self._turn = asyncio.Lock()

    async def spend(self, size_bytes: int) -> None:
        """Returns when `size_bytes` are within the rate; callers wait one after the other."""
        async with self._turn:
            while size_bytes > 0:
                rate = self.bytes_per_second
                await asyncio.sleep(min(1.0, size_bytes / rate))  # the rate may change meanwhile
                size_bytes -= rate


class DirectoryMover:
    """One per broker. `alter` is the RPC; call `start` when the logs are open, `stop` before they
    are closed."""

    def __init__(
        self,
        config: ServerConfig,
        logs: LogManager,
        partitions: PartitionRegistry,
        cleaner: LogCleaner,
        assignments: DirectoryAssignments,
        on_fatal: OnFatal,
        run_piece: RunPiece | None = None,
    ) -> None:
        """`run_piece` runs the copying of a piece; by default in a pool of threads."""
        self._logs = logs
        self._partitions = partitions
        self._cleaner = cleaner
        self._assignments = assignments
        self._on_fatal = on_fatal
        self._threads = config.num_replica_alter_log_dirs_threads or len(logs.directories)
        self._pace = Pace(config.replica_alter_log_dirs_io_max_bytes_per_second)
        self._pool = ThreadPoolExecutor(self._threads, "directory-move")
        self._run_piece = run_piece or self._in_pool
        self._wake = asyncio.Event()
        self._at_work: set[FutureLog] = set()
        self._tasks: list[asyncio.Task[None]] = []

    def start(self) -> None:
        """Starts the workers, which also continue the moves of an earlier process."""
        for number in range(self._threads):
            self._tasks.append(spawn(f"directory move {number}", self._work(), self._on_fatal))

    def reconfigure(self, config: ServerConfig) -> None:
        """Applies settings that were altered while the broker runs."""
        self._pace.bytes_per_second = config.replica_alter_log_dirs_io_max_bytes_per_second

    async def stop(self) -> None:
        """Stops the workers; moves in progress continue after the next start."""
        await cancel_all(*self._tasks)
        await asyncio.get_running_loop().run_in_executor(None, self._pool.shutdown)

    # --- requests

    def alter(self, topic_partition: TopicPartition, path: str) -> None:
        """Starts to move the replica to the directory; first cancels its move to another directory.

        Does nothing if the replica is there already. Raises:

        - LogDirNotFoundError if log.dirs has no such directory,
        - KafkaStorageError if it or the replica is offline, it lacks the room, or cannot be
          written,
        - InvalidTopicError if the name is too long for a future log (KAFKA-4893),
        - ReplicaNotAvailableError if this node has no such replica; a later one is created there.
        """
        if len(f"{topic_partition}{FUTURE_SUFFIX}") + _UNIQUE_CHARACTERS > NAME_BYTES_MAX:
            raise InvalidTopicError(f"the name of {topic_partition} is too long to be moved")
        target = self._directory(path)
        moves = self._logs.moves
        under_way = moves.destination_of(topic_partition)
        if under_way is target:
            return
        moves.cancel(topic_partition)
        hosted = self._partitions.find(topic_partition)
        if topic_partition in self._partitions.offline or (hosted is not None and hosted.offline):
            raise KafkaStorageError(f"{topic_partition} is offline: it can not be moved")
        if hosted is None:
            self._prefer(topic_partition, target)
            raise ReplicaNotAvailableError(
                f"this node has no replica of {topic_partition} yet; it will be made in {path}"
            )
        if self._logs.directory_of(topic_partition) is target:
            return
        try:
            self._check_room(hosted.log.size_bytes, target)
            moves.begin(hosted.log, target)
        except StorageError as error:
            raise KafkaStorageError(f"{topic_partition} can not be moved: {error}") from error
        self._wake.set()
        logger.info("%s: moving to %s", topic_partition, target.path)

    def _check_room(self, size_bytes: int, target: LogDirectory) -> None:
        """Raises StorageError if the target lacks the room: a full disk goes offline with all its
        logs."""
        moves = self._logs.moves
        coming = sum(
            future.bytes_left
            for future in moves.all()
            if moves.destination_of(future.topic_partition) is target
        )
        free_bytes = target.usage().free_bytes
        if free_bytes < size_bytes + coming:
            raise StorageError(
                f"{target.path} has {free_bytes} bytes free, {size_bytes + coming} are needed"
            )

    def _directory(self, path: str) -> LogDirectory:
        wanted = Path(path).absolute()
        for directory in self._logs.directories:
            if Path(directory.path).absolute() == wanted:
                if not directory.is_online:
                    raise KafkaStorageError(str(directory.state.offline()))
                return directory
        known = ", ".join(directory.path for directory in self._logs.directories)
        raise LogDirNotFoundError(f"log.dirs of this node has no {path}, only {known}")

    def _prefer(self, topic_partition: TopicPartition, target: LogDirectory) -> None:
        preferred = self._logs.moves.preferred
        preferred.pop(topic_partition, None)
        while len(preferred) >= PREFERRED_MAX:  # the oldest one is the least likely to matter
            del preferred[next(iter(preferred))]
        preferred[topic_partition] = target

    # --- the workers

    async def _work(self) -> None:
        while True:
            waiting = (f for f in self._logs.moves.all() if f not in self._at_work)
            future = next(waiting, None)
            if future is None:
                self._wake.clear()
                await self._wake.wait()
                continue
            self._at_work.add(future)
            try:
                await self._move(future)
            except FatalError:
                raise
            except (TidemarkError, OSError) as error:
                logger.error("%s: its move ends: %s", future.topic_partition, error)
                if self._is_current(future):
                    self._logs.moves.cancel(future.topic_partition)
            finally:
                self._at_work.discard(future)

    def _is_current(self, future: FutureLog) -> bool:
        return self._logs.moves.get(future.topic_partition) is future

    async def _move(self, future: FutureLog) -> None:
        """Copies the log until it can be swapped, and swaps it; returns early if the move is
        cancelled."""
        topic_partition = future.topic_partition
        states = self._cleaner.states
        await self._copy(future)
        states.pause(topic_partition)  # else a cleaner might rewrite as fast as pieces are copied
        try:
            await self._copy(future)
            await self._promise(future)
            while self._is_current(future):
                await self._copy(future)
                if (piece := future.sync_piece()) is not None:
                    await self._run(future, piece)
                if self._is_current(future) and future.bytes_left <= SWAP_BYTES_MAX:
                    self._logs.moves.swap(topic_partition)
        finally:
            states.resume(topic_partition)
            self._take_back(future)

    async def _copy(self, future: FutureLog) -> None:
        """Copies pieces until the rest is small enough to be copied within the swap."""
        while self._is_current(future) and (piece := future.next_piece()) is not None:
            if not piece.finishes and future.bytes_left <= SWAP_BYTES_MAX:
                return
            await self._run(future, piece)

    async def _run(self, future: FutureLog, piece: CopyPiece) -> None:
        before = piece.begin
        try:
            result = await self._run_piece(piece.run)
        except (TidemarkError, OSError) as error:
            if isinstance(error, FatalError) or future.still_fits(piece):
                raise
            return  # its segment was deleted meanwhile: the next piece is another one
        future.take(piece, result)
        await self._pace.spend(result[0] - before)

    async def _in_pool(self, work: Callable[[], Copied]) -> Copied:
        return await asyncio.get_running_loop().run_in_executor(self._pool, work)

    async def _promise(self, future: FutureLog) -> None:
        """Reports the new directory to the controller; returns when it is recorded, or the move is
        over."""
        recorded = asyncio.Event()
        target = self._logs.moves.destination_of(future.topic_partition)
        while self._is_current(future) and not recorded.is_set():
            hosted = self._partitions.find(future.topic_partition)
            if hosted is not None and not future.is_promised:
                if target is None or target.directory_id is None:
                    return
                future.is_promised = True
                self._assignments.submit(hosted.core.identity, target.directory_id, recorded.set)
            try:
                async with asyncio.timeout(_LOOK_AGAIN_S):
                    await recorded.wait()
            except TimeoutError:
                continue

    def _take_back(self, future: FutureLog) -> None:
        """After an unkept promise, reports the replica's real directory; not if a newer move made
        its own."""
        if not future.is_promised:
            return
        future.is_promised = False
        newer = self._logs.moves.get(future.topic_partition)
        if newer is not None and newer.is_promised:
            return
        hosted = self._partitions.find(future.topic_partition)
        home = self._logs.directory_of(future.topic_partition)
        if hosted is None:
            return
        if home is None and self._logs.lost_in(future.topic_partition) is not None:
            self._assignments.submit(hosted.core.identity, LOST_DIRECTORY)
        elif home is not None and home.directory_id is not None:
            self._assignments.submit(hosted.core.identity, home.directory_id)
