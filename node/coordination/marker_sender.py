"""Tells partitions the outcome of transactions that this broker coordinates.

One task for each transaction that ends. It sends markers to the leaders of all partitions, and
repeats that until each has written it or its topic is gone. Then the coordinator notes the end.
Markers to one broker go together. A task ends without a result when another broker has become the
coordinator, which goes on from the log.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from coordinator.records.transactions import TransactionState
from coordinator.runtime.now import Now
from coordinator.runtime.runtime import CoordinatorRuntime
from coordinator.transactions.shard import TransactionShard
from coordinator.transactions.transaction import PendingMarkers
from node.coordination.peers import BrokerPeers
from node.coordination.verification import WRITE_MARKERS, by_topic, partitions_in
from node.runtime.tasks import OnFatal, cancel_all, spawn
from quorum.image import MetadataImage, TopicImage
from quorum.services.admin_service import ImageSource
from tidemark.errors import ApiError, ErrorCode, NetworkError, NotCoordinatorError
from tidemark.types import TopicPartition
from tidemark.v1 import transaction_pb2 as pb

logger = logging.getLogger(__name__)

_TIMEOUT_MS = 5_000  # of one request; a leader answers much earlier
_REQUESTS_MAX = 5  # to one broker at a time: what comes meanwhile goes together
_MARKERS_MAX = 1_000  # of one request, counted by partition; more if one transaction has more
_PAUSES_S = (0.05, 0.1, 0.2, 0.5, *[1.0] * 30, 5.0)  # between tries: elections take seconds

# The log is past this marker. (TRANSACTION_COORDINATOR_FENCED is not among them: it is told to a
# coordinator that is none any more, and that one ends by its own reads.)
_WRITTEN = (ErrorCode.NONE, ErrorCode.INVALID_PRODUCER_EPOCH)


@dataclass(slots=True)
class _Send:
    """Markers of one transaction for one broker."""

    markers: PendingMarkers
    partitions: list[TopicPartition]
    codes: asyncio.Future[dict[TopicPartition, ErrorCode]]


class _Problems:
    """Logs what holds up the end of one transaction: once, however often it is tried."""

    def __init__(self, transactional_id: str) -> None:
        self._transactional_id = transactional_id
        self._known: dict[str, str] = {}

    def note(self, place: str, problem: str) -> None:
        if self._known.get(place) != problem:
            self._known[place] = problem
            logger.info("marker of %s in %s: %s", self._transactional_id, place, problem)


class _Leader:
    """The markers that wait for one broker."""

    def __init__(self) -> None:
        self.waiting: deque[_Send] = deque()
        self.requests = 0

    def take(self) -> list[_Send]:
        """Those of the next request."""
        taken, count = [self.waiting.popleft()], 0
        while self.waiting:
            count += len(taken[-1].partitions)
            if count + len(self.waiting[0].partitions) > _MARKERS_MAX:
                break
            taken.append(self.waiting.popleft())
        return taken


class MarkerSender:
    """One per broker. `changed` is the runtime's `on_change`."""

    def __init__(
        self,
        runtime: Callable[[], CoordinatorRuntime[TransactionShard]],
        images: ImageSource,
        peers: BrokerPeers,
        now: Callable[[], Now],
        on_fatal: OnFatal,
    ) -> None:
        self._runtime = runtime
        self._images = images
        self._peers = peers
        self._now = now
        self._on_fatal = on_fatal
        self._leaders: dict[int, _Leader] = {}
        self._telling: dict[str, asyncio.Task[None]] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._waiting: dict[str, list[asyncio.Future[None]]] = {}  # for an end

    # --- the ends of transactions

    def changed(self, partition: int) -> None:
        """Looks at transactions that were decided or have ended."""
        shard = self._runtime().shard_of(partition)
        for transactional_id in shard.take_moved():
            if shard.pending_of(transactional_id) is None:
                for waits in self._waiting.get(transactional_id, ()):
                    if not waits.done():
                        waits.set_result(None)
            else:
                self._begin(partition, transactional_id)

    def _begin(self, partition: int, transactional_id: str) -> None:
        before = self._telling.get(transactional_id)
        work = self._tell(partition, transactional_id, before)
        task = spawn(f"markers of {transactional_id}", work, self._on_fatal)
        self._telling[transactional_id] = task

        def ended(done: asyncio.Task[None]) -> None:
            self._tasks.discard(done)
            if self._telling.get(transactional_id) is done:
                del self._telling[transactional_id]

        self._tasks.add(task)
        task.add_done_callback(ended)

    async def until_ended(self, transactional_id: str, timeout_s: float) -> bool:
        """Waits for the end of a transaction that is decided; False if it takes longer."""
        waits: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        waiting = self._waiting.setdefault(transactional_id, [])
        waiting.append(waits)
        try:
            await asyncio.wait((waits,), timeout=timeout_s)
        finally:
            waiting.remove(waits)
            if not waiting and self._waiting.get(transactional_id) is waiting:
                del self._waiting[transactional_id]
        return waits.done()

    # --- telling

    async def _tell(
        self, partition: int, transactional_id: str, before: asyncio.Task[None] | None
    ) -> None:
        if before is not None:  # of the transaction before, or of an earlier leadership
            await asyncio.wait((before,))
        tries, problems = 0, _Problems(transactional_id)
        while True:
            try:
                if await self._step(partition, transactional_id, problems):
                    return
            except NotCoordinatorError:
                return
            except ApiError as error:
                problems.note("the coordinator", str(error))
            except Exception as error:
                logger.exception("markers of %s: %r", transactional_id, error)
            await asyncio.sleep(_PAUSES_S[min(tries, len(_PAUSES_S) - 1)])
            tries += 1

    async def _step(self, partition: int, transactional_id: str, problems: _Problems) -> bool:
        """Tells all partitions that lack the marker once; True if nothing is left."""
        runtime = self._runtime()
        markers = await runtime.read(partition, lambda shard: shard.pending_of(transactional_id))
        if markers is None:
            return True
        image = self._images.image
        leaders = {
            found: topic.partitions[found.partition].leader
            for found in markers.partitions
            if (topic := _topic_of(found, image)) is not None
        }
        done = set(markers.partitions - leaders.keys())
        by_leader: dict[int, list[TopicPartition]] = {}
        for found in sorted(markers.partitions - done):
            leader = leaders[found]
            if leader is not None:
                by_leader.setdefault(leader, []).append(found)
        sends = [self._send(leader, markers, some) for leader, some in by_leader.items()]
        for codes in await asyncio.gather(*sends):
            for found, code in codes.items():
                if code in _WRITTEN:
                    done.add(found)
                if code != ErrorCode.NONE:
                    problems.note(str(found), code.name)
        if markers.partitions and not done:
            return False
        await runtime.write(
            partition, lambda shard: shard.markers_written(markers, done, self._now())
        )
        return len(done) == len(markers.partitions)

    def _send(
        self, leader: int, markers: PendingMarkers, partitions: list[TopicPartition]
    ) -> asyncio.Future[dict[TopicPartition, ErrorCode]]:
        codes = asyncio.get_running_loop().create_future()
        queue = self._leaders.setdefault(leader, _Leader())
        queue.waiting.append(_Send(markers, partitions, codes))
        if queue.requests < _REQUESTS_MAX:
            queue.requests += 1
            work = self._ask(leader, queue)
            task = spawn(f"markers for broker {leader}", work, self._on_fatal)
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)
        return codes

    async def _ask(self, leader: int, queue: _Leader) -> None:
        while queue.waiting:
            await self._write(leader, queue.take())
        queue.requests -= 1

    async def _write(self, leader: int, sends: list[_Send]) -> None:
        request = pb.WriteTxnMarkersRequest(markers=[_message(send) for send in sends])
        try:
            answer = await self._peers.call(leader, WRITE_MARKERS, request, _TIMEOUT_MS)
            for send, marker in zip(sends, answer.markers, strict=True):
                _answer(send, _codes(marker))
        except NetworkError as error:
            logger.info("markers for broker %d: %s", leader, error)
        except Exception as error:  # an answer of a broker that is not well
            logger.exception("markers for broker %d: %r", leader, error)
        for send in sends:
            _answer(send, {})

    async def stop(self) -> None:
        """Ends all tasks; the next coordinator goes on from the log."""
        await cancel_all(*self._tasks)


