"""The blocking classes, from plain threads, over the fake cluster."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import Future
from typing import Any

import pyarrow as pa
import pytest

from tests.client.fake_cluster import FakeCluster, Fault
from tidemark.client import Admin, ClientClosedError, Consumer, Producer
from tidemark.errors import ErrorCode, InvalidTimestampError, NetworkError
from tidemark.types import TopicPartition

ONE = TopicPartition("t", 0)


@pytest.fixture
def cluster() -> Iterator[FakeCluster]:
    """A fake cluster on the loop of the blocking clients: gRPC works best with one loop per
    process.
    """
    from tidemark.client.sync import shared_loop

    fake = FakeCluster(1)
    fake.create_topic("t", 1)
    shared_loop().run(fake.__aenter__())
    yield fake
    shared_loop().run(fake.__aexit__())


def test_records_there_and_back(cluster: FakeCluster) -> None:
    with Producer(cluster.bootstrap_servers) as producer:
        deliveries = [producer.send("t", b"%d" % n, key=b"k") for n in range(500)]
        assert deliveries[499].result(10).offset == 499
        assert all(d.done() for d in deliveries)
        producer.send_arrow("t", pa.RecordBatch.from_pydict({"value": [b"a", b"b"]})).result(10)
        assert producer.partitions_for("t") == [ONE]
    with Consumer(cluster.bootstrap_servers) as consumer:
        consumer.assign([ONE])
        consumer.seek_to_beginning()
        assert consumer.position(ONE) == 0
        found: list[bytes | None] = []
        while len(found) < 502:
            found += [record.value for record in consumer.poll(10_000, max_records=200)]
        assert found == [b"%d" % n for n in range(500)] + [b"a", b"b"]
        consumer.seek(ONE, 500)
        assert consumer.poll_arrow(10_000)[ONE].column("value").to_pylist() == [b"a", b"b"]
        assert consumer.end_offsets([ONE]) == {ONE: 502}


class InterruptedWait:
    """A future whose waiter is interrupted at the worst moment: when the result is there."""

    def __init__(self, future: Future[Any]) -> None:
        self.future = future

    def result(self, timeout: float | None = None) -> Any:
        self.future.result(timeout)
        raise KeyboardInterrupt

    def cancel(self) -> bool:
        return self.future.cancel()


@pytest.mark.parametrize("poll", ["poll", "poll_arrow", "fetch_batches"])
def test_an_interrupted_poll_loses_no_record_and_moves_no_position(
    cluster: FakeCluster, poll: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with Producer(cluster.bootstrap_servers) as producer:
        for number in range(10):
            producer.send("t", b"%d" % number)
    whole = asyncio.run_coroutine_threadsafe
    with Consumer(cluster.bootstrap_servers) as consumer:
        consumer.assign([ONE])
        consumer.seek(ONE, 0)
        for _ in range(3):
            with monkeypatch.context() as patched, pytest.raises(KeyboardInterrupt):
                patched.setattr(
                    "tidemark.client.sync.asyncio.run_coroutine_threadsafe",
                    lambda *arguments: InterruptedWait(whole(*arguments)),
                )
                getattr(consumer, poll)(10_000)
            assert consumer.position(ONE) == 0
        assert getattr(consumer, poll)(10_000)
        assert consumer.position(ONE) == 10


def test_errors_reach_the_caller(cluster: FakeCluster) -> None:
    cluster.faults[ONE].append(Fault(ErrorCode.INVALID_TIMESTAMP))
    with Producer(cluster.bootstrap_servers) as producer:
        refused = producer.send("t", b"a")
        with pytest.raises(InvalidTimestampError):
            refused.result(10)
        assert isinstance(refused.exception(), InvalidTimestampError)
        with pytest.raises(TypeError):
            producer.send("t", "text")  # type: ignore[arg-type]
    with pytest.raises(ClientClosedError):
        producer.send("t", b"b")


def test_a_full_buffer_blocks_the_sending_thread_until_there_is_room(cluster: FakeCluster) -> None:
    with Producer(cluster.bootstrap_servers, buffer_memory=4096, linger_ms=0) as producer:
        for number in range(400):
            producer.send("t", b"%d" % number * 10)
        producer.flush(10)
    assert cluster.values("t") == [b"%d" % number * 10 for number in range(400)]


def test_many_threads_may_share_a_producer(cluster: FakeCluster) -> None:
    with Producer(cluster.bootstrap_servers) as producer:

        def work(name: bytes) -> None:
            for number in range(200):
                producer.send("t", b"%s %d" % (name, number))

        threads = [threading.Thread(target=work, args=(b"ABCD"[n : n + 1],)) for n in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    values = [value for value in cluster.values("t") if value is not None]
    assert len(values) == 800
    for name in (b"A", b"B", b"C", b"D"):
        assert [v for v in values if v.startswith(name)] == [
            b"%s %d" % (name, n) for n in range(200)
        ]


def test_a_cluster_that_is_not_there_is_a_network_error() -> None:
    with Admin("127.0.0.1:1", default_api_timeout_ms=100) as admin, pytest.raises(NetworkError):
        admin.list_topics()


def test_a_blocking_call_on_its_own_loop_is_refused(cluster: FakeCluster) -> None:
    from tidemark.client.sync import shared_loop

    async def misuse() -> None:
        shared_loop().run(asyncio.sleep(0))

    with pytest.raises(RuntimeError, match="its own event loop"):
        shared_loop().run(misuse())


def test_an_error_of_the_core_reaches_whoever_waits_for_the_record(
    cluster: FakeCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*_: object) -> None:
        raise RuntimeError("nobody foresaw it")

    with Producer(cluster.bootstrap_servers) as producer:
        with monkeypatch.context() as patched:
            patched.setattr(producer._core, "enqueue", broken)
            delivery = producer.send("t", b"a")
            with pytest.raises(RuntimeError, match="nobody foresaw"):
                delivery.result(10)
        assert producer.send("t", b"b").result(10).offset == 0


@pytest.mark.parametrize(
    "wrong", [{"headers": {"a": b"1"}}, {"partition": "0"}, {"timestamp_ms": "now"}]
)
def test_a_bad_record_is_refused_in_the_thread_that_sends_it(
    cluster: FakeCluster, wrong: dict[str, Any]
) -> None:
    with Producer(cluster.bootstrap_servers) as producer:
        with pytest.raises(TypeError):
            producer.send("t", b"bad", **wrong)
        assert producer.send("t", b"good").result(10).offset == 0


def test_an_interrupt_amid_a_send_holds_up_no_later_one(
    cluster: FakeCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    with Producer(cluster.bootstrap_servers) as producer:
        assert producer.send("t", b"0").result(10).offset == 0
        with monkeypatch.context() as patched:
            patched.setattr(producer._thread.loop, "call_soon_threadsafe", interrupted)
            with pytest.raises(KeyboardInterrupt):
                producer.send("t", b"1")
        assert producer.send("t", b"2").result(10).offset == 2
    assert cluster.values("t") == [b"0", b"1", b"2"]


def test_close_with_a_time_limit_fails_records_that_wait_for_their_topic(
    cluster: FakeCluster,
) -> None:
    producer = Producer(cluster.bootstrap_servers)
    deliveries = [producer.send("nowhere", b"a") for _ in range(3)]
    arrow_of_topic = pa.RecordBatch.from_pydict({"value": [b"a"]})
    assert producer.send("t", b"b").result(10).offset == 0
    assert producer.send_arrow("t", arrow_of_topic).result(10)[0].base_offset == 1
    producer.close(timeout_ms=50)
    for delivery in deliveries:
        with pytest.raises(ClientClosedError):
            delivery.result(10)


FORKS = """
import os, signal
from tidemark.client import Consumer, Producer
from tidemark.types import TopicPartition

