"""The pure core of the consumer with a cluster that is a dictionary: answers are made by hand.

`Fetching` drives a FetchCore in the test's own time. Requests wait in `sent` until the test answers
them, fails them or forgets them, in any order.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from random import Random

from tidemark import records
from tidemark.client.consuming.answers import is_news
from tidemark.client.consuming.assignment import Taken
from tidemark.client.consuming.core import FetchCore
from tidemark.client.consuming.damage import examine
from tidemark.client.consuming.partition import Asked, AssignedPartition, Position, Reset
from tidemark.client.consuming.requests import FetchEffects, FetchSettings, Request
from tidemark.client.models import OffsetAndTimestamp
from tidemark.client.retry import RetryPolicy
from tidemark.errors import ApiError, ErrorCode, TidemarkError
from tidemark.records.header import PATCH_BYTES, patch_header
from tidemark.types import OffsetSpec, TopicPartition
from tidemark.v1 import common_pb2
from tidemark.wire import FetchPartitionData, FetchResponse

RETRY = RetryPolicy(60_000, 100, 1_000, jitter=0)
A, B, C = (TopicPartition("t", number) for number in range(3))


class FakeLeaders:
    """The metadata as the client knows it; the test changes it."""

    def __init__(self) -> None:
        self.leaders: dict[TopicPartition, int | None] = {}
        self.epochs: dict[TopicPartition, int] = {}
        self.ids: dict[str, bytes] = {}
        self.errors: dict[str, ApiError] = {}
        self.is_stale = False

    def leader(self, partition: TopicPartition) -> int | None:
        return self.leaders.get(partition)

    def leader_epoch(self, partition: TopicPartition) -> int:
        return self.epochs.get(partition, -1)

    def topic_id(self, topic: str) -> bytes:
        return self.ids.get(topic, b"")

    def topic_error(self, topic: str) -> ApiError | None:
        return self.errors.get(topic)

    def mark_stale(self) -> None:
        self.is_stale = True

    def hint_nodes(self, nodes: Iterable[common_pb2.Node]) -> None:
        """All nodes are known."""

    def hint_leader(self, partition: TopicPartition, leader_id: int, leader_epoch: int) -> None:
        if leader_epoch > self.leader_epoch(partition):
            self.leaders[partition], self.epochs[partition] = leader_id, leader_epoch


class FakeLog:
    """A log of batches, with the lineage of its leader epochs."""

    def __init__(self) -> None:
        self.start = 0
        self.end = 0
        self.batches: list[tuple[int, int, bytes]] = []  # first offset, last offset, bytes

    def append(self, count: int, epoch: int = 0, mark: bytes = b"") -> bytes:
        rows = [
            records.Record(number, 0, None, b"%d%s" % (self.end + number, mark))
            for number in range(count)
        ]
        batch = records.encode_batch(rows)
        batch = patch_header(batch, self.end, epoch) + batch[PATCH_BYTES:]
        self.batches.append((self.end, self.end + count - 1, batch))
        self.end += count
        return batch

    def append_control(self) -> None:
        batch = records.encode_control_batch(
            [records.EndTransactionMarker(True, 0)],
            base_offset=self.end,
            timestamp_ms=0,
            partition_leader_epoch=0,
            producer_id=1,
            producer_epoch=0,
        )
        self.batches.append((self.end, self.end, batch))
        self.end += 1

    def truncate(self, end: int) -> None:
        """Cuts whole batches off, down to `end`."""
        self.batches = [found for found in self.batches if found[1] < end]
        self.end = self.batches[-1][1] + 1 if self.batches else 0

    def epoch_end(self, epoch: int) -> tuple[int, int]:
        """(greatest epoch not above `epoch`, its end), as a leader answers."""
        last = end = -1
        for first, _, batch in self.batches:
            found = records.read_header(batch).partition_leader_epoch
            if found > epoch:
                return (epoch if last < 0 else last), first
            last = found
        end = self.end
        return (epoch if last < 0 else last), end

    def read(self, offset: int, max_bytes: int) -> bytes:
        found = b"".join(batch for _, last, batch in self.batches if last >= offset)
        first = records.read_header(found).size_bytes if found else 0
        return found[: max(first, max_bytes)]


class Fetching:
    """A core, its time, and what it sent."""

    def __init__(self, reset: str = "none", **settings: int) -> None:
        self.leaders = FakeLeaders()
        self.now_ms = 0.0
        made = FetchSettings(RETRY, reset, **settings)
        self.core = FetchCore(made, self.leaders, Random(1))
        self.sent: dict[int, Request] = {}
        self.cancelled: list[int] = []
        self.ended: list[int] = []
        self.refreshes = 0
        self.is_refreshing = False
        self.wake_at_ms: float | None = None
        self.logs: dict[TopicPartition, FakeLog] = {}

    @property
    def partitions(self) -> dict[TopicPartition, AssignedPartition]:
        return self.core.assignment.partitions

    def assign(self, *partitions: TopicPartition, at: int | None = 0) -> None:
        """Assigns partitions that node 1 leads, and seeks to `at`."""
        for partition in partitions:
            self.leaders.leaders.setdefault(partition, 1)
            self.logs.setdefault(partition, FakeLog())
        self.core.assign(partitions, self.now_ms)
        if at is not None:
            for partition in partitions:
                self.seek(partition, at)
        self.step()

    def seek(self, partition: TopicPartition, offset: int, epoch: int = -1) -> None:
        self.core.seek(self.partitions[partition], Position(offset, epoch))

    def step(self, after_ms: float = 0) -> FetchEffects:
        self.now_ms += after_ms
        effects = self.core.step(self.now_ms)
        for request in effects.requests:
            self.sent[request.request_id] = request
        self.cancelled += effects.cancelled
        self.ended += effects.ended
        if effects.refresh_metadata:
            self.refreshes += 1
            self.is_refreshing = True
        self.wake_at_ms = effects.wake_at_ms
        self.core.validate()
        return effects

    def asked(self) -> list[tuple[int, list[TopicPartition]]]:
        """Node and partitions of each request under way."""
        return [(request.node, list(request.asked)) for request in self.sent.values()]

    def refreshed(self, error: ApiError | None = None) -> None:
        self.is_refreshing = False
        if error is None:
            self.leaders.is_stale = False
            self.core.leaders_changed(self.now_ms)
        self.core.refreshed(error, self.now_ms)
        self.step()

    def answer(self, *data: FetchPartitionData, after_ms: float = 500, throttle: int = 0) -> None:
        """Answers the oldest request with these partitions."""
        request_id = next(iter(self.sent))
        self.reply(request_id, FetchResponse(list(data), throttle_time_ms=throttle), after_ms)

    def reply(self, request_id: int, response: FetchResponse, after_ms: float = 500) -> None:
        self.now_ms += after_ms
        del self.sent[request_id]
        self.core.answered(request_id, response, self.now_ms)
        self.step()

    def fail(self, error: Exception) -> None:
        request_id = next(iter(self.sent))
        del self.sent[request_id]
        self.core.failed(request_id, error, self.now_ms)
        self.step()

    def serve(
        self, max_bytes: int = 1 << 20, request_id: int | None = None, *, names_all: bool = True
    ) -> None:
        """Answers a request as the leader of `logs` does; in a session, with news alone."""
        request = self.sent[next(iter(self.sent)) if request_id is None else request_id]
        if request.is_fetch:
            found = [self.read(partition, request, max_bytes) for partition in request.asked]
            found = [data for data in found if names_all or is_news(data)]
            self.reply(request.request_id, FetchResponse(found))
            return
        del self.sent[request.request_id]
        results = {}
        for partition, ask in request.asked.items():
            assert isinstance(ask.target, Reset)
            log = self.logs[partition]
            offset = log.start if ask.target.where == OffsetSpec.EARLIEST else log.end
            results[partition] = OffsetAndTimestamp(offset, -1, -1)
        self.core.found(request.request_id, results, self.now_ms)
        self.step()

    def read(
        self, partition: TopicPartition, request: Request, max_bytes: int
    ) -> FetchPartitionData:
        log, target = self.logs[partition], request.asked[partition].target
        assert isinstance(target, Position)
        answer = FetchPartitionData(*partition)
        if target.epoch >= 0:
            epoch, end = log.epoch_end(target.epoch)
            if epoch < target.epoch or end < target.offset:
                answer.diverging_epoch = (epoch, end)
                return answer
        if not log.start <= target.offset <= log.end:
            answer.error_code = ErrorCode.OFFSET_OUT_OF_RANGE
            return answer
        answer.high_watermark, answer.log_start_offset = log.end, log.start
        answer.records = log.read(target.offset, max_bytes)
        return answer

    # The reader, without an event loop.

    def load(self, *, decodes: bool = True) -> None:
        """Checks and decodes all that is fetched, as a poll does before it takes anything."""
        for partition, items in self.core.assignment.waiting():
            for item in items:
                if item in partition.buffered and item.rows is None:
                    self.core.assignment.begin(partition, item)
                    outcome = examine(item.raw, decodes=decodes, check_crcs=True)
                    if outcome.error is None:
                        self.core.assignment.examined(partition, item, outcome.rows)
                    else:
                        self.core.assignment.damaged(partition, item, outcome.sound, outcome.error)
        self.core.validate()

    def poll(self, max_records: int = 500) -> list[tuple[TopicPartition, int, bytes | None]]:
        """Takes records as a poll does; no error is raised."""
        self.load()
        self.load()  # the sound part before damage
        found: list[tuple[TopicPartition, int, bytes | None]] = []
        taken: list[Taken] = []
        for partition, items in self.core.assignment.waiting():
            for item in items:
                if item.rows is None or (len(found) >= max_records and not item.is_empty):
                    break
                rows = item.rows.slice(0, max_records - len(found))
                taken.append(Taken(partition, item, rows.num_rows))
                for offset, value in zip(
                    rows.column("offset").to_pylist(), rows.column("value").to_pylist(), strict=True
                ):
                    found.append((partition.topic_partition, offset, value))
        self.core.assignment.handed_over(taken)
        self.step()
        return found

    def error(self, *, got_nothing: bool = False) -> TidemarkError | None:
        found = self.core.assignment.error_due(self.now_ms, got_nothing=got_nothing)
        self.step()
        return found


def failing(partition: TopicPartition, code: int, **more: object) -> FetchPartitionData:
    return FetchPartitionData(*partition, error_code=code, **more)  # type: ignore[arg-type]


def filled(
    partition: TopicPartition, batches: Sequence[bytes], high_watermark: int = 1 << 30
) -> FetchPartitionData:
    return FetchPartitionData(*partition, high_watermark=high_watermark, records=b"".join(batches))


def in_flight(fetching: Fetching) -> set[TopicPartition]:
    return {tp for tp, state in fetching.partitions.items() if isinstance(state.phase, Asked)}