def _topic_of(partition: TopicPartition, image: MetadataImage) -> TopicImage | None:
    """The topic of a partition that exists. The coordinator adds only those that it knows, so one
    that the metadata lacks was deleted."""
    topic = image.topics.get(partition.topic)
    return topic if topic is not None and partition.partition in topic.partitions else None


def _message(send: _Send) -> pb.WriteTxnMarkersRequest.Marker:
    markers = send.markers
    return pb.WriteTxnMarkersRequest.Marker(
        producer_id=markers.producer_id,
        producer_epoch=markers.producer_epoch,
        committed=markers.committed,
        coordinator_epoch=markers.coordinator_epoch,
        topics=by_topic(send.partitions),
    )


def _codes(marker: pb.WriteTxnMarkersResponse.Marker) -> dict[TopicPartition, ErrorCode]:
    return {
        TopicPartition(topic.name, item.partition_index): ErrorCode(item.error_code)
        for topic in marker.topics
        for item in topic.partitions
    }


def _answer(send: _Send, codes: dict[TopicPartition, ErrorCode]) -> None:
    if not send.codes.done():
        send.codes.set_result(codes)


def state_name(state: int) -> str:
    """A state as Kafka names it: PrepareCommit."""
    return "".join(part.capitalize() for part in TransactionState(state).name.split("_"))


def unknown_partitions(topics: Iterable[pb.TxnTopic], image: MetadataImage) -> list[TopicPartition]:
    """Partitions of a message that the metadata does not have."""
    return [found for found in partitions_in(topics) if _topic_of(found, image) is None]