producer, consumer = Producer("127.0.0.1:1"), Consumer("127.0.0.1:1")
delivery = producer.send("t", b"")
consumer._polling.acquire()  # as a thread that polls does
child = os.fork()
if child == 0:
    signal.alarm(20)  # a call that hangs ends the child
    for call in (
        lambda: producer.send("t", b""),
        lambda: delivery.result(),
        lambda: producer.flush(),
        lambda: producer.close(0),
        lambda: consumer.poll(0),
        lambda: consumer.position(TopicPartition("t", 0)),
        lambda: Producer("127.0.0.1:1"),
    ):
        try:
            call()
        except Exception as error:
            print(type(error).__name__, "spawn" in str(error), flush=True)
    raise SystemExit(0)  # the handlers of atexit run
print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
consumer._polling.release()
consumer.close()
producer.close(0)
"""


def test_a_client_in_a_forked_child_says_so_and_does_not_hang() -> None:
    done = subprocess.run(
        [sys.executable, "-c", FORKS], capture_output=True, text=True, timeout=60, check=True
    )
    assert done.stdout.splitlines() == ["ClientForkedError True"] * 7 + ["0"], done.stderr


def test_a_child_forked_before_the_first_client_has_its_own() -> None:
    code = """
import os, signal
from tidemark.client import sync
child = os.fork()
if child == 0:
    signal.alarm(20)
    producer = sync.Producer("127.0.0.1:1")
    producer.close(0)
    os._exit(7)
print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
"""
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True
    )
    assert done.stdout.split() == ["7"], done.stderr


ASYNC_FORKS = """
import asyncio, os, signal
from tidemark.client import AsyncAdmin, AsyncConsumer, AsyncProducer
from tidemark.types import TopicPartition

async def make():
    kept = AsyncProducer("127.0.0.1:1"), AsyncConsumer("127.0.0.1:1"), AsyncAdmin("127.0.0.1:1")
    kept[1].assign([TopicPartition("t", 0)])
    return kept

loop = asyncio.new_event_loop()
producer, consumer, admin = loop.run_until_complete(make())
child = os.fork()
if child == 0:
    signal.alarm(20)  # a call that hangs ends the child
    async def send():
        await producer.send("t", b"")
    calls = (
        send,
        lambda: producer.flush(),
        lambda: producer.drain(),
        lambda: producer.partitions_for("t"),
        lambda: producer.close(),
        lambda: consumer.poll(60_000),
        lambda: consumer.poll_arrow(60_000),
        lambda: consumer.fetch_batches(60_000),
        lambda: consumer.end_offsets([TopicPartition("t", 0)]),
        lambda: consumer.partitions_for("t"),
        lambda: consumer.close(),
        lambda: admin.list_topics(),
        lambda: admin.close(),
    )
    for call in calls:
        async def run():
            await call()
        try:
            asyncio.run(run())
        except Exception as error:
            print(type(error).__name__, "spawn" in str(error), flush=True)
    os._exit(0)
print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)
os._exit(0)
"""


def test_an_asyncio_client_in_a_forked_child_says_so_and_does_not_hang() -> None:
    done = subprocess.run(
        [sys.executable, "-c", ASYNC_FORKS], capture_output=True, text=True, timeout=60, check=True
    )
    assert done.stdout.splitlines() == ["ClientForkedError True"] * 13 + ["0"], done.stderr
