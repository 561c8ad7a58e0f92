"""Replays the metadata log, notifies publishers of (delta, image), and writes this node's
snapshots.

A node, controller or broker, has one loader, registered with the Raft client. It replays committed
batches into one delta, updates the image, and notifies the publishers in the order they were added.
Nothing is published until Raft reports that the image has caught up once: a starting broker must
not act on old metadata. Snapshots are written by size and by time, on another thread; the image is
immutable, so the state machine continues meanwhile. Modelled on Kafka's MetadataLoader and
SnapshotGenerator (KIP-630, KIP-876).
"""

from __future__ import annotations

import asyncio
import gc
import heapq
import itertools
import logging
import time
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from typing import Protocol

from google.protobuf.message import DecodeError

from quorum.image import (
    EMPTY_IMAGE,
    InconsistentMetadataError,
    MetadataDelta,
    MetadataImage,
    diff,
    diff_in_steps,
)
from quorum.image.features import SUPPORTED, check_supported
from quorum.image.image import METADATA_VERSION
from quorum.replica.client import CommittedBatch, LeaderAndEpoch, RaftClient
from snapshot.reader import SnapshotReader
from tidemark.config import ServerConfig
from tidemark.errors import BrokerNotAvailableError, FatalError, UnsupportedVersionError

logger = logging.getLogger(__name__)

LOADED_PER_STEP = 1_000
"""Records of a snapshot applied before the event loop runs other work."""
_FROZEN_AT_ONCE = 10_000
"""Loaded records after which the garbage collector freezes existing objects. No reference cycle
runs through an image, yet each full collection scans all of it: with a million partitions that
blocks everything for a second."""
WRITTEN_PER_PORTION = 500
_PAUSE_S = 0.0005


def in_portions(values: Iterable[bytes], pause: Callable[[float], None]) -> Iterator[bytes]:
    """Yields the values of a snapshot to its writer thread, with a pause after each millisecond of
    work. Without it the event loop may wait five ms, the interpreter's switch interval, to
    continue.
    """
    remaining = iter(values)
    while portion := list(itertools.islice(remaining, WRITTEN_PER_PORTION)):
        yield from portion
        if len(portion) == WRITTEN_PER_PORTION:
            pause(_PAUSE_S)


class _NotWantedError(Exception):
    """Cancels a snapshot of a stopping node; the next start does not need it."""


class MetadataPublisher(Protocol):
    """Acts on new metadata. Called on the event loop; must not block."""

    def on_metadata_update(self, delta: MetadataDelta, image: MetadataImage) -> None:
        """Takes the newest committed `image`; `delta` has the changes since the last call.

        In the first call the delta starts from the empty image, and so has everything.
        """


