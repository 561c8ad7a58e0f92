"""`tidemark self-test`: whether a live cluster does what it is for, with a topic of its own."""

from __future__ import annotations

import hashlib
import time
import uuid
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Annotated

import typer

from tidemark.cli.output import reason_of
from tidemark.cli.produce import limits_of
from tidemark.cli.session import Session, with_session
from tidemark.errors import TidemarkError
from tidemark.types import TopicPartition

if TYPE_CHECKING:
    from tidemark.client.sync import Admin, Consumer

_VALUE_BYTES = 100


class SelfTestError(TidemarkError):
    """The cluster answered, and wrongly."""


@dataclass(frozen=True, slots=True)
class Step:
    """One step: its time, and the reason if it failed."""

    name: str
    ms: int
    error: str | None


@dataclass(slots=True)
class SelfTest:
    """Steps against one cluster. The first failure ends it; the topic and the group still go.

    `records` are sent to every broker. The internal topics of groups and transactions are created
    if nothing has used them before.
    """

    admin: Admin
    bootstrap: str
    records: int
    timeout_s: float
    steps: list[Step] = field(default_factory=list)
    name: str = field(default_factory=lambda: f"tidemark-self-test-{uuid.uuid4().hex[:12]}")
    _partitions: list[TopicPartition] = field(default_factory=list)

    def run(self) -> None:
        """Runs all steps."""
        tried: tuple[tuple[str, Callable[[], None]], ...] = (
            ("create a topic", self._create),
            ("produce with acks=all", self._produce),
            ("consume, in order and whole", self._consume),
            ("commit offsets of a group", self._commit),
            ("transactions, committed and aborted", self._transactions),
        )
        with ExitStack() as stack:
            stack.callback(self._clean)
            for name, step in tried:
                with self._timed(name):
                    step()
                if self.steps[-1].error is not None:
                    return

    @contextmanager
    def _timed(self, name: str) -> Iterator[None]:
        began, error = time.monotonic(), None
        try:
            yield
        except TidemarkError as caught:
            error = reason_of(caught)
        self.steps.append(Step(name, round((time.monotonic() - began) * 1000), error))

    def _create(self) -> None:
        from tidemark.client import NewTopic

        brokers = sum(not node.fenced for node in self.admin.describe_cluster().brokers)
        new = NewTopic(self.name, brokers, min(3, brokers))
        self.admin.create_topics([new])
        self._partitions = [TopicPartition(self.name, number) for number in range(brokers)]

    def _produce(self) -> None:
        from tidemark.client.sync import Producer

        with Producer(self.bootstrap, acks="all", **limits_of(self.timeout_s)) as producer:
            sent = [
                producer.send(self.name, value, partition=tp.partition)
                for tp in self._partitions
                for value in _values(tp.partition, self.records)
            ]
            producer.flush()
            for delivery in sent:
                delivery.result()

    def _consume(self) -> None:
        from tidemark.client.sync import Consumer

        with Consumer(self.bootstrap) as consumer:
            consumer.assign(self._partitions)
            consumer.seek_to_beginning()
            found = self._read(consumer, self.records)
        for tp in self._partitions:
            if found[tp] != list(_values(tp.partition, self.records)):
                raise SelfTestError(
                    f"{tp}: {len(found[tp])} records came, not those that were sent"
                )

    def _commit(self) -> None:
        from tidemark.client import OffsetAndMetadata
        from tidemark.client.sync import Consumer

        offsets = {tp: OffsetAndMetadata(self.records) for tp in self._partitions}
        with Consumer(self.bootstrap, group_id=self.name) as consumer:
            consumer.assign(self._partitions)
            consumer.commit(offsets)
        with Consumer(self.bootstrap, group_id=self.name) as consumer:
            found = consumer.committed(self._partitions)
        if {tp: at and at.offset for tp, at in found.items()} != dict.fromkeys(
            offsets, self.records
        ):
            raise SelfTestError(f"the group {self.name} has other offsets than were committed")

    def _transactions(self) -> None:
        from tidemark.client.sync import Consumer, Producer

        with Producer(self.bootstrap, transactional_id=self.name) as producer:
            producer.init_transactions()
            for value, is_committed in ((b"aborted", False), (b"committed", True)):
                producer.begin_transaction()
                for tp in self._partitions:
                    producer.send(self.name, value, partition=tp.partition)
                if is_committed:
                    producer.commit_transaction()
                else:
                    producer.flush()
                    producer.abort_transaction()
        with Consumer(self.bootstrap, isolation_level="read_committed") as consumer:
            consumer.assign(self._partitions)
            for tp in self._partitions:
                consumer.seek(tp, self.records)
            found = self._read(consumer, 1)
        if any(values != [b"committed"] for values in found.values()):
            raise SelfTestError(
                "a read_committed consumer got other records than the committed ones"
            )

    def _read(self, consumer: Consumer, each: int) -> dict[TopicPartition, list[bytes]]:
        """Reads until every partition has given `each` records, or time is up."""
        found: dict[TopicPartition, list[bytes]] = {tp: [] for tp in self._partitions}
        deadline = time.monotonic() + self.timeout_s
        while any(len(values) < each for values in found.values()):
            if time.monotonic() >= deadline:
                raise SelfTestError(f"not all records came within {self.timeout_s:g} s")
            for record in consumer.poll(500, 1000):
                found[TopicPartition(record.topic, record.partition)].append(record.value or b"")
        return found

    def _clean(self) -> None:
        with self._timed("delete the topic and the group"):
            if self._partitions:
                self.admin.delete_topics([self.name])
            if any("group" in step.name for step in self.steps):
                self.admin.groups.delete([self.name])


def _values(partition: int, count: int) -> Iterable[bytes]:
    for number in range(count):
        digest = hashlib.sha256(f"{partition}/{number}".encode()).hexdigest().encode()
        yield (digest * 2)[:_VALUE_BYTES]


@with_session
def self_test(
    session: Session,
    records: Annotated[int, typer.Option(help="Records to each broker.", min=1)] = 1000,
    timeout: Annotated[
        float, typer.Option(help="Of produce and of reads, in seconds.", min=1)
    ] = 30,
) -> None:
    """Try a live cluster: topics, records, groups and transactions; exit status 0: all work."""
    with session.admin() as admin:
        test = SelfTest(admin, session.bootstrap, records, timeout)
        test.run()
    rows = [(s.name, "ok" if s.error is None else f"failed: {s.error}", s.ms) for s in test.steps]
    session.show([asdict(step) for step in test.steps], ("STEP", "RESULT", "MS"), rows)
    if any(step.error is not None for step in test.steps):
        raise typer.Exit(1)
