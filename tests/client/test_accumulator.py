"""The producer's core alone, on the test's clock: order, sequences, limits, random walks."""

from __future__ import annotations

from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tidemark.client.accumulator import Accumulator
from tidemark.client.batch import Batch, Stamp, State
from tidemark.client.retry import RetryPolicy
from tidemark.errors import (
    DuplicateSequenceNumberError,
    InvalidRecordError,
    MessageTooLargeError,
    NetworkError,
    NotEnoughReplicasError,
    OutOfOrderSequenceNumberError,
    RequestTimedOutError,
)
from tidemark.records.header import MAX_SEQUENCE, sequence_after
from tidemark.types import TopicPartition

ONE, TWO = TopicPartition("t", 0), TopicPartition("t", 1)


def make(idempotent: bool = True, **settings: int) -> Accumulator:
    policy = RetryPolicy(settings.pop("timeout_ms", 1000), 10, 100, 0)
    chosen: dict[str, int] = {"batch_size": 200, "linger_ms": 5} | settings
    return Accumulator(retry=policy, idempotent=idempotent, rng=Random(1), **chosen)


def send(
    accumulator: Accumulator, partition: TopicPartition, now_ms: float, size: int = 20
) -> Batch:
    queue = accumulator.queue(partition)
    return accumulator.append(queue, None, b"x" * size, 0, (), now_ms)


def encode(accumulator: Accumulator) -> list[Batch]:
    batches = accumulator.take_encodable()
    for batch in batches:
        assert batch.stamp is not None
        accumulator.encoded(batch, b"x" * batch.size_bytes, batch.stamp)
    return batches


def drain(accumulator: Accumulator, now_ms: float, limit: int = 1 << 20) -> list[Batch]:
    requests = accumulator.drain(now_ms, lambda _: 1, lambda _: True, limit)
    return requests.get(1, [])


def test_a_batch_closes_when_it_lingered_and_is_sent_once() -> None:
    accumulator = make()
    accumulator.set_identity(7, 0)
    batch = send(accumulator, ONE, 0)
    accumulator.close_due(4)
    assert not encode(accumulator)
    assert accumulator.next_deadline_ms(4) == 5
    accumulator.close_due(5)
    assert encode(accumulator) == [batch]
    assert drain(accumulator, 5) == [batch]
    assert drain(accumulator, 6) == []
    accumulator.succeeded(batch, 42)
    assert (batch.done, batch.base_offset, accumulator.buffered_bytes) == (True, 42, 0)
    accumulator.validate()


def test_a_full_batch_closes_at_once_and_the_tail_grows_while_the_head_is_under_way() -> None:
    accumulator = make()
    accumulator.set_identity(7, 0)
    first = send(accumulator, ONE, 0)
    while (last := send(accumulator, ONE, 0)) is first:
        pass
    assert first.state is State.CLOSED
    encode(accumulator)
    assert drain(accumulator, 0) == [first]
    accumulator.close_due(1000)
    assert last.state is State.OPEN, "nothing can be sent anyway: let it grow"
    accumulator.succeeded(first, 0)
    accumulator.close_due(1000)
    assert last.state is State.CLOSED


def test_only_one_batch_of_a_partition_is_in_flight_and_a_retry_comes_before_its_successors() -> (
    None
):
    accumulator = make()
    accumulator.set_identity(7, 0)
    batches = []
    for now in range(3):
        batches.append(send(accumulator, ONE, now))
        accumulator.close_due(now, everything=True)
    encode(accumulator)
    assert drain(accumulator, 3) == batches[:1]
    assert accumulator.failed(batches[0], NetworkError(), 3)
    assert drain(accumulator, 3) == []
    assert accumulator.next_deadline_ms(3) == 13
    assert drain(accumulator, 13) == batches[:1]
    accumulator.succeeded(batches[0], 0)
    assert drain(accumulator, 13) == batches[1:2]
    stamps = [batch.stamp for batch in batches]
    assert stamps == [Stamp(7, 0, 0), Stamp(7, 0, 1), Stamp(7, 0, 2)]


