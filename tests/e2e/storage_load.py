"""An acks=all load whose records contain sender and number, and the check of its result.

Each producer is a thread of its own and numbers its records; `delivered` are the acknowledged ones,
with their offsets. The load continues until it is stopped, with two rounds under way. Faults hit it
at any point, and wait for its progress (`wait_more`).
"""

from __future__ import annotations

import random
import threading
import time
from collections import deque
from typing import NamedTuple

from tidemark.client import Admin, Consumer, Producer
from tidemark.client.models import ConsumerRecord
from tidemark.client.sync import SyncDelivery
from tidemark.types import TopicPartition

PARTITIONS = 2
EVENTS, TIERED, STATE = "events", "tiered", "state"
TOPICS = (EVENTS, TIERED, STATE)
KEYS = 40  # of a producer in the compacted topic
_PADDING = 400
_ROUND = 3  # records to each partition
_ROUNDS_AHEAD = 2
_PACE_S = 0.01  # leaves the processors to the brokers


class Sent(NamedTuple):
    """A record on its way or stored."""

    topic: str
    partition: int
    key: bytes
    value: bytes | None


class _Sender(threading.Thread):
    """One idempotent producer."""

    def __init__(self, load: Load, number: int, servers: str, seed: int) -> None:
        super().__init__(name=f"load-{number}", daemon=True)
        self.load, self.number, self.servers = load, number, servers
        self.rng = random.Random(f"{seed}-{number}")
        self.next = 0

    def run(self) -> None:
        ahead: deque[list[tuple[Sent, SyncDelivery]]] = deque()
        try:
            with Producer(self.servers, acks="all", delivery_timeout_ms=120_000) as producer:
                while not self.load.stopped.wait(_PACE_S):
                    ahead.append(self._round(producer))
                    if len(ahead) > _ROUNDS_AHEAD:
                        self._finish(ahead.popleft())
                while ahead:
                    self._finish(ahead.popleft())
        except Exception as error:  # raised in the test's thread
            self.load.fail(error)

    def _round(self, producer: Producer) -> list[tuple[Sent, SyncDelivery]]:
        """Sends a few records to every partition."""
        sent = []
        for _ in range(_ROUND):
            for topic in TOPICS:
                for partition in range(PARTITIONS):
                    record = self._record(topic, partition)
                    sent.append(
                        (
                            record,
                            producer.send(topic, record.value, record.key, partition=partition),
                        )
                    )
        return sent

    def _record(self, topic: str, partition: int) -> Sent:
        self.next += 1
        key = b"%d-%d" % (self.number, self.next)
        if topic == STATE:
            key = b"%d-%d" % (self.number, self.rng.randrange(KEYS))
            if self.rng.random() < 0.1:
                return Sent(topic, partition, key, None)
        value = b"%d:%d:%s" % (self.number, self.next, b"." * self.rng.randrange(_PADDING))
        return Sent(topic, partition, key, value)

    def _finish(self, sent: list[tuple[Sent, SyncDelivery]]) -> None:
        done = [(record, delivery.result().offset) for record, delivery in sent]
        self.load.note(done)


