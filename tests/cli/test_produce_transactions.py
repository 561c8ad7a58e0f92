"""`tidemark produce --transactional-id` and `tidemark transactions` on whole brokers, in virtual
time."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from tests.node.coordination.stubs import SETTINGS
from tidemark import client
from tidemark.cli import session
from tidemark.cli.main import app
from tidemark.client import sync
from tidemark.client.models import OffsetSpec
from tidemark.records.arrow import warm_up
from tidemark.testing import Cluster
from tidemark.types import TopicPartition

runner = CliRunner()
PARTITION = TopicPartition("events", 0)


@pytest.fixture(scope="module")
def running() -> Iterator[Cluster]:
    warm_up()
    assert all((client.Admin, client.Consumer, client.Producer)), "found before they are replaced"
    with Cluster(seed=2, brokers=3, settings=SETTINGS) as cluster:
        yield cluster


@pytest.fixture
def cluster(running: Cluster, monkeypatch: pytest.MonkeyPatch) -> Iterator[Cluster]:
    """Commands make clients of the cluster, which has an empty topic."""
    for name, make in (
        ("Producer", running.producer),
        ("Consumer", running.consumer),
        ("Admin", running.admin),
    ):
        monkeypatch.setattr(sync, name, lambda _, make=make, **settings: make(**settings))
    monkeypatch.setattr(session, "check_reachable", lambda _: None)
    running.create_topic("events")
    yield running
    with running.admin() as admin:
        admin.delete_topics(["events"])


def run(*arguments: str, text: str = "", code: int = 0) -> Result:
    result = runner.invoke(app, [*arguments], input=text, prog_name="tidemark")
    assert result.exit_code == code, result.output
    return result


def produce(*options: str, text: str, code: int = 0) -> Result:
    return run("produce", "events", "--transactional-id", "shell", *options, text=text, code=code)


def values(cluster: Cluster, level: str = "read_committed") -> list[str]:
    with cluster.consumer(isolation_level=level) as consumer:
        consumer.assign([PARTITION])
        consumer.seek_to_beginning()
        found: list[str] = []
        while len(records := consumer.poll(2_000)):
            found += [(record.value or b"").decode() for record in records]
        return found


def end(cluster: Cluster, *, committed: bool = True) -> int:
    with cluster.admin() as admin:
        spec = {PARTITION: OffsetSpec.LATEST}
        found = admin.list_offsets(spec, read_committed=committed)[PARTITION]
    assert found is not None
    return found.offset


def described() -> Any:
    options = ("--transactional-id", "shell", "--json")
    return json.loads(run("transactions", "describe", *options).stdout)


def test_all_lines_are_one_transaction(cluster: Cluster) -> None:
    result = produce("--transaction-timeout-ms", "45000", "--json", text="a\nb\nc\n")
    assert json.loads(result.stdout)["records"] == 3
    assert values(cluster) == ["a", "b", "c"]
    assert end(cluster) == 4, "one marker"
    assert (described()["state"], described()["timeout_ms"]) == ("CompleteCommit", 45_000)
    listed = run("transactions", "list", "--state", "completecommit").stdout
    assert "shell\t" in listed


@pytest.mark.parametrize(("each", "markers"), [(1, 5), (2, 3), (5, 1), (9, 1)])
def test_a_commit_comes_after_so_many_lines_and_at_the_end(
    cluster: Cluster, each: int, markers: int
) -> None:
    produce("--messages-per-transaction", str(each), text="a\nb\nc\nd\ne\n")
    assert values(cluster) == list("abcde")
    assert end(cluster) == 5 + markers


def test_no_lines_are_no_transaction(cluster: Cluster) -> None:
    assert json.loads(produce("--json", text="").stdout)["records"] == 0
    assert end(cluster, committed=False) == 0


def test_a_line_that_can_not_be_sent_aborts_its_transaction_and_no_other(cluster: Cluster) -> None:
    result = produce(
        "--messages-per-transaction", "2", "--key-separator", "=",
        text="k=a\nk=b\nk=c\nwrong\nk=d\n", code=1,
    )  # fmt: skip
    assert "no key separator" in result.stderr
    assert "2 records were committed before an error" in result.stderr
    assert values(cluster) == ["a", "b"]
    assert end(cluster) == end(cluster, committed=False), "nothing is open"
    assert described()["state"] in ("CompleteAbort", "CompleteCommit")
    whole = produce("--key-separator", "=", text="k=e\nwrong\n", code=1)
    assert "0 records were committed" in whole.stderr
    assert values(cluster) == ["a", "b"]
    produce("--key-separator", "=", text="k=f\n")
    assert values(cluster) == ["a", "b", "f"]


def test_a_file_is_sent_in_transactions_too(cluster: Cluster, tmp_path: Path) -> None:
    path = tmp_path / "lines"
    path.write_text("a\nb\n", encoding="utf-8")
    produce("--file", str(path), text="")
    assert values(cluster) == ["a", "b"]


def test_options_of_transactions_need_an_id(cluster: Cluster) -> None:
    for option in ("--messages-per-transaction", "--transaction-timeout-ms"):
        result = run("produce", "events", option, "5", code=1)
        assert "tidemark: transactions need a --transactional-id" in result.stderr
    assert "tidemark: " in produce("--acks", "1", text="a\n", code=1).stderr
    empty = run("produce", "events", "--transactional-id", "", text="a\n", code=1)
    assert "transactional.id=''" in empty.stderr, "as of a variable that is not set"
    assert values(cluster) == []


def test_an_open_transaction_is_seen_and_ended_by_an_operator(cluster: Cluster) -> None:
    with cluster.producer(transactional_id="shell") as producer:
        producer.init_transactions()
        producer.begin_transaction()
        producer.send("events", b"x").result()
        found = described()
        assert (found["state"], found["partitions"]) == (
            "Ongoing",
            [{"topic": "events", "partition": 0}],
        )
        options = ("--topic", "events", "--partition", "0")
        (known,) = json.loads(run("transactions", "describe-producers", *options, "--json").stdout)
        assert (known["producer_id"], known["txn_start_offset"]) == (found["producer_id"], 0)
        refused = run("transactions", "abort", *options, "--start-offset", "0", code=1)
        assert "force-terminate --transactional-id shell" in refused.stderr
        hanging = run("transactions", "find-hanging", "--max-transaction-timeout", "0", "--json")
        assert json.loads(hanging.stdout) == []
        run("transactions", "force-terminate", "--transactional-id", "shell")
        assert values(cluster) == []
        assert end(cluster) == end(cluster, committed=False) == 2
        assert described()["state"] in ("Empty", "CompleteAbort")