class MetadataLoader:
    """A RaftListener that maintains the committed image.

    `publisher_errors` counts exceptions of publishers. They are logged, and the next update is
    published all the same. Only a publisher that fails at its first image stops the process
    (FatalError).
    """

    def __init__(self, raft: RaftClient, config: ServerConfig, now_ms: Callable[[], int]) -> None:
        self._raft = raft
        self._config = config
        self._now_ms = now_ms
        self._image = EMPTY_IMAGE
        self._published = EMPTY_IMAGE
        self._caught_up = False
        self._leader = LeaderAndEpoch(None, 0)
        self._publishers: list[MetadataPublisher] = []
        self._leader_listeners: list[Callable[[LeaderAndEpoch], None]] = []
        self._waiters: list[tuple[int, int, asyncio.Future[None]]] = []
        self._waiter_ids = itertools.count()
        self._bytes_since_snapshot = 0
        self._snapshot_ms = now_ms()
        self._snapshot_wanted = False
        self._snapshot_task: asyncio.Task[None] | None = None
        self._closed = False
        self.applied_timestamp_ms = 0  # append time of the last batch applied; 0 before any
        self.publisher_errors = 0
        self.snapshots_written = 0
        self.snapshot_errors = 0

    @property
    def image(self) -> MetadataImage:
        """The newest committed image."""
        return self._image

    @property
    def leader(self) -> LeaderAndEpoch:
        """The active controller as last reported."""
        return self._leader

    @property
    def caught_up(self) -> bool:
        """Whether the image has everything committed before the node learned of a leader."""
        return self._caught_up

    def add_publisher(self, publisher: MetadataPublisher) -> None:
        """Adds a publisher. It gets the whole image at once if the loader has caught up."""
        if self._caught_up:
            self._first_call(publisher, diff(EMPTY_IMAGE, self._image), self._image)
        self._publishers.append(publisher)

    def add_leader_listener(self, listener: Callable[[LeaderAndEpoch], None]) -> None:
        """Adds a callback for leader changes. It runs after all earlier updates were published."""
        self._leader_listeners.append(listener)

    async def wait_for_offset(self, offset: int) -> None:
        """Waits until the record at `offset` is applied and published; -1 waits for catching up.

        Raises BrokerNotAvailableError if the loader is closed first.
        """
        if self._closed:
            raise BrokerNotAvailableError("this node is shutting down")
        if self._caught_up and self._published.offset >= offset:
            return
        future = asyncio.get_running_loop().create_future()
        heapq.heappush(self._waiters, (offset, next(self._waiter_ids), future))
        await future

    def handle_commit(self, batches: Sequence[CommittedBatch]) -> None:
        """Applies committed batches. Raises FatalError for records that cannot be applied."""
        if not batches or self._closed:
            return
        delta = MetadataDelta(self._image)
        for batch in batches:
            self._replay(delta, batch.values, f"the batch at offset {batch.base_offset}")
            self._bytes_since_snapshot += batch.size_bytes or sum(map(len, batch.values))
        last = batches[-1]
        self._image = delta.apply(last.last_offset, last.epoch)
        self.applied_timestamp_ms = last.append_timestamp_ms
        if self._caught_up:
            self._publish(delta)
        before = delta.image.features.get(METADATA_VERSION)
        if before not in (None, self._image.features.get(METADATA_VERSION)):
            # After a downgrade an older version may start from this snapshot (KIP-778).
            self._snapshot_wanted = True
        self._maybe_snapshot()

    def handle_load_snapshot(self, reader: SnapshotReader) -> Generator[None, None, None]:
        """Replaces the image with the snapshot's, in steps of some milliseconds however large it
        is.

        Publishers get the difference after the last step. Until then, and if the load is abandoned,
        the image does not change. Raises FatalError for records that cannot be applied.
        """
        delta, loaded = MetadataDelta(EMPTY_IMAGE), 0
        for values in reader.batches():
            for start in range(0, len(values), LOADED_PER_STEP):
                if self._closed:
                    return
                portion = values[start : start + LOADED_PER_STEP]
                self._replay(delta, portion, f"the snapshot {reader.id.name}")
                loaded += len(portion)
                if loaded >= _FROZEN_AT_ONCE:
                    loaded = 0
                    gc.freeze()
                yield
        image = delta.apply(reader.id.end_offset - 1, reader.id.epoch)
        change = None
        if self._caught_up:
            change = yield from diff_in_steps(self._image, image)
        if self._closed:
            return
        self._image = image
        self._bytes_since_snapshot = 0
        self._snapshot_ms = self._now_ms()
        if change is not None:
            self._publish(change)

    def handle_caught_up(self) -> None:
        """Starts publishing: publishers get the whole image first, then every update."""
        if self._caught_up or self._closed:
            return
        self._caught_up = True
        delta = diff(EMPTY_IMAGE, self._image)
        for publisher in self._publishers:
            self._first_call(publisher, delta, self._image)
        self._wake()

    def handle_snapshot_wanted(self) -> None:
        """Writes a snapshot of the image now, or with the next commit."""
        self._snapshot_wanted = True
        if self._image.end_offset > 0:
            self._maybe_snapshot()

    def handle_leader_change(self, leader: LeaderAndEpoch) -> None:
        """Notifies the listeners of the new leader."""
        self._leader = leader
        for listener in self._leader_listeners:
            listener(leader)

    async def close(self) -> None:
        """Stops updates of the image, fails waiting calls, and abandons an unfinished snapshot."""
        self._closed = True
        for _, _, future in self._waiters:
            if not future.done():
                future.set_exception(BrokerNotAvailableError("this node is shutting down"))
        self._waiters.clear()
        if self._snapshot_task is not None:
            await asyncio.gather(self._snapshot_task, return_exceptions=True)

    def _replay(self, delta: MetadataDelta, values: Sequence[bytes], where: str) -> None:
        try:
            for value in values:
                delta.replay_value(value)
            check_supported(delta.features_changed, SUPPORTED, "this node")
        except (
            InconsistentMetadataError,
            UnsupportedVersionError,
            DecodeError,
            ValueError,
        ) as error:
            raise FatalError(
                f"can not apply {where} of the metadata log: {_root_cause(error, delta)}"
            ) from error

    def _first_call(
        self, publisher: MetadataPublisher, delta: MetadataDelta, image: MetadataImage
    ) -> None:
        try:
            publisher.on_metadata_update(delta, image)
        except Exception as error:
            name = type(publisher).__name__
            raise FatalError(f"{name} could not load the cluster's metadata: {error}") from error

    def _publish(self, delta: MetadataDelta) -> None:
        for publisher in self._publishers:
            try:
                publisher.on_metadata_update(delta, self._image)
            except Exception:
                self.publisher_errors += 1
                name = type(publisher).__name__
                logger.exception("%s failed at metadata offset %d", name, self._image.offset)
        self._wake()

    def _wake(self) -> None:
        self._published = self._image
        while self._waiters and self._waiters[0][0] <= self._image.offset:
            _, _, future = heapq.heappop(self._waiters)
            if not future.done():
                future.set_result(None)

    def _pause(self, delay_s: float) -> None:
        """Pauses the thread that writes a snapshot; cancels it if the loader is closed."""
        if self._closed:
            raise _NotWantedError
        time.sleep(delay_s)

    def _maybe_snapshot(self) -> None:
        if self._closed or (self._snapshot_task is not None and not self._snapshot_task.done()):
            return
        interval_ms = self._config.metadata_log_max_snapshot_interval_ms
        waited_ms = self._now_ms() - self._snapshot_ms
        by_bytes = (
            self._bytes_since_snapshot
            >= self._config.metadata_log_max_record_bytes_between_snapshots
        )
        by_time = 0 < interval_ms <= waited_ms
        if by_bytes or by_time or self._snapshot_wanted:
            # Reset even if the snapshot fails: a failing disk must not be retried at each commit.
            self._bytes_since_snapshot = 0
            self._snapshot_wanted = False
            self._snapshot_ms = self._now_ms()
            self._snapshot_task = asyncio.ensure_future(self._snapshot(self._image))

    async def _snapshot(self, image: MetadataImage) -> None:
        try:
            values = in_portions(image.values(), self._pause)
            await self._raft.create_snapshot(image.end_offset, values)
        except _NotWantedError:
            logger.info("the snapshot at offset %d is given up: the node stops", image.end_offset)
        except Exception:
            self.snapshot_errors += 1
            logger.exception("no snapshot could be written at offset %d", image.end_offset)
        else:
            self.snapshots_written += 1


def _root_cause(error: Exception, delta: MetadataDelta) -> Exception:
    """The error to report. A feature level above this version's is the cause of later records that
    cannot be read."""
    try:
        check_supported(delta.features_changed, SUPPORTED, "this node")
    except UnsupportedVersionError as too_old:
        return too_old
    return error
