"""The producer's core against a model, in any order of events (Hypothesis).

Every record handed over is given out, failed, or still owned (RULES.md I17). Every delivery has an
outcome in time (I18). After each event the core validates itself, and `World.check` compares
deliveries and logs.
"""

from __future__ import annotations

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from tests.client.producer_world import World
from tidemark.client.errors import ClientClosedError
from tidemark.errors import (
    ErrorCode,
    InvalidRequestError,
    NetworkError,
    NotControllerError,
    RequestTimedOutError,
    UnknownServerError,
)
from tidemark.types import TopicPartition

TOPICS = st.sampled_from(["a", "b", "c"])
SIZES = st.integers(0, 120)
LOSSES = st.sampled_from(
    [
        NetworkError("cut"),
        RequestTimedOutError("slow"),
        RuntimeError("no such field"),
        MemoryError(),
        ClientClosedError("closed"),
    ]
)
REFUSALS = [
    ErrorCode.NONE,
    ErrorCode.NONE,
    ErrorCode.NOT_LEADER_OR_FOLLOWER,
    ErrorCode.NOT_ENOUGH_REPLICAS,
    ErrorCode.MESSAGE_TOO_LARGE,
    ErrorCode.INVALID_TIMESTAMP,
    ErrorCode.UNKNOWN_SERVER_ERROR,
    ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER,
    ErrorCode.INCONSISTENT_TOPIC_ID,
]


class Producing(RuleBasedStateMachine):
    """Events of one producer."""

    @initialize(seed=st.integers(0, 2**16), idempotent=st.sampled_from([True, True, False]))
    def begin(self, seed: int, idempotent: bool) -> None:
        self.world = World(seed, idempotent=idempotent)
        self.world.make_topic("a", 2)

    @rule(topic=TOPICS, size=SIZES, times=st.integers(1, 12))
    def send(self, topic: str, size: int, times: int) -> None:
        for _ in range(times):
            self.world.send(topic, size)

    @rule(topic=TOPICS, partition=st.integers(0, 4))
    def send_to(self, topic: str, partition: int) -> None:
        self.world.send(topic, 20, partition)

    @rule(topic=TOPICS, counts=st.lists(st.integers(1, 6), max_size=3))
    def send_table(self, topic: str, counts: list[int]) -> None:
        self.world.send_table(topic, counts)

    @rule(topic=TOPICS, count=st.integers(1, 3))
    def make_topic(self, topic: str, count: int) -> None:
        self.world.make_topic(topic, count)

    @rule(by_ms=st.sampled_from([0, 1, 5, 30, 100, 400, 2500]))
    def advance(self, by_ms: int) -> None:
        self.world.advance(by_ms)

    @rule(flush=st.booleans())
    def step(self, flush: bool) -> None:
        self.world.step(flush=flush)

    @rule(fails=st.sampled_from([False, False, False, True]))
    def encode(self, fails: bool) -> None:
        self.world.encode(MemoryError() if fails else None)

    @rule(fails=st.sampled_from([False, False, True]))
    def cut(self, fails: bool) -> None:
        self.world.cut(MemoryError() if fails else None)

    @rule(fails=st.sampled_from([False, False, True]))
    def split(self, fails: bool) -> None:
        self.world.split(MemoryError() if fails else None)

    @rule(throttle_ms=st.sampled_from([0, 0, 50]))
    def deliver(self, throttle_ms: int) -> None:
        self.world.deliver(lambda: ErrorCode.NONE, throttle_ms=throttle_ms)

    @rule()
    def refuse(self) -> None:
        self.world.deliver(lambda: self.world.rng.choice(REFUSALS))

    @rule()
    def deliver_late(self) -> None:
        self.world.deliver_late()

    @rule()
    def answer(self) -> None:
        self.world.answer()

    @rule(error=LOSSES)
    def lose(self, error: Exception) -> None:
        self.world.lose(error)

    @rule()
    def move(self) -> None:
        self.world.move()

    @rule(largest=st.sampled_from([1, 2, 10_000]))
    def limit(self, largest: int) -> None:
        self.world.largest = largest

    @rule(error=st.sampled_from([None, None, NotControllerError(), InvalidRequestError("no")]))
    def identify(self, error: Exception | None) -> None:
        self.world.identify(error)

    @rule(problem=st.sampled_from([None, None, NetworkError("cut"), UnknownServerError()]))
    def refresh(self, problem: NetworkError | None) -> None:
        self.world.refresh(problem)

    @rule()
    def go_on(self) -> None:
        """Some rounds without faults, so that walks get far."""
        for _ in range(4):
            for verb in (self.world.refresh, self.world.identify, self.world.split):
                verb()
            self.world.step(flush=True)
            self.world.encode()
            self.world.step()
            self.world.deliver(lambda: ErrorCode.NONE)
            self.world.answer()

    @rule(how=st.sampled_from(["close", "abort", "", "", "", "", ""]))
    def end(self, how: str) -> None:
        if how == "close":
            self.world.close()
        elif how == "abort":
            self.world.abort()
            assert self.world.core.is_empty
            assert self.world.core.buffered_bytes == 0
            assert all(sent.state() != "owned" for sent in self.world.sent)

    @invariant()
    def promises(self) -> None:
        if hasattr(self, "world"):
            self.world.check()

    def teardown(self) -> None:
        if hasattr(self, "world"):
            self.world.settle()
            assert all(sent.state() != "owned" for sent in self.world.sent)


TestProducerModel = Producing.TestCase
TestProducerModel.settings = settings(max_examples=120, stateful_step_count=50, deadline=None)


def test_records_behind_a_head_that_waits_for_metadata_are_not_overtaken() -> None:
    world = World(1, idempotent=False)
    world.make_topic("a", 1)
    world.send("a", 0)
    world.step()
    world.refresh()
    world.step()
    while world.core.has_room:
        world.send("a", 100, 0)
    world.send("a", 0, 7)  # the topic may have grown
    world.send("a", 0, 0)
    behind = world.sent[-1]
    for _ in range(20):
        world.step(flush=True)
        world.encode()
        world.deliver(lambda: ErrorCode.NONE)
        world.answer()
    assert world.core.has_room
    assert behind.state() == "owned"
    world.send("a", 0, 0)
    world.settle()
    written = world.logs[TopicPartition("a", 0)].records
    assert written == sorted(written)
    assert written[-2:] == [*behind.ids, *world.sent[-1].ids]


def test_an_answer_for_a_batch_that_left_its_request_changes_nothing() -> None:
    world = World(1, idempotent=False)
    world.make_topic("a", 1)
    world.send("a", 0)
    world.step()
    world.refresh()
    world.step(flush=True)
    world.encode()
    world.step()
    (first,) = world.under_way
    (batch,) = first.request.batches
    assert world.core.accumulator.failed(batch, NetworkError("left"), world.now_ms, at_once=True)
    refusal = batch.tries.refusal
    assert first.request.open_batches == []
    world.core.request_failed(first.request, RuntimeError("late"), world.now_ms)
    assert (batch.error, batch.tries.refusal) == (None, refusal)