def test_batches_wait_for_a_producer_id() -> None:
    accumulator = make()
    send(accumulator, ONE, 0)
    accumulator.close_due(0, everything=True)
    assert not encode(accumulator)
    assert accumulator.needs_identity
    accumulator.set_identity(7, 3)
    (batch,) = encode(accumulator)
    assert batch.stamp == Stamp(7, 3, 0)
    assert not accumulator.needs_identity


def test_a_batch_lost_after_it_was_sent_bumps_the_epoch_of_its_partition_only() -> None:
    accumulator = make()
    accumulator.set_identity(7, 0)
    lost, next_one, other = (send(accumulator, p, 0, 150) for p in (ONE, ONE, TWO))
    accumulator.close_due(0, everything=True)
    encode(accumulator)
    drain(accumulator, 0)
    assert not accumulator.failed(lost, InvalidRecordError(), 0)
    assert isinstance(lost.error, InvalidRecordError)
    assert next_one.stamp == Stamp(7, 1, 0)
    assert other.stamp == Stamp(7, 0, 0)
    accumulator.validate()


def test_a_batch_that_was_never_sent_leaves_no_gap_when_it_expires() -> None:
    accumulator = make(timeout_ms=100)
    accumulator.set_identity(7, 0)
    sent, stale = send(accumulator, ONE, 50, 150), send(accumulator, ONE, 10, 150)
    late = send(accumulator, ONE, 80, 150)
    accumulator.close_due(80, everything=True)
    encode(accumulator)
    assert drain(accumulator, 80) == [sent]
    assert accumulator.expire(115) == [stale]
    assert isinstance(stale.error, RequestTimedOutError)
    assert late.stamp == Stamp(7, 0, 1)
    accumulator.succeeded(sent, 0)
    accumulator.validate()


def test_a_batch_in_flight_expires_at_its_own_time_and_its_answer_comes_too_late() -> None:
    accumulator = make(timeout_ms=100)
    accumulator.set_identity(7, 0)
    old, young = send(accumulator, ONE, 0), send(accumulator, TWO, 90)
    accumulator.close_due(95, everything=True)
    encode(accumulator)
    assert drain(accumulator, 95) == [old, young]
    later = send(accumulator, ONE, 96)
    assert accumulator.next_deadline_ms(96) == 100
    assert accumulator.expire(100) == [old]
    assert isinstance(old.error, RequestTimedOutError)
    accumulator.succeeded(old, 5)
    assert (old.base_offset, young.state) == (-1, State.IN_FLIGHT)
    accumulator.close_due(100, everything=True)
    encode(accumulator)
    assert drain(accumulator, 100) == [later]
    assert later.stamp == Stamp(7, 1, 0), "the leader refuses what is under way of epoch 0"
    accumulator.validate()


def test_a_batch_takes_legal_transitions_only() -> None:
    accumulator = make()
    accumulator.set_identity(7, 0)
    batch = send(accumulator, ONE, 0)
    with pytest.raises(AssertionError, match="OPEN to IN_FLIGHT"):
        batch.move(State.IN_FLIGHT)
    accumulator.give_up(batch, InvalidRecordError())
    with pytest.raises(AssertionError, match="DONE to READY"):
        batch.move(State.READY)


def test_a_batch_that_is_too_large_is_cut_once() -> None:
    accumulator = make(timeout_ms=1000)
    accumulator.set_identity(7, 0)
    batch = send(accumulator, ONE, 0)
    assert send(accumulator, ONE, 0) is batch
    accumulator.close_due(0, everything=True)
    encode(accumulator)
    assert drain(accumulator, 0) == [batch]
    assert not accumulator.failed(batch, MessageTooLargeError(), 1)
    assert batch.state is State.CUTTING
    assert drain(accumulator, 1) == [], "not before it is cut"
    assert batch.stamp is not None
    accumulator.cut(batch, [(b"a", 1, batch.stamp), (b"b", 1, batch.stamp)])
    first, second = batch.children
    assert [first.stamp, second.stamp] == [Stamp(7, 0, 0), Stamp(7, 0, 1)]
    assert drain(accumulator, 1) == [first]
    accumulator.validate()


