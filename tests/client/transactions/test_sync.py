"""The blocking Producer and Consumer in transactions, on whole nodes in virtual time."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tidemark.client import (
    ClientClosedError,
    IllegalStateError,
    TransactionAbortedError,
)
from tidemark.client.transactions.core import TransactionState
from tidemark.errors import ProducerFencedError, TransactionAbortableError
from tidemark.testing import Cluster
from tidemark.types import TopicPartition

SETTINGS = {"offsets.topic.num.partitions": "2", "transaction.state.log.num.partitions": "2"}


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    with Cluster(3, settings=SETTINGS) as cluster:
        yield cluster


@pytest.fixture
def out(cluster: Cluster) -> Iterator[str]:
    """A new topic of one partition."""
    name = f"out-{cluster.rng.getrandbits(32)}"
    cluster.create_topic(name, 1, 3)
    yield name


def seen(cluster: Cluster, topic: str, isolation: str = "read_committed") -> list[bytes | None]:
    found: list[bytes | None] = []
    with cluster.consumer(auto_offset_reset="earliest", isolation_level=isolation) as reader:
        reader.assign([TopicPartition(topic, 0)])
        while records := reader.poll(3_000):
            found += [record.value for record in records]
    return found


def test_a_block_commits_at_its_end_and_aborts_after_an_error(cluster: Cluster, out: str) -> None:
    with cluster.producer(transactional_id=out) as producer:
        with pytest.raises(IllegalStateError, match="init_transactions"):
            producer.send(out, b"x")
        with producer.transaction():
            sent = [producer.send(out, b"%d" % number) for number in range(50)]
        assert all(one.done() for one in sent)
        with pytest.raises(IllegalStateError, match="begin_transaction"):
            producer.send(out, b"x")
        with pytest.raises(KeyboardInterrupt), producer.transaction():
            producer.send(out, b"written").result()
            staged = producer.send(out, b"staged")
            raise KeyboardInterrupt
        with pytest.raises(TransactionAbortedError):
            staged.result()
        producer.begin_transaction()
        producer.send(out, b"aborted")
        producer.abort_transaction()
        producer.begin_transaction()
        producer.send(out, b"last")
        producer.commit_transaction()
    assert seen(cluster, out) == [*(b"%d" % number for number in range(50)), b"last"]
    assert b"written" in seen(cluster, out, "read_uncommitted")


def test_records_and_offsets_are_consumed_and_produced_exactly_once(
    cluster: Cluster, out: str
) -> None:
    cluster.create_topic(f"{out}-in", 1, 3)
    source = TopicPartition(f"{out}-in", 0)
    with cluster.producer() as producer:
        for number in range(40):
            producer.send(source.topic, b"%d" % number)

    def work(crash_at: int, until: int) -> None:
        """Passes records on until it crashes at one of them."""
        with (
            cluster.producer(transactional_id=out) as producer,
            cluster.consumer(
                group_id=out,
                auto_offset_reset="earliest",
                enable_auto_commit=False,
                isolation_level="read_committed",
            ) as consumer,
        ):
            consumer.subscribe([source.topic])
            while consumer.positions().get(source, (0,))[0] < until:
                records = consumer.poll(1_000, max_records=7)
                with producer.transaction():
                    for record in records:
                        producer.send(out, record.value)
                        assert record.value != b"%d" % crash_at
                    producer.send_offsets_to_transaction(
                        consumer.positions(), consumer.group_metadata()
                    )

    with pytest.raises(AssertionError):
        work(17, 40)
    work(-1, 40)
    assert seen(cluster, out) == [b"%d" % number for number in range(40)]
    with cluster.consumer(group_id=out) as reader:
        committed = reader.committed([source])[source]
        assert committed is not None
        assert committed.offset == 40
        assert reader.group_metadata() == (out, "", -1, None)


def test_a_block_that_can_not_begin_leaves_the_open_transaction_alone(
    cluster: Cluster, out: str
) -> None:
    with cluster.producer(transactional_id=out) as producer:
        with producer.transaction():
            producer.send(out, b"first").result()
            staged = producer.send(out, b"staged")
            with pytest.raises(IllegalStateError, match="is open"), producer.transaction():
                pass
            producer.send(out, b"last")
        assert staged.exception() is None
    assert seen(cluster, out) == [b"first", b"staged", b"last"]


def test_an_error_behind_the_callers_thread_fails_the_transaction(
    cluster: Cluster, out: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*_: object) -> None:
        raise RuntimeError("nobody foresaw it")

    with cluster.producer(transactional_id=out) as producer:
        with (
            pytest.raises(TransactionAbortableError, match="foresaw"),
            producer.transaction(),
            monkeypatch.context() as patched,
        ):
            patched.setattr(producer._core, "enqueue", broken)
            lost = producer.send(out, b"lost")
            with pytest.raises(RuntimeError):
                lost.result()
        with producer.transaction():
            producer.send(out, b"kept")
    assert seen(cluster, out) == [b"kept"]


def test_close_aborts_and_a_fenced_producer_closes(cluster: Cluster, out: str) -> None:
    first = cluster.producer(transactional_id=out)
    first.init_transactions()
    first.begin_transaction()
    first.send(out, b"gone").result()
    staged = first.send(out, b"gone")
    first.close()
    assert first._core.required_transactions().core.state is TransactionState.READY
    with pytest.raises(TransactionAbortedError):
        staged.result()
    with pytest.raises(ClientClosedError):
        first.begin_transaction()
    with cluster.producer(transactional_id=out) as second:
        second.init_transactions()
        with cluster.producer(transactional_id=out) as third, third.transaction():
            third.send(out, b"kept")
        with pytest.raises(ProducerFencedError), second.transaction():
            second.send(out, b"gone")
    assert seen(cluster, out) == [b"kept"]
