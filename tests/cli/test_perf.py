"""`tidemark perf` on a real broker, and on clients that lose, delay and mix up records."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from typing import Any, ClassVar

import pyarrow as pa
import pytest
from typer.testing import CliRunner, Result

from tidemark import client
from tidemark.cli import perf, perf_runs
from tidemark.cli.local_cluster import LocalCluster
from tidemark.cli.main import app
from tidemark.client import AsyncConsumer, AsyncProducer
from tidemark.client.models import BatchMetadata
from tidemark.errors import (
    ConfigError,
    CorruptMessageError,
    NotEnoughReplicasError,
    ProducerFencedError,
)
from tidemark.types import TopicPartition

runner = CliRunner()
PERCENTILES = {"avg", "max", "p50", "p95", "p99", "p99.9"}


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalCluster]:
    directory = tmp_path_factory.mktemp("cluster")
    with LocalCluster(directory, controllers=1, brokers=1) as cluster:
        cluster.wait_ready(60)
        options = ["--partitions", "2", "--bootstrap-server", cluster.bootstrap_servers]
        assert runner.invoke(app, ["topics", "create", "t", *options]).exit_code == 0
        yield cluster


def measure(cluster: LocalCluster, what: str, *options: str) -> Result:
    bootstrap = ["--bootstrap-server", cluster.bootstrap_servers]
    return runner.invoke(app, ["perf", what, "--topic", "t", *options, *bootstrap])


def test_what_is_produced_is_consumed_and_a_record_comes_through(cluster: LocalCluster) -> None:
    produced = measure(
        cluster, "produce", "--num-records", "5000", "--record-size", "64", "--throughput",
        "20000", "--producer-property", "acks=1", "--reporting-interval", "50", "--json",
    )  # fmt: skip
    assert produced.exit_code == 0, produced.stderr
    result = json.loads(produced.stdout)
    assert (result["records"], result["failed"], result["bytes"]) == (5000, 0, 5000 * 64)
    assert set(result["latency_ms"]) == PERCENTILES
    assert "MB/sec" in produced.stderr
    consumed = measure(cluster, "consume", "--num-records", "5000", "--json")
    assert consumed.exit_code == 0, consumed.stderr
    assert json.loads(consumed.stdout)["bytes"] == 5000 * 64
    sent = measure(
        cluster, "produce", "--num-records", "2000", "--transactional-id", "perf",
        "--transaction-duration-ms", "20", "--throughput", "20000", "--json",
    )  # fmt: skip
    assert sent.exit_code == 0, sent.stderr
    committed = measure(
        cluster, "consume", "--num-records", "7000", "--consumer-property",
        "isolation.level=read_committed", "--json",
    )  # fmt: skip
    assert committed.exit_code == 0, committed.stderr
    through = measure(cluster, "e2e", "--num-records", "20", "--record-size", "10")
    assert through.exit_code == 0, through.stderr
    assert through.stdout.startswith("20 records, ")
    assert " 99.9th" in through.stdout


def test_records_that_do_not_come_fail_the_command(cluster: LocalCluster) -> None:
    options = ("--num-records", "10", "--from-latest", "--timeout", "1")
    missing = measure(cluster, "consume", *options, "--json")
    assert missing.exit_code == 1
    assert json.loads(missing.stdout)["failed"] == 10
    assert "10 records did not come within 1 ms" in missing.stderr


class FakeDelivery:
    """A delivery that is acknowledged after a second, or refused."""

    def __init__(self, rows: int, is_refused: bool) -> None:
        self.rows, self.is_refused = rows, is_refused

    async def accepted(self) -> None:
        if self.is_refused:
            raise NotEnoughReplicasError("one of two")

    async def _wait(self) -> list[BatchMetadata]:
        await asyncio.sleep(0)
        if self.is_refused:
            raise NotEnoughReplicasError("one of two")
        return [BatchMetadata("t", 0, 0, self.rows)]

    def __await__(self) -> Any:
        return self._wait().__await__()


class FakeProducer:
    """A producer of whose tables some are refused."""

    refused: frozenset[int] = frozenset({1})

    def __init__(self, *_: Any, **settings: Any) -> None:
        self.settings = settings
        self.tables = 0

    async def __aenter__(self) -> FakeProducer:
        return self

    async def __aexit__(self, *_: object) -> None:
        pass

    async def partitions_for(self, topic: str) -> list[TopicPartition]:
        return [TopicPartition(topic, 0)]

    def send_arrow(self, topic: str, data: pa.RecordBatch) -> FakeDelivery:
        self.tables += 1
        return FakeDelivery(data.num_rows, self.tables - 1 in self.refused)


def test_records_that_are_refused_are_counted_and_fail_the_command(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(client, "AsyncProducer", FakeProducer)
    monkeypatch.setattr(perf, "settings_for", lambda *_: {})
    monkeypatch.setattr(perf, "check_reachable", lambda _: None)
    options = ["--topic", "t", "--num-records", "3000", "--record-size", "1024", "--json"]
    result = runner.invoke(app, ["perf", "produce", *options])
    assert result.exit_code == 1
    shown = json.loads(result.stdout)
    assert (shown["records"], shown["failed"]) == (3000 - 1024, 1024)
    assert "1024 records were not acknowledged" in result.stderr
    assert "one of two (NOT_ENOUGH_REPLICAS)" in result.stderr


class TransactionalProducer(FakeProducer):
    """Counts its transactions; `failing` is the commit that fails."""

    refused: frozenset[int] = frozenset()
    failing = -1
    made: ClassVar[list[TransactionalProducer]] = []

    def __init__(self, *_: Any, **settings: Any) -> None:
        super().__init__(**settings)
        self.done: list[str] = []
        self.made.append(self)

    async def init_transactions(self) -> None:
        self.done.append("init")

    def begin_transaction(self) -> None:
        self.done.append("begin")

    def send_arrow(self, topic: str, data: pa.RecordBatch) -> FakeDelivery:
        self.done.append("send")
        return super().send_arrow(topic, data)

    async def commit_transaction(self) -> None:
        self.done.append("commit")
        if self.done.count("commit") == self.failing:
            raise ProducerFencedError("another one came")


def perf_in_transactions(monkeypatch: pytest.MonkeyPatch, *options: str) -> tuple[Result, Any]:
    monkeypatch.setattr(client, "AsyncProducer", TransactionalProducer)
    monkeypatch.setattr(perf, "settings_for", lambda *_: {})
    monkeypatch.setattr(perf, "check_reachable", lambda _: None)
    common = ["--topic", "t", "--num-records", "3072", "--record-size", "1024", "--json"]
    result = runner.invoke(app, ["perf", "produce", *common, *options])
    return result, TransactionalProducer.made.pop()


def test_transactions_last_as_long_as_asked_and_the_last_one_is_committed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    result, producer = perf_in_transactions(monkeypatch, "--transactional-id", "me")
    assert result.exit_code == 0, result.stderr
    assert producer.settings["transactional_id"] == "me"
    assert producer.done == ["init", "begin", "send", "send", "send", "commit"], "three seconds"
    commit = perf_runs.Transactions.commit
    monkeypatch.setattr(perf_runs.Transactions, "sent", lambda self, _: commit(self))
    result, producer = perf_in_transactions(monkeypatch, "--transaction-duration-ms", "1")
    assert producer.settings["transactional_id"].startswith("performance-producer-")
    assert producer.done == ["init", *["begin", "send", "commit"] * 3]


def test_a_transaction_that_fails_fails_the_command(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(TransactionalProducer, "failing", 1)
    result, producer = perf_in_transactions(monkeypatch, "--transactional-id", "me")
    assert result.exit_code == 1
    assert "another one came (PRODUCER_FENCED)" in result.stderr
    assert producer.done.count("commit") == 1


def test_e2e_refuses_a_record_that_it_did_not_send() -> None:
    class Sender:
        async def send(self, topic: str, value: bytes) -> None:
            pass

    class Reader:
        async def poll(self, timeout_ms: float) -> list[Any]:
            return [type("Record", (), {"value": b"another"})]

    meter = perf.Meter(5)
    with pytest.raises(CorruptMessageError, match="does someone else write"):
        sender: Any = Sender()
        reader: Any = Reader()
        asyncio.run(perf_runs.end_to_end(sender, reader, "t", 1, 5, 1, meter, str))


def test_settings_of_clients_have_kafka_s_names_and_types() -> None:
    texts = ("acks=1", "linger.ms=0.5", "enable.idempotence=false", "batch.size=1000")
    assert perf.settings_for(AsyncProducer, texts) == {
        "acks": "1",
        "linger_ms": 0.5,
        "enable_idempotence": False,
        "batch_size": 1000,
    }
    assert perf.settings_for(AsyncConsumer, ["check.crcs=true"]) == {"check_crcs": True}
    for wrong, message in (
        ("acks", "not key=value"),
        ("bootstrap.servers=h:1", "no setting"),
        ("connect=x", "no setting"),
        ("batch.size=x", "not a number"),
        ("enable.idempotence=x", "true or false"),
    ):
        with pytest.raises(ConfigError, match=message):
            perf.settings_for(AsyncProducer, [wrong])


def test_payloads_are_the_same_in_each_run_and_of_the_size() -> None:
    first = list(perf_runs.payloads(17, 3))
    assert first == list(perf_runs.payloads(17, 3))
    assert [len(value) for value in first] == [17] * 3
    assert len(set(first)) == 3