def test_a_batch_that_expires_amid_its_retries_tells_what_they_failed_with() -> None:
    accumulator = make(timeout_ms=100)
    accumulator.set_identity(7, 0)
    batch = send(accumulator, ONE, 0)
    accumulator.close_due(0, everything=True)
    encode(accumulator)
    assert drain(accumulator, 0) == [batch]
    assert accumulator.failed(batch, NotEnoughReplicasError("t-0: one of two in sync"), 10)
    assert accumulator.expire(99) == []
    assert accumulator.expire(100) == [batch]
    with pytest.raises(NotEnoughReplicasError, match=r"one of two.*delivery\.timeout\.ms=100"):
        raise batch.error
    accumulator.validate()


def test_a_gap_that_the_leader_sees_restarts_the_sequences_and_sends_again() -> None:
    accumulator = make()
    accumulator.set_identity(7, 0)
    batch = send(accumulator, ONE, 0)
    accumulator.close_due(0, everything=True)
    encode(accumulator)
    drain(accumulator, 0)
    assert accumulator.failed(batch, OutOfOrderSequenceNumberError(), 0)
    assert batch.stamp == Stamp(7, 1, 0)
    assert batch.payload_stamp == Stamp(7, 0, 0), "the sender stamps the bytes anew"


def test_after_the_last_epoch_comes_a_new_producer_id() -> None:
    accumulator = make()
    accumulator.set_identity(7, 2**15 - 1)
    batch = send(accumulator, ONE, 0)
    accumulator.close_due(0, everything=True)
    encode(accumulator)
    drain(accumulator, 0)
    assert accumulator.failed(batch, OutOfOrderSequenceNumberError(), 0)
    assert accumulator.needs_identity
    assert drain(accumulator, 1000) == []
    accumulator.set_identity(8, 0)
    accumulator.take_encodable()
    assert drain(accumulator, 1000) == [batch]
    assert batch.stamp == Stamp(8, 0, 0)


def test_a_duplicate_is_a_success_at_an_unknown_offset() -> None:
    accumulator = make()
    accumulator.set_identity(7, 0)
    batch = send(accumulator, ONE, 0)
    accumulator.close_due(0, everything=True)
    encode(accumulator)
    drain(accumulator, 0)
    assert not accumulator.failed(batch, DuplicateSequenceNumberError(), 0)
    assert (batch.done, batch.error, batch.base_offset) == (True, None, -1)


def test_requests_respect_their_size_and_nobody_starves() -> None:
    accumulator = make(idempotent=False, batch_size=120)
    sent = []
    for number in range(4):
        send(accumulator, TopicPartition("t", number), 0, 30)
    accumulator.close_due(0, everything=True)
    encode(accumulator)
    for _ in range(4):
        (batch,) = drain(accumulator, 0, limit=150)
        sent.append(batch.topic_partition.partition)
        accumulator.succeeded(batch, 0)
    assert sorted(sent) == [0, 1, 2, 3]


def test_sequences_wrap_to_zero() -> None:
    assert sequence_after(MAX_SEQUENCE, 1) == 0
    assert sequence_after(MAX_SEQUENCE - 1, 3) == 1


STEPS = st.sampled_from(["send", "send", "send", "tick", "pump", "ok", "lost", "refuse", "gap"])


@pytest.mark.parametrize("idempotent", [True, False])
@settings(max_examples=150, deadline=None)
@given(steps=st.lists(STEPS, max_size=60), seed=st.integers(0, 2**16))
def test_random_walks_keep_the_invariants(idempotent: bool, steps: list[str], seed: int) -> None:
    rng = Random(seed)
    accumulator = make(idempotent=idempotent, timeout_ms=500)
    accumulator.set_identity(7, 0)
    now = 0.0
    flying: list[Batch] = []
    order: dict[TopicPartition, list[float]] = {ONE: [], TWO: []}
    for step in steps:
        if step == "send":
            send(accumulator, rng.choice([ONE, TWO]), now, rng.randrange(150))
        elif step == "tick":
            now += rng.choice([1, 5, 50, 200])
            accumulator.expire(now)
        elif step == "pump":
            accumulator.close_due(now)
            encode(accumulator)
            flying += drain(accumulator, now, limit=300)
        elif flying:
            batch = flying.pop(rng.randrange(len(flying)))
            if step == "ok":
                order[batch.topic_partition].append(batch.created_ms)
                accumulator.succeeded(batch, 0)
            else:
                errors = {"lost": NetworkError(), "refuse": InvalidRecordError()}
                error = errors.get(step) or OutOfOrderSequenceNumberError()
                accumulator.failed(batch, error, now)
        accumulator.validate()
    assert all(created == sorted(created) for created in order.values())