class Load:
    """Producers on their own threads; a context manager that stops them."""

    def __init__(self, servers: str, seed: int, producers: int = 2) -> None:
        self.stopped = threading.Event()
        self._change = threading.Condition()
        self._error: Exception | None = None
        self.delivered: list[tuple[Sent, int]] = []
        self._senders = [_Sender(self, n, servers, seed) for n in range(producers)]

    def __enter__(self) -> Load:
        for sender in self._senders:
            sender.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stopped.set()

    def stop(self) -> None:
        """Returns when all records sent are acknowledged. Raises a record's error."""
        self.stopped.set()
        for sender in self._senders:
            sender.join(150)
            assert not sender.is_alive(), "a producer did not get done"
        if self._error is not None:
            raise self._error

    def note(self, done: list[tuple[Sent, int]]) -> None:
        with self._change:
            self.delivered += done
            self._change.notify_all()

    def fail(self, error: Exception) -> None:
        with self._change:
            self._error = error
            self._change.notify_all()

    def wait_more(self, count: int, timeout_s: float = 60) -> None:
        """Returns when `count` more records are acknowledged than now."""
        deadline = time.monotonic() + timeout_s
        with self._change:
            wanted = len(self.delivered) + count
            while len(self.delivered) < wanted:
                if self._error is not None:
                    raise self._error
                left = deadline - time.monotonic()
                if left <= 0:
                    missing = wanted - len(self.delivered)
                    raise AssertionError(f"{missing} of {count} records not taken in {timeout_s} s")
                self._change.wait(left)

    def end_of(self, topic: str, partition: int) -> int:
        """The offset behind the last acknowledged record of a partition; 0 if there is none."""
        with self._change:
            offsets = [
                offset
                for record, offset in self.delivered
                if record.topic == topic and record.partition == partition
            ]
        return max(offsets, default=-1) + 1


def read_all(servers: str) -> list[ConsumerRecord]:
    """All records of the topics, in order within a partition; those of the tier, too."""
    wanted = [TopicPartition(topic, p) for topic in TOPICS for p in range(PARTITIONS)]
    found: list[ConsumerRecord] = []
    with Consumer(servers) as consumer:
        consumer.assign(wanted)
        consumer.seek_to_beginning()
        ends = consumer.end_offsets(wanted)
        while any(consumer.position(tp) < ends[tp] for tp in wanted):
            polled = consumer.poll(timeout_ms=30_000, max_records=5_000)
            behind = {tp: (consumer.position(tp), ends[tp]) for tp in wanted}
            assert polled, f"nothing came for 30 s: (position, end) is {behind}"
            found += polled
    return found


def check(load: Load, found: list[ConsumerRecord], starts: dict[TopicPartition, int]) -> None:
    """Asserts that every acknowledged record is at its offset, once, in the order of its producer.

    The compacted topic must end with the last value of each key.
    """
    there = {(r.topic, r.partition, r.offset): (r.key, r.value) for r in found}
    assert len(there) == len(found), "an offset was read twice"
    latest: dict[tuple[int, bytes], tuple[int, bytes | None]] = {}
    for record, offset in load.delivered:
        if record.topic == STATE:
            place = record.partition, record.key
            latest[place] = max(latest.get(place, (-1, None)), (offset, record.value))
        elif offset >= starts[TopicPartition(record.topic, record.partition)]:
            stored = there.get((record.topic, record.partition, offset))
            assert stored == (record.key, record.value), f"{record} at {offset}: {stored}"
    _check_order(found)
    last: dict[tuple[int, bytes], tuple[int, bytes | None]] = {}
    for read in found:
        if read.topic == STATE:
            assert read.key is not None
            last[read.partition, read.key] = (read.offset, read.value)
    wrong = {
        place: (wanted, last.get(place))
        for place, wanted in latest.items()
        if wanted != last.get(place)
    }
    assert not wrong, f"(partition, key): (acknowledged, read) {wrong}"


def _check_order(found: list[ConsumerRecord]) -> None:
    """Asserts that no record is stored twice, or before one that its producer sent earlier."""
    before: dict[tuple[str, int, bytes], int] = {}
    for record in found:
        if record.value is None:
            continue
        producer, number, _ = record.value.split(b":", 2)
        place = record.topic, record.partition, producer
        assert int(number) > before.get(place, -1), f"{record} follows {before[place]}"
        before[place] = int(number)


def starts_of(admin: Admin, broker_ids: list[int]) -> dict[TopicPartition, int]:
    """The log start offsets at the leaders."""
    return {
        replica.topic_partition: replica.log_start_offset
        for directories in admin.describe_log_dirs(broker_ids, TOPICS).values()
        for directory in directories
        for replica in directory.replicas
        if replica.is_leader and not replica.is_future
    }
