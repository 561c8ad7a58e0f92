"""Runs the controller: one queue of events, appends to the metadata log, answers on commit.

Each event generates records from the image, appends them, replays them in memory, and answers when
the last record is committed. An event without records answers when everything before it is
committed, so no answer depends on a change that may yet be lost.

When the leadership is lost, every waiting call gets NotControllerError: the outcome is unknown, and
the caller retries at the next controller. The image falls back to the committed one. Modelled on
Kafka's QuorumController.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable
from typing import Any, NamedTuple, TypeVar

from google.protobuf.message import Message

from quorum.controller.core import ControllerCore
from quorum.controller.decisions import decisions
from quorum.controller.event_queue import EventQueue
from quorum.controller.metrics import ControllerMetrics
from quorum.controller.requests import REQUESTS
from quorum.controller.result import ControllerResult
from quorum.image import InconsistentMetadataError, MetadataDelta, MetadataImage
from quorum.image.records import encode_record
from quorum.replica.client import LeaderAndEpoch, RaftClient
from quorum.replica.loader import MetadataLoader
from tidemark.errors import (
    ApiError,
    NotControllerError,
    RequestTimedOutError,
    UnknownServerError,
    UnsupportedVersionError,
)
from tidemark.v1 import controller_pb2

logger = logging.getLogger(__name__)

R = TypeVar("R")

Generate = Callable[[int], ControllerResult[R]]
"""Generates a result at a time (ms)."""

_QUEUE_LIMIT = 10_000
_REQUEST_TIMEOUT_MS = 30_000


class _Pending(NamedTuple):
    """An answer that waits for the commit of `offset`."""

    offset: int
    future: asyncio.Future[Any]
    response: Any


class QuorumController:
    """Drives a `ControllerCore`; the node's `MetadataLoader` reports commits and leaders to it."""

    def __init__(
        self,
        raft: RaftClient,
        loader: MetadataLoader,
        core: ControllerCore,
        now_ms: Callable[[], int],
    ) -> None:
        self._raft = raft
        self._loader = loader
        self._core = core
        self._now_ms = now_ms
        self._queue = EventQueue(_QUEUE_LIMIT)
        self._pending: deque[_Pending] = deque()
        self._next_offset = 0
        self._timer: asyncio.TimerHandle | None = None
        self._stopped = False
        self._metrics = ControllerMetrics()
        loader.add_publisher(self)
        loader.add_leader_listener(self.on_leader_change)

    @property
    def is_active(self) -> bool:
        """Whether this node is the active controller, to its own knowledge."""
        return self._core.is_active

    @property
    def core(self) -> ControllerCore:
        return self._core

    async def handle(self, request: Message) -> Any:
        """Carries a request of `REQUESTS` out; returns its answer when it is committed.

        Waits for at most the request's `timeout_ms`, if it has one. Raises ApiError.
        """

        def generate(now_ms: int) -> ControllerResult[Any]:
            next_offset = max(self._next_offset, self._raft.log_end_offset)
            return self._core.handle(request, next_offset, now_ms)

        try:
            return await self._run(
                generate,
                urgent=REQUESTS[type(request)].urgent,
                timeout_ms=getattr(request, "timeout_ms", 0),
            )
        except RequestTimedOutError:
            self._metrics.event_queue_operations_timed_out_count += 1
            if isinstance(request, controller_pb2.BrokerHeartbeatRequest):
                self._metrics.timed_out_broker_heartbeat_count += 1
            raise

    def metrics(self, wall_ms: int) -> dict[str, int | float]:
        """Returns the metrics of this controller by Kafka's names; `wall_ms` is the wall clock.

        On the active controller the lag is 0: it applies records as it writes them.
        """
        loader, active = self._loader, self._core.is_active
        metrics = self._metrics.read(self._now_ms())
        metrics["ActiveControllerCount"] = int(active)
        metrics["EventQueueSize"] = len(self._queue)
        metrics["MetadataErrorCount"] += loader.publisher_errors
        metrics["LastAppliedRecordOffset"] = loader.image.offset
        metrics["LastAppliedRecordTimestamp"] = loader.applied_timestamp_ms
        lag_ms = wall_ms - loader.applied_timestamp_ms
        metrics["LastAppliedRecordLagMs"] = 0 if active else max(0, lag_ms)
        return metrics

    def on_metadata_update(self, delta: MetadataDelta, image: MetadataImage) -> None:
        """Completes the calls that waited for what is committed now."""
        self._metrics.on_metadata_update(delta, self._now_ms())
        if self._core.is_active:
            for level, text in decisions(delta, logger.getEffectiveLevel()):
                logger.log(level, text)
        while self._pending and self._pending[0].offset <= image.offset:
            done = self._pending.popleft()
            if not done.future.done():
                done.future.set_result(done.response)
        self._core.adopt(image)

    def on_leader_change(self, leader: LeaderAndEpoch) -> None:
        """Begins or ends the time of this node as the active controller."""
        leads = leader.is_leader(self._raft.node_id)
        self._metrics.new_active_controllers_count += leader.leader_id is not None
        if self._core.is_active and not (leads and leader.epoch == self._core.epoch):
            self._renounce(f"epoch {leader.epoch} began")
        if leads and not self._core.is_active and not self._stopped:
            self._claim(leader.epoch)

    def stop(self) -> None:
        """Stops answering; waiting calls get NotControllerError.

        Resigns, so that another voter takes over at once, before this node's listener is closed.
        """
        self._stopped = True
        epoch = self._core.epoch if self._core.is_active else None
        self._renounce("this node is shutting down")
        own_id = self._raft.node_id
        if epoch is not None and any(v.replica_id != own_id for v in self._raft.describe().voters):
            self._raft.resign(epoch)

    def _claim(self, epoch: int) -> None:
        logger.info("node %d is the active controller of epoch %d", self._raft.node_id, epoch)
        now_ms = self._now_ms()
        self._next_offset = self._raft.log_end_offset
        result = self._core.activate(self._loader.image, epoch, now_ms)
        self._write_own(lambda _: result)

    def _renounce(self, reason: str) -> None:
        if self._core.is_active:
            logger.info(
                "node %d is no longer the active controller: %s", self._raft.node_id, reason
            )
        self._core.deactivate()
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        pending, self._pending = self._pending, deque()
        for waiting in pending:
            if not waiting.future.done():
                waiting.future.set_exception(
                    NotControllerError(f"the active controller changed ({reason}); ask the next")
                )

    async def _run(self, generate: Generate[R], *, urgent: bool = False, timeout_ms: int = 0) -> R:
        """Returns the answer of an event when it is committed; raises ApiError."""
        if not self._core.is_active:
            raise NotControllerError()
        future: asyncio.Future[R] = asyncio.get_running_loop().create_future()
        added_ms = self._now_ms()
        self._queue.add(lambda: self._timed(generate, future, added_ms), urgent=urgent)
        wanted_ms = timeout_ms if timeout_ms > 0 else _REQUEST_TIMEOUT_MS
        try:
            return await asyncio.wait_for(future, wanted_ms / 1_000)
        except TimeoutError:
            raise RequestTimedOutError(
                f"not committed within {wanted_ms} ms; it may be yet"
            ) from None

    def _timed(self, generate: Generate[R], future: asyncio.Future[R], added_ms: int) -> int:
        metrics, began_ms = self._metrics, self._now_ms()
        metrics.event_queue_operations_started_count += 1
        metrics.event_queue_time.add(began_ms - added_ms)
        written = self._process(generate, future)
        metrics.event_queue_processing_time.add(self._now_ms() - began_ms)
        return written

    def _process(self, generate: Generate[R], future: asyncio.Future[R]) -> int:
        """Runs one event; returns the number of records it wrote."""
        if future.done():
            return 0
        try:
            result = generate(self._now_ms())
            self._append(result)
        except ApiError as error:
            future.set_exception(error)
            return 0
        except Exception as error:
            logger.exception("a controller event failed")
            future.set_exception(UnknownServerError(str(error)))
            return 0
        # Without records of its own it waits for those before it (the image it read from).
        offset = self._core.image.offset
        if offset <= self._loader.image.offset:
            future.set_result(result.response)
        else:
            self._pending.append(_Pending(offset, future, result.response))
        return sum(map(len, result.groups))

    def _append(self, result: ControllerResult[Any]) -> None:
        """Appends and replays; raises ApiError.

        Records that can not be replayed end the leadership.
        """
        for batch in result.batches():
            try:
                values = [encode_record(record) for record in batch]
                last_offset = self._raft.append(self._core.epoch, values)
            except NotControllerError:
                self._renounce("the log refused an append")
                raise
            self._next_offset = last_offset + 1
            try:
                self._core.replay(batch, last_offset, self._now_ms())
            except (InconsistentMetadataError, UnsupportedVersionError) as error:
                epoch = self._core.epoch
                self._metrics.metadata_error_count += 1
                self._renounce("it could not replay its own records")
                self._raft.resign(epoch)
                raise UnknownServerError(str(error)) from error
        if result.groups and result.after_append is not None:
            result.after_append(self._core.image.offset)
        self._arm()

    def _write_own(self, generate: Generate[None]) -> None:
        """Writes records that no call waits for."""
        try:
            self._append(generate(self._now_ms()))
        except NotControllerError as error:
            logger.info("timed work of the controller: %s", error)
        except Exception:
            logger.exception("timed work of the controller failed")
            self._arm()

    def _arm(self) -> None:
        """Sets the timer to the core's next deadline."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        due_ms = self._core.next_deadline_ms()
        if due_ms is not None:
            delay_s = max(0, due_ms - self._now_ms()) / 1_000
            self._timer = asyncio.get_running_loop().call_later(delay_s, self._on_timer)

    def _on_timer(self) -> None:
        self._timer = None
        if self._core.is_active:
            self._write_own(self._core.tick)
