"""The edge of the Raft replica, driven by one asyncio task. Only this edge does IO.

Events wait in one queue. Each is passed to `Replica.step`, and its effects are carried out (persist
-> send -> apply) before the next one. Files are synced on a pool of one thread: the event loop
never waits for an fsync of the log. If persisting fails the replica stops for good, and `fatal`
fails: the process must end (RULES.md rule 4).
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Awaitable, Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from uuid import UUID

import grpc.aio

from commitlog.disk.files import Directory, DiskError
from quorum.raft import messages as m
from quorum.raft.config import FOREVER_MS, Randomness
from quorum.raft.effects import (
    Effects,
    Event,
    LeaderAndEpoch,
    LogAppended,
    LogFlushed,
    LogStartRaised,
    OwnCheckpointChecked,
    OwnLogDamaged,
    RecordsRefused,
    RequestFailed,
    RequestReceived,
    Resign,
    ResponseDamaged,
    ResponseReceived,
    Send,
    Shutdown,
    SnapshotInstalled,
    SnapshotPiece,
    SnapshotRejected,
    Tick,
)
from quorum.raft.replica import Replica
from quorum.raft.roles import Leader
from quorum.replica.answers import Answers
from quorum.replica.appends import Appends
from quorum.replica.client import QuorumInfo, RaftListener
from quorum.replica.describe import describe
from quorum.replica.flusher import Flusher
from quorum.replica.listeners import Listeners
from quorum.replica.metadata_log import METADATA_PARTITION, ReplicatedLog
from quorum.replica.metrics import Metric, RaftMeter
from quorum.replica.own_damage import OwnLogDamagedError, advice, tail_is_lost
from quorum.replica.sealing import is_intact
from quorum.replica.served_checkpoints import ServedCheckpoints
from quorum.replica.service import RaftService
from quorum.replica.settings import controller_channels, metadata_log_config, replica_config
from quorum.replica.transport import GrpcTransport, Transport
from snapshot.cleaning import delete_snapshot
from snapshot.names import SnapshotId
from snapshot.transfer import write_piece
from tidemark.config import ServerConfig
from tidemark.errors import (
    BrokerNotAvailableError,
    CorruptMessageError,
    ErrorCode,
    FatalError,
    NetworkError,
    NotControllerError,
    SnapshotNotFoundError,
    StorageError,
    ThrottlingQuotaExceededError,
    TidemarkError,
)
from tidemark.types import Endpoint
from tidemark.v1 import raft_pb2_grpc

logger = logging.getLogger(__name__)

MAX_QUEUED_EVENTS = 4096
"""Limit of queued events. Beyond it, requests fail with a retriable error."""
MAX_UNCOMMITTED_RECORDS = 200_000
"""Records the client may append beyond the high watermark; then THROTTLING_QUOTA_EXCEEDED."""
CLEAN_INTERVAL_S = 60.0
"""Interval of log cleaning in seconds (Kafka's constant). The log is also cleaned after each
checkpoint.
"""
SHUTDOWN_TIMEOUT_S = 1.0
"""Longest time a stopping leader waits for the voters to acknowledge, in seconds."""


class RaftServer:
    """A voter or observer of the metadata quorum; implements `quorum.replica.client.RaftClient`."""

    def __init__(
        self,
        config: ServerConfig,
        *,
        cluster_id: str,
        directory: Directory,
        directory_id: UUID,
        rng: Randomness,
        now_ms: Callable[[], int],
        transport: Transport | None = None,
    ) -> None:
        """Opens the log in `directory`/__cluster_metadata-0. `now_ms` is the wall clock, for record
        timestamps; timers run on the event loop's clock. Raises StorageError and FatalError."""
        self._now_ms = now_ms
        self._transport = transport or GrpcTransport(controller_channels(config))
        own_directory = directory.subdirectory(str(METADATA_PARTITION))
        directory.fsync()  # otherwise a crash may lose the new directory and its files
        self._log = ReplicatedLog(own_directory, metadata_log_config(config), now_ms())
        self._replica = Replica(
            replica_config(config, cluster_id, directory_id),
            self._log,
            self._log.quorum_state.read(),
            rng,
            bounds=self._log.bounds.now,
        )
        if self._log.bounds.lost:
            logger.error("%s", tail_is_lost(self._log))
        self._pool = ThreadPoolExecutor(1, thread_name_prefix="raft-disk")
        self._linger_ms = config.controller_quorum_append_linger_ms
        self._appends = Appends()
        self._listeners = Listeners(self._replica, self._log)
        self._meter = RaftMeter(self._replica, self._log)
        self._queue: deque[Event | Callable[[], Awaitable[None]]] = deque()
        self._wake = asyncio.Event()
        self._tasks: set[asyncio.Task[None]] = set()
        self._driver: asyncio.Task[None] | None = None
        self._fatal: asyncio.Future[None] | None = None
        self._flusher: Flusher | None = None
        self._stopped = False
        self._served = ServedCheckpoints(self._log)
        self._answers = Answers(
            self._log, self._served, self._spawn, self._on_log_damage, self._on_checkpoint_damage
        )
        self._left = asyncio.Event()  # set once no voter needs to learn that this node stops

    # --- client interface -----------------------------------------------------------------------

    @property
    def node_id(self) -> int:
        return self._replica.node_id

    @property
    def leader_and_epoch(self) -> LeaderAndEpoch:
        return self._replica.leader_and_epoch

    @property
    def epoch(self) -> int:
        return self._replica.epoch

    @property
    def high_watermark(self) -> int | None:
        return self._replica.high_watermark

    @property
    def log_start_offset(self) -> int:
        return self._log.start_offset

    @property
    def log_end_offset(self) -> int:
        """The end of the log, including appended records that are not yet written."""
        return self._log.end_offset + self._appends.count

    @property
    def latest_snapshot(self) -> SnapshotId | None:
        return self._log.latest_snapshot

    @property
    def fatal(self) -> asyncio.Future[None]:
        """Future that fails when the process must stop."""
        if self._fatal is None:
            self._fatal = asyncio.get_running_loop().create_future()
        return self._fatal

    def leader_endpoint(self) -> Endpoint | None:
        """Address of the current leader; None if there is none."""
        leader_id = self._replica.leader_and_epoch.leader_id
        if leader_id is None:
            return None
        return self._replica.leader_endpoint or self._replica.voters.endpoint(leader_id)

    def append(self, epoch: int, values: Sequence[bytes]) -> int:
        """See `RaftClient.append`. The records are in the log after this turn of the event loop."""
        if self._stopped or not self._replica.can_append(epoch):
            leader = self._replica.leader_and_epoch
            raise NotControllerError(
                f"node {self.node_id} does not lead in epoch {epoch}: leader is "
                f"{leader.leader_id} in epoch {leader.epoch}"
            )
        if not values:
            raise ValueError("append needs at least one record")
        waiting = self.log_end_offset - (self._replica.high_watermark or 0)
        if waiting > MAX_UNCOMMITTED_RECORDS:
            raise ThrottlingQuotaExceededError(
                f"{waiting} metadata records wait to be committed: is a majority of voters up?"
            )
        first = self._appends.count == 0
        last_offset = self._appends.add(values, epoch, self._log.end_offset, self._now_ms())
        if first:
            self._queue.append(self._append)
            self._wake.set()
        return last_offset

    async def _append(self) -> None:
        if self._write_appends():
            await self._step(LogAppended())

    def _write_appends(self) -> bool:
        """Writes pending appends into the log. Returns False, and drops them, if the leadership is
        lost.
        """
        leads = LeaderAndEpoch(self.node_id, self._appends.epoch)
        batches = self._appends.take()
        if not batches or self._replica.leader_and_epoch != leads:
            return False
        first = self._log.end_offset
        for batch in batches:
            self._log.append_batch(batch, self._now_ms())
        self._meter.appended(self._log.end_offset - first, self._loop_ms())
        return True

    def register(self, listener: RaftListener) -> None:
        self._listeners.add(listener)
        self._wake.set()

    def resign(self, epoch: int) -> None:
        self._post(Resign(epoch))

    def describe(self) -> QuorumInfo:
        """Describes the quorum. Offsets and fetch times are known only if this node leads."""
        return describe(self._replica, self._log, self._loop_ms(), self._now_ms())

    def metrics(self) -> dict[str, Metric]:
        """Returns the metrics of this replica by Kafka's names (raft-metrics)."""
        return self._meter.read(self._loop_ms())

    async def create_snapshot(self, end_offset: int, values: Iterable[bytes]) -> None:
        """See `RaftClient.create_snapshot`. Raises InvalidRequestError for an invalid offset."""
        snapshot_id = self._log.snapshot_id_for(end_offset, self._replica.high_watermark)
        if snapshot_id is None:
            return
        timestamp_ms = self._log.last_timestamp_ms(end_offset)

        def write() -> None:
            writer = self._log.snapshot_writer(snapshot_id, timestamp_ms)
            try:
                writer.append(values)
                writer.freeze()
            finally:
                writer.abort()

        loop = asyncio.get_running_loop()
        with ThreadPoolExecutor(1, thread_name_prefix="raft-snapshot") as pool:
            try:
                await loop.run_in_executor(pool, write)
            except FatalError as error:
                self._fail(error)
                raise
        if not self._stopped:
            self._log.snapshot_frozen(snapshot_id)
            self._queue.append(self._clean)
            self._wake.set()

    # --- lifecycle ------------------------------------------------------------------------------

    async def start(self) -> None:
        """Starts the driver task and returns at once. Call `add_to_server` first, so that peers can
        be answered.
        """
        self._flusher = Flusher(
            self._log,
            self._pool,
            self._linger_ms,
            lambda end_offset: self._post(LogFlushed(end_offset)),
            self._fail,
        )
        _ = self.fatal
        self._driver = asyncio.get_running_loop().create_task(self._drive(), name="raft-driver")

    def add_to_server(self, server: grpc.aio.Server) -> None:
        """Registers the Raft service. Call before the server starts."""
        raft_pb2_grpc.add_RaftServicer_to_server(RaftService(self.handle, self.describe), server)  # type: ignore[no-untyped-call]

    async def shutdown(self) -> None:
        """Shuts down gracefully: a leader first notifies the voters. The object is unusable
        afterwards.
        """
        if self._driver is not None and not self._stopped:
            self._post(Shutdown())
            try:
                async with asyncio.timeout(SHUTDOWN_TIMEOUT_S):
                    await self._left.wait()
            except TimeoutError:
                logger.info("not all voters heard that node %d stops", self.node_id)
        await self._stop()
        self._log.close()

    async def _stop(self) -> None:
        self._stopped = True
        running = [task for task in (self._driver, *self._tasks) if task is not None]
        for task in running:
            if task is not asyncio.current_task():
                task.cancel()
        await asyncio.gather(*running, return_exceptions=True)
        if self._flusher is not None:
            await self._flusher.idle()
        self._answers.end()
        await self._transport.close()
        self._pool.shutdown(wait=True)
        if self._fatal is not None and not self._fatal.done():
            self._fatal.cancel()

    def _fail(self, error: BaseException) -> None:
        """Stops the replica after a failure and fails `fatal`."""
        if self._stopped:
            return
        self._stopped = True
        foreseen = isinstance(error, TidemarkError)  # then its message says all
        trace = None if foreseen else error
        logger.critical(
            "the Raft replica of node %d stops: %s", self.node_id, error, exc_info=trace
        )
        fatal = error if isinstance(error, FatalError) else FatalError(str(error) or repr(error))
        if fatal is not error:
            fatal.__cause__ = error
        if not self.fatal.done():
            self.fatal.set_exception(fatal)
        self._answers.end()
        self._left.set()
        self._wake.set()

    # --- requests of peers ----------------------------------------------------------------------

    async def handle(self, request: m.AnyRequest) -> m.Response:
        """Answers a quorum request. Called by the Raft service and by in-memory transports."""
        if self._stopped or self._driver is None or len(self._queue) >= MAX_QUEUED_EVENTS:
            raise BrokerNotAvailableError("the replica is not running or overloaded")
        return await self._answers.wait(lambda token: self._post(RequestReceived(token, request)))

    # --- the driver -----------------------------------------------------------------------------

    def _loop_ms(self) -> int:
        return int(asyncio.get_running_loop().time() * 1000)

    def _post(self, event: Event) -> None:
        self._queue.append(event)
        self._wake.set()

    async def _drive(self) -> None:
        try:
            await self._carry_out(self._replica.start(self._loop_ms()))
            next_clean_ms = self._loop_ms() + int(CLEAN_INTERVAL_S * 1000)
            while not self._stopped:
                await self._wait()
                if self._loop_ms() >= next_clean_ms:
                    await self._clean()
                    next_clean_ms = self._loop_ms() + int(CLEAN_INTERVAL_S * 1000)
                events = list(self._queue)
                self._queue.clear()
                for event in events or [Tick()]:
                    if self._stopped:
                        return
                    await (event() if callable(event) else self._step(event))
                self._listeners.deliver()
                if self._replica.shutdown_complete:
                    self._left.set()
        except Exception as error:  # the state can no longer be trusted: the process must stop
            self._fail(error)

    async def _wait(self) -> None:
        """Waits for an event, or for the replica's next deadline."""
        if self._queue or self._listeners.has_more:
            await asyncio.sleep(0)
            return
        deadline_ms = self._replica.next_deadline_ms()
        until_ms = FOREVER_MS if deadline_ms is None else deadline_ms
        timeout_s = min(CLEAN_INTERVAL_S, (until_ms - self._loop_ms()) / 1000)
        if timeout_s > 0 and not self._wake.is_set():
            began_ms = self._loop_ms()
            handle = asyncio.get_running_loop().call_later(timeout_s, self._wake.set)
            await self._wake.wait()
            handle.cancel()
            now_ms = self._loop_ms()
            self._meter.waited(now_ms - began_ms, now_ms)
        self._wake.clear()

    async def _step(self, event: Event) -> None:
        await self._carry_out(self._replica.step(event, self._loop_ms()))

    async def _carry_out(self, effects: Effects) -> None:
        """Persist -> send -> apply, in the order of `Effects`."""
        if effects.election_state is not None:
            state = effects.election_state
            await self._on_disk(lambda: self._log.quorum_state.write(state))
        log_changed = await self._change_log(effects)
        if effects.flush:
            assert self._flusher is not None
            self._flusher.request()
        if effects.install_snapshot is not None:
            self._spawn(self._install(effects.install_snapshot))
        for reply in effects.replies:
            self._answers.give(reply)
        for send in effects.sends:
            self._spawn(self._call(send))
        if effects.high_watermark is not None:
            self._log.update_high_watermark(effects.high_watermark)
            self._meter.committed(effects.high_watermark, self._loop_ms())
        if effects.leader is not None:
            logger.info("node %d: %s", self.node_id, effects.leader)
            self._meter.leader_changed()
        if effects.tail_found:
            self._log.bounds.found_again(self._log.durable_offset)
            logger.info("node %d has its lost records again: it votes", self.node_id)
        if effects.save_bounds:
            await self._on_disk(self._log.bounds.save)
        if effects.remote_fault is not None:
            self._meter.remote_fault(effects.remote_fault, self._loop_ms())
        if log_changed is not None:
            await self._step(log_changed)

    async def _on_disk(self, work: Callable[[], None]) -> None:
        await asyncio.get_running_loop().run_in_executor(self._pool, work)

    async def _change_log(self, effects: Effects) -> LogAppended | RecordsRefused | None:
        """Carries out what changes the log. Returns the event that reports it, if anything does."""
        if effects.truncate_to is not None:
            assert self._flusher is not None
            await self._flusher.idle()
            self._log.truncate_to(effects.truncate_to, self._now_ms())
        if effects.append_leader_change is not None:
            self._log.append_leader_change(effects.append_leader_change, self._now_ms())
        if effects.append_voters is not None:
            self._write_appends()  # their offsets are already promised
            self._log.append_voters(effects.append_voters, self._replica.epoch, self._now_ms())
        if effects.append_records:
            first = self._log.end_offset
            try:
                epoch = self._replica.epoch
                self._log.append_fetched(effects.append_records, epoch, self._now_ms())
                self._meter.fetched(self._log.end_offset - first, self._loop_ms())
            except CorruptMessageError as error:
                return RecordsRefused(str(error))
        if effects.snapshot_piece is not None:
            await self._write_piece(effects.snapshot_piece)
        return LogAppended() if effects.changes_log else None

    async def _write_piece(self, piece: SnapshotPiece) -> None:
        await self._on_disk(
            lambda: write_piece(self._log.directory, piece.snapshot_id, piece.position, piece.data)
        )

    def _spawn(self, work: Awaitable[None]) -> None:
        task = asyncio.ensure_future(work)
        assert isinstance(task, asyncio.Task)
        self._tasks.add(task)
        task.add_done_callback(self._on_ended)

    def _on_ended(self, task: asyncio.Task[None]) -> None:
        """Stops the replica if one of its tasks fails in a way that nothing foresaw."""
        self._tasks.discard(task)
        error = None if task.cancelled() else task.exception()
        if error is not None:
            self._fail(error)

    # --- sends, replies, snapshots --------------------------------------------------------------

    async def _call(self, send: Send) -> None:
        try:
            response = await self._transport.call(send.endpoint, send.request, send.timeout_ms)
        except NetworkError:
            self._post(RequestFailed(send.correlation_id))
            return
        except Exception:
            logger.exception("a request to %s failed", send.endpoint.address)
            self._post(RequestFailed(send.correlation_id))
            return
        if response.header.error == ErrorCode.INCONSISTENT_CLUSTER_ID:
            logger.error("%s belongs to another cluster than this node", send.endpoint.address)
        if is_intact(response):
            self._post(ResponseReceived(send.correlation_id, response))
        else:
            self._post(ResponseDamaged(send.correlation_id))

    def _on_log_damage(self, error: OwnLogDamagedError) -> None:
        logger.error("%s", advice(self._log, error))
        self._post(OwnLogDamaged(error.offset))
        self._queue.append(self._clean)
        self._listeners.want_snapshot()

    def _on_checkpoint_damage(self, snapshot_id: SnapshotId, damage: str) -> None:
        self._queue.append(lambda: self._set_aside(snapshot_id, damage))
        self._wake.set()

    async def _set_aside(self, snapshot_id: SnapshotId, damage: str) -> None:
        """Replaces a damaged checkpoint by the one before, or by a new one of the image."""
        if self._log.snapshot_size_bytes(snapshot_id) is None:
            return
        assert self._flusher is not None
        await self._flusher.idle()
        logger.error("it is not served any more, and set aside: %s", damage)
        self._meter.checkpoint_damaged()
        if not self._log.drop_snapshot(snapshot_id):
            self._listeners.want_snapshot()
        await self._check_checkpoint()

    async def _install(self, snapshot_id: SnapshotId) -> None:
        try:
            await self._on_disk(lambda: self._log.freeze_fetched_snapshot(snapshot_id))
        except (CorruptMessageError, SnapshotNotFoundError) as error:
            logger.warning("the fetched checkpoint is refused: %s", error)
            self._post(SnapshotRejected(snapshot_id))
            return
        except (StorageError, FatalError) as error:
            self._fail(error)
            return

        async def begin_there() -> None:
            assert self._flusher is not None
            if isinstance(self._replica.role, Leader):  # elected meanwhile: its log has it all
                if self._log.snapshot_size_bytes(snapshot_id) is None:
                    delete_snapshot(self._log.directory, snapshot_id)
                return
            await self._flusher.idle()
            self._log.start_at_fetched_snapshot(snapshot_id, self._now_ms())
            await self._step(SnapshotInstalled(snapshot_id))

        self._queue.append(begin_there)
        self._wake.set()

    async def _clean(self) -> None:
        """Cleans the log. A full disk does not stop the replica: a later round may make room."""
        assert self._flusher is not None
        await self._flusher.idle()
        await self._on_disk(self._log.bounds.save)
        state = self._replica.state
        begin_at = await self._served.replacement(state.damaged_offset)
        try:
            cleaned = self._log.clean(self._now_ms(), begin_at)
        except DiskError as error:  # any other failure of this directory ends the process
            if not error.is_full:
                raise
            logger.warning("what the metadata log needs no more stays for now: %s", error)
            return
        if cleaned:
            logger.info("the metadata log begins at offset %d now", self._log.start_offset)
            if state.damaged_offset is not None:
                await self._step(LogStartRaised())
        await self._check_checkpoint()

    async def _check_checkpoint(self) -> None:
        """Tells the replica whether the checkpoint where its log begins is set aside as damaged."""
        is_damaged = self._served.first_is_missing
        if is_damaged != self._replica.state.checkpoint_damaged:
            await self._step(OwnCheckpointChecked(is_damaged))
