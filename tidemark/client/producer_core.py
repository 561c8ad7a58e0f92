"""The producer's pure core: records and answers in, batches to encode and requests to send out. No
IO, clock or threads: time is an argument.

Each record that `send` takes is in one place. It is parked at the door (`admission`), in a batch
(`accumulator`), or its delivery has an outcome. `prepare` and `dispatch` are the halves of a step:
the first admits, closes and expires, the second assigns batches to requests. Between them the edge
encodes small batches. Every other method takes the outcome of an effect.

A request carries the batches of one node. Batches leave it one by one: by its answer, or by their
delivery timeout. While its node is silent, those leave it whose partition has another leader now.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from random import Random
from typing import Any

from tidemark.client import watch
from tidemark.client.accumulator import Accumulator
from tidemark.client.admission import Admission, Limits, ParkedTable, View
from tidemark.client.batch import Batch, Stamp, State
from tidemark.client.delivery import ArrowSend
from tidemark.client.metering import ProducerMeter
from tidemark.client.retry import RetryPolicy, is_retriable
from tidemark.client.throttled import ThrottledNodes
from tidemark.client.transactions.core import TransactionCore
from tidemark.errors import (
    ApiError,
    ClusterAuthorizationFailedError,
    ConcurrentTransactionsError,
    CoordinatorLoadInProgressError,
    CoordinatorNotAvailableError,
    ErrorCode,
    InvalidRequestError,
    NetworkError,
    NotCoordinatorError,
    TidemarkError,
    UnknownServerError,
    UnsupportedVersionError,
    error_for,
)
from tidemark.types import TopicPartition

# Errors of InitProducerId that every node would answer. All others are a matter of that node, such
# as a broker that has not registered with the controller yet.
_NO_PRODUCER_ID = (ClusterAuthorizationFailedError, InvalidRequestError, UnsupportedVersionError)
# Errors of a transaction's coordinator: the leader of the partition is the right one.
_OF_COORDINATOR = (
    ConcurrentTransactionsError,
    CoordinatorLoadInProgressError,
    CoordinatorNotAvailableError,
    NotCoordinatorError,
)
_NAMES = {code.value: code.name for code in ErrorCode}


class ProduceCall:
    """A produce request to one node; `open_batches` are those that it still has to answer."""

    __slots__ = ("batches", "leader", "look_at_ms", "sent_at_ms", "timeout_ms")

    def __init__(self, leader: int, batches: list[Batch], now_ms: float) -> None:
        self.leader = leader
        self.batches = batches
        self.sent_at_ms = now_ms
        self.look_at_ms = now_ms + watch.SLOW_CALL_S * 1000
        self.timeout_ms = 0.0

    @property
    def is_open(self) -> bool:
        """Whether a batch still waits for the answer."""
        return any(batch.flight is self for batch in self.batches)

    @property
    def open_batches(self) -> list[Batch]:
        return [batch for batch in self.batches if batch.flight is self]


class Chore:
    """Something to ask one node at a time, with exponential backoff between tries (KIP-580)."""

    __slots__ = ("_retry", "_rng", "attempts", "is_under_way", "not_before_ms")

    def __init__(self, retry: RetryPolicy, rng: Random) -> None:
        self._retry = retry
        self._rng = rng
        self.attempts = 0
        self.is_under_way = False
        self.not_before_ms = 0.0

    def begins(self, now_ms: float, *, at_once: bool = False) -> bool:
        """Whether it is to be done now; it is under way then. `at_once` skips the backoff."""
        if self.is_under_way or (now_ms < self.not_before_ms and not at_once):
            return False
        self.is_under_way = True
        return True

    def ended(self, now_ms: float, *, satisfied: bool) -> None:
        """Notes the end of a try. The next one waits for the backoff, whatever came of it."""
        self.is_under_way = False
        self.attempts = 0 if satisfied else self.attempts + 1
        wait_ms = self._retry.backoff(max(1, self.attempts), self._rng)
        self.not_before_ms = now_ms + wait_ms


@dataclass(slots=True)
class Admitted:
    """Effects of `prepare`: batches to encode, tables to split, batches whose time was up."""

    encode: list[Batch]
    split: list[ParkedTable]
    expired: list[Batch]


@dataclass(slots=True)
class Dispatched:
    """Effects of `dispatch`; `refresh` names topics to ask for, None means no refresh."""

    requests: list[ProduceCall] = field(default_factory=list)
    cancelled: list[ProduceCall] = field(default_factory=list)
    cut: list[Batch] = field(default_factory=list)
    identify: bool = False
    refresh: list[str] | None = None


class ProducerCore:
    """Owns every record from `send` until its outcome. `view` is the metadata as it is known."""

    def __init__(
        self,
        view: View,
        limits: Limits,
        *,
        linger_ms: float,
        retry: RetryPolicy,
        idempotent: bool,
        request_timeout_ms: float,
        rng: Random,
        transaction: TransactionCore | None = None,
    ) -> None:
        # Parked records have their outcome within delivery.timeout.ms, too.
        limits = replace(limits, max_block_ms=min(limits.max_block_ms, retry.timeout_ms))
        self._view = view
        self._limits = limits
        self._transaction = transaction
        lost = None if transaction is None else transaction.failed
        self._retry = retry
        self._request_timeout_ms = request_timeout_ms
        self.accumulator = Accumulator(
            batch_size=limits.batch_size,
            linger_ms=linger_ms,
            retry=retry,
            idempotent=idempotent,
            rng=rng,
            max_record_size=limits.max_request_size,
            lost=lost,
        )
        self.admission = Admission(self.accumulator, view, limits, rng, lost or (lambda _: None))
        self._requests: dict[ProduceCall, None] = {}
        self._in_flight: dict[int, int] = {}  # requests per node
        self.throttled = ThrottledNodes()
        self.meter = ProducerMeter()
        self._to_cut: list[Batch] = []
        self._identity = Chore(retry, rng)
        self._refresh = Chore(retry, rng)
        self._asked_for: set[str] = set()  # topics of the last refresh that were wanted
        self._is_stale = False
        self._wants = False  # metadata, as of the last step

    # Records in: by `admission.send`, which is called most often, and by tables.

    def send_tables(
        self,
        send: ArrowSend,
        topic: str,
        tables: Sequence[Any],
        partition: int | None,
        now_ms: float,
    ) -> None:
        """See `Admission.send_tables`."""
        self.admission.send_tables(send, topic, tables, partition, now_ms)

    # A step.

    def prepare(self, now_ms: float, *, flush: bool = False) -> Admitted:
        """Expires, admits, and closes batches; with `flush` without linger.

        Fails all records of a transaction that can not be committed.
        """
        expired = self.accumulator.expire(now_ms)
        split = self.admission.admit(now_ms)
        if self._transaction is not None and (doom := self._transaction.doom) is not None:
            self.abort(doom)
        everything = flush or self.admission.waits_for_room  # nothing else would make room
        self.accumulator.close_due(now_ms, everything=everything)
        return Admitted(self.accumulator.take_encodable(), split, expired)

    def dispatch(self, now_ms: float) -> Dispatched:
        """Assigns encoded batches to requests, and finds out what else is to be asked for."""
        effects = Dispatched()
        effects.cancelled += self._leave_silent_nodes(now_ms)
        drained = self.accumulator.drain(
            now_ms, self._view.leader, self._has_room(now_ms), self._limits.max_request_size
        )
        for leader, batches in drained.items():
            request = ProduceCall(leader, batches, now_ms)
            request.timeout_ms = max(
                1.0, min(self._request_timeout_ms, self.accumulator.expiry_ms(batches) - now_ms)
            )
            for batch in batches:
                batch.flight = request
                batch.tries.leader_epoch = self._view.leader_epoch(batch.topic_partition)
            self.meter.sent(batches, now_ms)
            self._requests[request] = None
            self._in_flight[leader] = self._in_flight.get(leader, 0) + 1
            effects.requests.append(request)
        if drained and self._transaction is not None:
            self._transaction.wrote()
        effects.cut, self._to_cut = self._to_cut, []
        effects.identify = self.accumulator.needs_identity and self._identity.begins(now_ms)
        wanted = self.admission.wanted_topics()
        self._wants = self._wants_metadata(wanted)
        is_new = not self._asked_for.issuperset(wanted)
        if self._wants and self._refresh.begins(now_ms, at_once=is_new):
            self._is_stale = False  # a mark from now on causes another refresh
            self._asked_for = set(wanted)
            self.admission.refresh_begins()
            effects.refresh = wanted
        return effects

    def _has_room(self, now_ms: float) -> Callable[[int], bool]:
        def has_room(leader: int) -> bool:
            if self._in_flight.get(leader, 0) >= self._limits.max_in_flight:
                return False
            return now_ms >= self.throttled.until_ms(leader)

        return has_room

    def _wants_metadata(self, wanted_topics: list[str]) -> bool:
        if self.is_empty and not wanted_topics:
            return False
        return bool(
            self._is_stale
            or self._view.is_stale
            or wanted_topics
            or self.accumulator.waiting_without_leader(self._view.leader)
        )

    def _leave_silent_nodes(self, now_ms: float) -> list[ProduceCall]:
        """Takes batches from requests that are slow, where another node leads their partition now.

        Returns the requests that have no batch left.
        """
        left: list[ProduceCall] = []
        for request in list(self._requests):
            if now_ms >= request.look_at_ms:
                for batch in request.open_batches:
                    leader = self._view.leader(batch.topic_partition)
                    if leader is not None and leader != request.leader:
                        text = f"{batch.topic_partition}: broker {request.leader} does not answer"
                        self._failed(batch, NetworkError(text), now_ms, hinted=True)
            if not request.is_open:
                self._end(request)
                left.append(request)
            elif now_ms >= request.look_at_ms:
                request.look_at_ms = now_ms + watch.SLOW_CALL_S * 1000
                self._is_stale = True
        return left

    # Outcomes of requests.

    def answered(self, request: ProduceCall, answer: Any, now_ms: float) -> list[Batch]:
        """Takes a ProduceResponse. Returns the batches that failed for good."""
        self._end(request)
        self.meter.answered(now_ms - request.sent_at_ms, now_ms)
        self.throttled.answered(request.leader, answer.throttle_time_ms, now_ms)
        self._view.hint_nodes(answer.node_endpoints)
        answers = {(r.topic, r.index): r for r in answer.responses}
        batches = request.open_batches
        for batch in batches:
            partition = batch.topic_partition
            response = answers.get(partition)
            if self._limits.acks == 0:
                self.accumulator.succeeded(batch, -1)
            elif response is None:
                error: ApiError = UnknownServerError(f"the answer says nothing of {partition}")
                self._failed(batch, error, now_ms)
            elif not response.error_code:
                stamped_ms = response.log_append_time_ms
                self.accumulator.succeeded(batch, response.base_offset, stamped_ms)
            else:
                message = response.error_message or _NAMES.get(response.error_code, "unknown")
                error = error_for(response.error_code, f"{partition}: {message}")
                self._failed(batch, error, now_ms, hinted=self._hinted(partition, response))
        return [batch for batch in batches if batch.error is not None]

    def request_failed(
        self, request: ProduceCall, error: BaseException, now_ms: float
    ) -> list[Batch]:
        """Takes the error of a request without an answer. Returns batches that failed for good.

        An error that is none of Tidemark's fails each batch of the request, and no other. With
        acks=0, batches are sent again after a NetworkError; after another error they may have been
        written, and nobody asks.
        """
        self._end(request)
        batches = request.open_batches
        for batch in batches:
            named = error
            if isinstance(error, TidemarkError):
                named = type(error)(f"{batch.topic_partition}: {error}")
            self._failed(batch, named, now_ms, was_sent=not isinstance(error, NetworkError))
        return [batch for batch in batches if batch.error is not None]

    def _end(self, request: ProduceCall) -> None:
        if request in self._requests:
            del self._requests[request]
            self._in_flight[request.leader] -= 1

    def _hinted(self, partition: TopicPartition, response: Any) -> bool:
        """Whether the answer named a leader that is newer than the known one (KIP-951)."""
        if not response.HasField("current_leader"):
            return False
        before = self._view.leader_epoch(partition)
        hint = response.current_leader
        self._view.hint_leader(partition, hint.leader_id, hint.leader_epoch)
        return hint.leader_epoch > before and self._view.address(hint.leader_id) is not None

    def _failed(
        self,
        batch: Batch,
        error: BaseException,
        now_ms: float,
        *,
        hinted: bool = False,
        was_sent: bool = True,
    ) -> None:
        if self._limits.acks == 0 and was_sent:
            self.accumulator.succeeded(batch, -1)
            return
        if self.accumulator.failed(batch, error, now_ms, at_once=hinted):
            self.meter.retried += batch.count
        if is_retriable(error) and not hinted and not isinstance(error, _OF_COORDINATOR):
            self._is_stale = True
        if batch.state is State.CUTTING:
            self._to_cut.append(batch)

    # Outcomes of the other effects.

    def encoded(self, batch: Batch, payload: bytes, stamp: Stamp) -> None:
        """Takes the encoded bytes of a batch, and the stamp they carry."""
        self.accumulator.encoded(batch, payload, stamp)

    def cut(self, batch: Batch, parts: Iterable[tuple[bytes, int, Stamp]]) -> None:
        """Takes the parts of a batch that was too large."""
        self.accumulator.cut(batch, parts)

    def batch_failed(self, batch: Batch, error: BaseException) -> None:
        """Fails a batch that can not be encoded or cut."""
        self.accumulator.give_up(batch, error)

    def identified(self, producer_id: int, producer_epoch: int, now_ms: float) -> None:
        """Takes the answer of InitProducerId."""
        self._identity.ended(now_ms, satisfied=True)
        self.accumulator.set_identity(producer_id, producer_epoch)

    def not_identified(self, error: BaseException, now_ms: float) -> None:
        """Takes the error of InitProducerId; one that every node would give fails what waits."""
        self._identity.ended(now_ms, satisfied=False)
        if isinstance(error, _NO_PRODUCER_ID):
            waiting = self.accumulator.without_identity()
            self.accumulator.give_up_all((batch, error) for batch in waiting)

    def refreshed(self, problem: ApiError | None, now_ms: float) -> None:
        """Takes the end of a refresh; `view` has its result."""
        self.admission.refreshed(problem)
        self.accumulator.leaders_known(now_ms, self._view.leader_epoch)
        satisfied = problem is None and not self._wants_metadata(self.admission.wanted_topics())
        self._refresh.ended(now_ms, satisfied=satisfied)

    # Ends.

    def close(self) -> None:
        """Refuses sends from now on; what is owned goes on."""
        self.admission.close()

    def abort(self, error: BaseException) -> None:
        """Fails every record that is owned. Outcomes of effects that come later change nothing."""
        self.admission.abort(error)
        pending = self.accumulator.pending()
        self.accumulator.give_up_all((batch, error) for batch in pending)
        for request in list(self._requests):
            self._end(request)
        self._to_cut.clear()

    # Look-ups.

    @property
    def is_empty(self) -> bool:
        """Whether every record has its outcome."""
        return self.accumulator.is_empty and self.admission.is_empty

    @property
    def has_room(self) -> bool:
        """Whether the next send would go into the buffer, or wait for metadata only."""
        return not self.admission.waits_for_room and (
            self.buffered_bytes < self._limits.buffer_memory
        )

    @property
    def buffered_bytes(self) -> int:
        """Bytes without an outcome, those that wait at the door included."""
        door = self.admission
        return self.accumulator.buffered_bytes + door.parked_bytes + door.reserved_bytes

    def metrics(self, now_ms: float) -> dict[str, float]:
        """See `AsyncProducer.metrics`."""
        memory = self._limits.buffer_memory
        lost = self.accumulator.lost_records + self.admission.lost_records
        return {
            **self.throttled.metrics("produce"),
            **self.meter.report(lost, now_ms),
            "buffer-available-bytes": float(max(0, memory - self.buffered_bytes)),
            "buffer-total-bytes": float(memory),
            "requests-in-flight": float(len(self._requests)),
        }

    def next_deadline_ms(self, now_ms: float) -> float | None:
        """The time of the next step, if nothing else happens."""
        return min(self._deadlines(now_ms), default=None)

    def _deadlines(self, now_ms: float) -> Iterator[float]:
        for deadline_ms in (
            self.accumulator.next_deadline_ms(now_ms), self.admission.next_deadline_ms()
        ):  # fmt: skip
            if deadline_ms is not None:
                yield deadline_ms
        for request in self._requests:
            yield request.look_at_ms
        if self.is_empty and not self._wants:
            return
        yield from self.throttled.ends_after(now_ms)
        if self.accumulator.needs_identity and not self._identity.is_under_way:
            yield max(now_ms, self._identity.not_before_ms)
        if not self._refresh.is_under_way and self._wants:
            yield max(now_ms, self._refresh.not_before_ms)

    def validate(self) -> None:
        """Asserts the invariants that hold between calls."""
        self.accumulator.validate()
        self.admission.validate()
        counts: dict[int, int] = {}
        for request in self._requests:
            counts[request.leader] = counts.get(request.leader, 0) + 1
        assert counts == {node: count for node, count in self._in_flight.items() if count}
        for batch in self.accumulator.pending():
            is_flying = batch.state is State.IN_FLIGHT
            assert is_flying == (batch.flight is not None)
            assert not is_flying or batch.flight in self._requests