def ready(box: Accumulator, *partitions: TopicPartition) -> list[Batch]:
    """Batches that are encoded and wait to be sent."""
    found = [send(box, partition, 0) for partition in partitions]
    box.close_due(0, everything=True)
    assert encode(box) == found
    return found


def test_a_batch_that_waits_for_room_goes_to_the_new_leader_of_its_partition() -> None:
    for is_told in (True, False):
        box = make(idempotent=False)
        (batch,) = ready(box, ONE)
        assert box.drain(1, lambda _: 1, lambda _: False, 1000) == {}
        if is_told:
            box.leaders_known(2, lambda _: 7)
            assert box.drain(2, lambda _: 2, lambda leader: leader == 2, 1000) == {2: [batch]}
        else:  # found out when the old one has room
            assert box.drain(2, lambda _: 2, lambda _: True, 1000) == {2: [batch]}


def test_a_batch_without_a_leader_is_sent_once_there_is_one() -> None:
    box = make(idempotent=False)
    (batch,) = ready(box, ONE)
    for _ in range(2):
        assert box.drain(1, lambda _: None, lambda _: True, 1000) == {}
        assert box.waiting_without_leader(lambda _: None) == [ONE]
    assert box.drain(2, lambda _: 1, lambda _: True, 1000) == {1: [batch]}
    assert box.waiting_without_leader(lambda _: None) == []


def test_batches_that_a_full_request_left_out_keep_their_order() -> None:
    box = make(idempotent=False)
    partitions = [TopicPartition("t", number) for number in range(4)]
    batches = ready(box, *partitions)
    assert [drain(box, 1, limit=1) for _ in batches] == [[batch] for batch in batches]


def test_a_newer_leader_ends_the_backoff_of_a_batch_that_waits_for_its_time() -> None:
    box = make(idempotent=False)
    (batch,) = ready(box, ONE)
    assert drain(box, 1) == [batch]
    assert box.failed(batch, NetworkError("gone"), 2)
    assert drain(box, 3) == []
    assert box.next_deadline_ms(3) == 12
    box.leaders_known(4, lambda _: 7)
    assert drain(box, 4) == [batch]


def test_a_step_looks_at_what_moved_and_not_at_all_busy_partitions() -> None:
    """With 1,000 partitions that have a batch under way and another one open."""
    box = make()
    box.set_identity(1, 0)
    queues = [box.queue(TopicPartition("t", number)) for number in range(1_000)]
    asked: list[int] = []

    def leader_of(partition: TopicPartition) -> int:
        asked.append(partition.partition)
        return partition.partition % 3

    def step(now_ms: float) -> list[Batch]:
        asked.clear()
        box.close_due(now_ms)
        found = box.take_encodable()
        for batch in found:
            assert batch.stamp is not None
            box.encoded(batch, b"payload", batch.stamp)
        sent = box.drain(now_ms, leader_of, lambda _: True, 1 << 20)
        box.validate()
        return [batch for batches in sent.values() for batch in batches]

    for queue in queues:
        box.append(queue, None, b"a", 0, (), 0)
    under_way = step(5)
    assert len(under_way) == 1_000
    for queue in queues:
        box.append(queue, None, b"b", 0, (), 6)
    assert step(7) == []
    assert len(asked) == 0, "their heads are under way"
    assert box.next_deadline_ms(8) == 1_000
    for batch in under_way[:3]:
        box.succeeded(batch, 0)
    assert box.next_deadline_ms(8) == 11
    assert {batch.topic_partition for batch in step(11)} == {
        batch.topic_partition for batch in under_way[:3]
    }
    assert len(asked) <= 6
    assert step(12) == []
    assert asked == []
