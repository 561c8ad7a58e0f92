"""A producer's pure core in a small world: a broker's log, requests under way, a clock that is set.

`World` carries out the core's effects in any order a test chooses. It loses and repeats what a
network loses and repeats. `check` holds the producer's promises.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from random import Random
from typing import Any

from tidemark.client.admission import Limits, ParkedTable
from tidemark.client.batch import Batch, Stamp
from tidemark.client.delivery import ArrowSend, Delivery
from tidemark.client.errors import BufferExhaustedError, ClientClosedError
from tidemark.client.producer_core import ProduceCall, ProducerCore
from tidemark.client.retry import RetryPolicy
from tidemark.client.transactions.core import TransactionCore
from tidemark.errors import ApiError, ErrorCode
from tidemark.types import TopicPartition
from tidemark.v1 import common_pb2, log_pb2

DELIVERY_TIMEOUT_MS = 2_000
MAX_BLOCK_MS = 700


class FakeView:
    """Metadata as the producer knows it."""

    def __init__(self) -> None:
        self.is_stale = False
        self.counts: dict[str, int] = {}
        self.leaders: dict[TopicPartition, tuple[int, int]] = {}
        self.errors: dict[str, ApiError] = {}

    def leader(self, partition: TopicPartition) -> int | None:
        return self.leaders.get(partition, (None, -1))[0]

    def leader_epoch(self, partition: TopicPartition) -> int:
        return self.leaders.get(partition, (0, -1))[1]

    def address(self, node_id: int) -> str | None:
        return f"node-{node_id}"

    def partition_count(self, topic: str) -> int | None:
        return self.counts.get(topic)

    def topic_error(self, topic: str) -> ApiError | None:
        return self.errors.get(topic)

    def topic_id(self, topic: str) -> bytes:
        return b""

    def hint_nodes(self, nodes: Iterable[common_pb2.Node]) -> None:
        """All nodes are known."""

    def hint_leader(self, partition: TopicPartition, leader_id: int, leader_epoch: int) -> None:
        if leader_epoch > self.leader_epoch(partition):
            self.leaders[partition] = (leader_id, leader_epoch)


@dataclass
class Log:
    """A partition at its leader, with a leader's rules for sequences."""

    records: list[int] = field(default_factory=list)
    epochs: dict[int, int] = field(default_factory=dict)
    next_sequence: dict[int, int] = field(default_factory=dict)
    seen: dict[tuple[int, int, int], int] = field(default_factory=dict)

    def append(self, stamp: Stamp, ids: list[int]) -> tuple[ErrorCode, int]:
        """(error, base offset)."""
        producer, epoch, sequence = stamp
        if producer >= 0:
            known = self.epochs.get(producer)
            if known is not None and epoch < known:
                return ErrorCode.INVALID_PRODUCER_EPOCH, -1
            if (producer, epoch, sequence) in self.seen:
                return ErrorCode.NONE, self.seen[producer, epoch, sequence]
            expected = self.next_sequence.get(producer, 0) if epoch == known else 0
            if sequence != expected and known is not None:
                return ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER, -1
            self.epochs[producer] = epoch
            self.next_sequence[producer] = sequence + len(ids)
            self.seen[producer, epoch, sequence] = len(self.records)
        self.records += ids
        return ErrorCode.NONE, len(self.records) - len(ids)


@dataclass
class Sent:
    """A record, or a table of records, that the core accepted."""

    ids: list[int]
    outcome: Delivery | ArrowSend
    since_ms: float

    def state(self) -> str:
        """ "owned", "given out" or "failed"."""
        if isinstance(self.outcome, Delivery):
            if not self.outcome.done():
                return "owned"
            return "given out" if self.outcome.exception() is None else "failed"
        leaves = [leaf for batch in self.outcome.batches for leaf in batch.leaves()]
        if not self.outcome.is_accepted or not all(leaf.done for leaf in leaves):
            return "owned"
        is_failed = self.outcome.error is not None or any(leaf.error for leaf in leaves)
        return "failed" if is_failed else "given out"


@dataclass
class Table:
    """Stands for a record batch of Arrow."""

    ids: list[int]
    nbytes: int

    @property
    def num_rows(self) -> int:
        return len(self.ids)


@dataclass
class Copy:
    """A request as it was when it was sent; the network may deliver it more than once."""

    request: ProduceCall
    parts: list[tuple[TopicPartition, Stamp, list[int]]]


class World:
    """The core and its surroundings; verbs are called in any order, then `check`."""

    def __init__(
        self, seed: int, *, idempotent: bool = True, transaction: TransactionCore | None = None
    ) -> None:
        self.rng = Random(seed)
        self.now_ms = 0.0
        self.view = FakeView()
        self.idempotent = idempotent
        self.limits = Limits(
            batch_size=200, max_request_size=500, buffer_memory=1_500,
            max_block_ms=MAX_BLOCK_MS, max_in_flight=2,
        )  # fmt: skip
        self.core = ProducerCore(
            self.view,
            self.limits,
            linger_ms=5,
            retry=RetryPolicy(DELIVERY_TIMEOUT_MS, 10, 100),
            idempotent=idempotent,
            request_timeout_ms=500,
            rng=Random(seed),
            transaction=transaction,
        )
        self.truth: dict[TopicPartition, int] = {}  # leaders
        self.epoch = 0
        self.logs: dict[TopicPartition, Log] = {}
        self.sent: list[Sent] = []
        self.refused = 0
        self.next_id = 0
        self.encoding: list[tuple[Batch, Stamp]] = []
        self.cutting: list[Batch] = []
        self.splitting: list[ParkedTable] = []
        self.under_way: list[Copy] = []
        self.late: list[Copy] = []
        self.answers: list[tuple[ProduceCall, Any]] = []
        self.ids_of: dict[int, list[int]] = {}  # of encoded payloads
        self.is_identifying = self.is_refreshing = self.is_closed = False
        self.largest = 10_000

    # The cluster.

    def make_topic(self, name: str, count: int) -> None:
        for number in range(count):
            partition = TopicPartition(name, number)
            if partition not in self.truth:
                self.truth[partition] = self.rng.choice([1, 2])
                self.logs[partition] = Log()

    def move(self) -> None:
        """Moves a leadership."""
        if self.truth:
            partition = self.rng.choice(sorted(self.truth))
            self.truth[partition] = 3 - self.truth[partition]
            self.epoch += 1

    # The caller.

    def send(self, topic: str, size: int, partition: int | None = None) -> None:
        delivery, ids = Delivery(), self._ids(1)
        value = b"%08d" % ids[0] + b"x" * size
        try:
            self.core.admission.send(delivery, topic, value, None, partition, 0, (), self.now_ms)
        except (BufferExhaustedError, ClientClosedError):
            self.refused += 1
            return
        self.sent.append(Sent(ids, delivery, self.now_ms))

    def send_table(self, topic: str, counts: list[int]) -> None:
        tables = [Table(self._ids(count), 40 * count) for count in counts]
        send = ArrowSend(len(tables))
        try:
            self.core.send_tables(send, topic, tables, None, self.now_ms)
        except ClientClosedError:
            self.refused += 1
            return
        ids = [one for table in tables for one in table.ids]
        self.sent.append(Sent(ids, send, self.now_ms))

    def _ids(self, count: int) -> list[int]:
        self.next_id += count
        return list(range(self.next_id - count, self.next_id))

    def close(self) -> None:
        self.is_closed = True
        self.core.close()

    def abort(self) -> None:
        self.close()
        self.core.abort(ClientClosedError("closed"))

    # The edge.

    def step(self, *, flush: bool = False) -> None:
        prepared = self.core.prepare(self.now_ms, flush=flush)
        self.splitting += prepared.split
        for batch in prepared.encode:
            assert batch.stamp is not None
            self.encoding.append((batch, batch.stamp))
        effects = self.core.dispatch(self.now_ms)
        self.cutting += effects.cut
        for request in effects.requests:
            parts = []
            for batch in request.open_batches:
                assert batch.payload is not None and batch.stamp is not None
                parts.append((batch.topic_partition, batch.stamp, _decoded(batch.payload)))
            self.under_way.append(Copy(request, parts))
        for request in effects.cancelled:
            self._lost(request)
        self.is_identifying |= effects.identify
        self.is_refreshing |= effects.refresh is not None

    def _lost(self, request: ProduceCall) -> None:
        """The caller no longer waits; the network may still deliver it."""
        for copy in list(self.under_way):
            if copy.request is request:
                self.under_way.remove(copy)
                self.late.append(copy)

    def encode(self, error: Exception | None = None) -> None:
        if self.encoding:
            batch, stamp = self.encoding.pop(self.rng.randrange(len(self.encoding)))
            if error is not None:
                self.core.batch_failed(batch, error)
                return
            ids = batch.source if batch.source is not None else [int(v[:8]) for v in batch.values]  # type: ignore[index]
            self.core.encoded(batch, _encoded(ids), stamp)

    def cut(self, error: Exception | None = None) -> None:
        if self.cutting:
            batch = self.cutting.pop()
            if error is not None:
                self.core.batch_failed(batch, error)
            elif batch.payload is not None:
                ids, stamp = _decoded(batch.payload), batch.payload_stamp
                half = len(ids) // 2
                parts = [(_encoded(part), len(part), stamp) for part in (ids[:half], ids[half:])]
                self.core.cut(batch, parts)

    def split(self, error: Exception | None = None) -> None:
        if self.splitting:
            table = self.splitting.pop(self.rng.randrange(len(self.splitting)))
            if error is not None:
                self.core.admission.split_failed(table, error)
                return
            assert table.known is not None
            count, ids = len(table.known.queues), table.table.ids
            parts = [(p, ids[p::count]) for p in range(count) if ids[p::count]]
            pieces = [(p, part, len(part), 30 * len(part)) for p, part in parts]
            self.core.admission.split_done(table, pieces)

    def deliver(self, codes: Callable[[], ErrorCode], *, throttle_ms: int = 0) -> None:
        """A node takes a request; its answer is under way."""
        if self.under_way:
            copy = self.under_way.pop(self.rng.randrange(len(self.under_way)))
            self.answers.append((copy.request, self._served(copy, codes, throttle_ms)))

    def deliver_late(self) -> None:
        """A node takes a request that nobody waits for any more."""
        if self.late:
            self._served(self.late.pop(self.rng.randrange(len(self.late))), lambda: ErrorCode.NONE)

    def _served(self, copy: Copy, codes: Callable[[], ErrorCode], throttle_ms: int = 0) -> Any:
        answer = log_pb2.ProduceResponse(throttle_time_ms=throttle_ms)
        for partition, stamp, ids in copy.parts:
            code, base = codes(), -1
            if code == ErrorCode.NONE and self.truth[partition] != copy.request.leader:
                code = ErrorCode.NOT_LEADER_OR_FOLLOWER
            if code == ErrorCode.NONE and len(ids) > self.largest:
                code = ErrorCode.MESSAGE_TOO_LARGE
            if code == ErrorCode.NONE:
                code, base = self.logs[partition].append(stamp, ids)
            response = answer.responses.add(
                topic=partition.topic, index=partition.partition, error_code=code, base_offset=base
            )
            response.log_append_time_ms = -1
            if code == ErrorCode.NOT_LEADER_OR_FOLLOWER and self.rng.random() < 0.5:
                response.current_leader.leader_id = self.truth[partition]
                response.current_leader.leader_epoch = self.epoch
        return answer

    def answer(self) -> None:
        if self.answers:
            request, answer = self.answers.pop(self.rng.randrange(len(self.answers)))
            self.core.answered(request, answer, self.now_ms)

    def lose(self, error: Exception) -> None:
        """A request, or its answer, is lost."""
        if self.answers and self.rng.random() < 0.5:
            request, _ = self.answers.pop(self.rng.randrange(len(self.answers)))
        elif self.under_way:
            request = self.under_way[self.rng.randrange(len(self.under_way))].request
            self._lost(request)
        else:
            return
        self.core.request_failed(request, error, self.now_ms)

    def identify(self, error: Exception | None = None) -> None:
        if self.is_identifying:
            self.is_identifying = False
            if error is None:
                self.core.identified(self.rng.randrange(100, 10**9), 0, self.now_ms)
            else:
                self.core.not_identified(error, self.now_ms)

    def refresh(self, problem: ApiError | None = None) -> None:
        if self.is_refreshing:
            self.is_refreshing = False
            if problem is None:
                for partition, leader in self.truth.items():
                    self.view.leaders[partition] = (leader, self.epoch)
                    count = max(self.view.counts.get(partition.topic, 0), partition.partition + 1)
                    self.view.counts[partition.topic] = count
            self.core.refreshed(problem, self.now_ms)

    def advance(self, by_ms: float) -> None:
        """Time passes as the edge lets it pass: with a step at each deadline."""
        end_ms = self.now_ms + by_ms
        for _ in range(10_000):
            deadline_ms = self.core.next_deadline_ms(self.now_ms)
            if deadline_ms is None or deadline_ms > end_ms:
                break
            self.now_ms = max(self.now_ms, deadline_ms)
            self.step()
            self.check()
        else:
            raise AssertionError("the core asks for steps without end at one time")
        self.now_ms = end_ms
        self.step()

    # Promises.

    def check(self) -> None:
        self.core.validate()
        owned = sum(sent.state() == "owned" for sent in self.sent)
        assert (owned > 0) == (not self.core.is_empty), "an outcome is missing, or one is too much"
        for sent in self.sent:
            if sent.state() == "owned":
                limit_ms = MAX_BLOCK_MS if not _in_batches(sent) else DELIVERY_TIMEOUT_MS
                late_ms = self.now_ms - sent.since_ms - limit_ms
                assert late_ms <= 0 or self._has_not_stepped(sent), f"{late_ms} ms without outcome"
        self._check_logs()

    def _has_not_stepped(self, sent: Sent) -> bool:
        """A table that a thread splits may be late: its lane waits for the thread."""
        return isinstance(sent.outcome, ArrowSend) and not sent.outcome.is_accepted

    def _check_logs(self) -> None:
        kinds = {one: type(sent.outcome) for sent in self.sent for one in sent.ids}
        for partition, log in self.logs.items():
            if self.idempotent:
                assert len(set(log.records)) == len(log.records), f"{partition}: a record twice"
                for kind in (Delivery, ArrowSend):
                    of_kind = [one for one in log.records if kinds[one] is kind]
                    assert of_kind == sorted(of_kind), f"{partition}: out of order"
        written = {one for log in self.logs.values() for one in log.records}
        for sent in self.sent:
            if sent.state() == "given out":
                assert written.issuperset(sent.ids), "acknowledged, and not in a log"
                if isinstance(sent.outcome, Delivery):
                    place = sent.outcome.metadata()
                    log = self.logs[TopicPartition(place.topic, place.partition)]
                    assert place.offset == -1 or log.records[place.offset] == sent.ids[0]

    def settle(self) -> None:
        """Faults end: every record gets its outcome soon, without its timeout."""
        self.largest = 10_000
        for _ in range(2_000):
            if self.core.is_empty:
                break
            for verb in (self.split, self.encode, self.cut, self.identify, self.refresh):
                verb()
            self.deliver(lambda: ErrorCode.NONE)
            self.answer()
            self.step(flush=True)
            self.check()
            self.now_ms += 1
        assert self.core.is_empty, "a record is stuck"


def _in_batches(sent: Sent) -> bool:
    if isinstance(sent.outcome, Delivery):
        return sent.outcome.is_bound
    return sent.outcome.is_accepted


def _encoded(ids: list[int]) -> bytes:
    return b",".join(b"%d" % one for one in ids)


def _decoded(payload: bytes) -> list[int]:
    return [int(one) for one in payload.split(b",")]
