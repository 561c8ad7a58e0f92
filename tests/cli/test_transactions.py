"""`tidemark transactions` over an Admin without a cluster."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from typing import Any

import pytest
from typer.testing import CliRunner

from tests.cli.fake_admin import FakeAdmin, topic
from tidemark.cli import session as session_module
from tidemark.cli import transactions
from tidemark.cli.main import app
from tidemark.client import sync
from tidemark.client.models import (
    HangingTransaction,
    ProducerState,
    TransactionDescription,
    TransactionListing,
)
from tidemark.errors import InvalidTxnStateError, TransactionalIdNotFoundError
from tidemark.types import TopicPartition

NOW_MS = 10_000_000
WHERE = TopicPartition("events", 1)
OPEN = ProducerState(7, 3, 41, NOW_MS - 20 * 60_000, None, 40)
IDLE = ProducerState(8, 0, None, 5, 6, None)

Hanging = list[HangingTransaction]

runner = CliRunner()


class FakeTransactions:
    """Stands for `Admin.transactions`; records the calls that change something."""

    def __init__(self) -> None:
        self.asked: list[Any] = []
        self.changed: list[Any] = []
        self.refusal: Exception | None = None

    def list(self, **filters: Any) -> list[TransactionListing]:
        self.asked.append(filters)
        return [TransactionListing("pay", 4, 7, "Ongoing")]

    def describe(self, transactional_ids: Sequence[str]) -> dict[str, TransactionDescription]:
        if transactional_ids == ["pay"]:
            start_ms, partitions = NOW_MS - 1_500, (WHERE, TopicPartition("logs", 0))
            found = TransactionDescription(
                "pay", 7, 3, "Ongoing", 60_000, start_ms, NOW_MS, partitions
            )
        elif transactional_ids == ["idle"]:
            found = TransactionDescription("idle", 8, 0, "Empty", 60_000, None, NOW_MS, ())
        else:
            raise TransactionalIdNotFoundError(f"there is no transactional id {transactional_ids}")
        return {found.transactional_id: found}

    def describe_producers(
        self, partitions: Iterable[TopicPartition]
    ) -> dict[TopicPartition, tuple[ProducerState, ...]]:
        return {each: (OPEN, IDLE) if each == WHERE else () for each in partitions}

    def abort(self, *arguments: Any, force: bool) -> None:
        if self.refusal is not None and not force:
            raise self.refusal
        self.changed.append((*arguments, force))

    def find_hanging(self, partitions: Iterable[TopicPartition], limit_ms: int) -> Hanging:
        self.asked.append(([*partitions], limit_ms))
        return [HangingTransaction(WHERE, OPEN)]

    def force_terminate(self, transactional_id: str, *, lose_prepared: bool) -> None:
        self.describe([transactional_id])
        self.changed.append((transactional_id, lose_prepared))


class Fake(FakeAdmin):
    def __init__(self) -> None:
        super().__init__()
        self.transactions = FakeTransactions()
        self.add(
            topic("events", ((4, 5), (4, 5), 4), ((5, 6), (5, 6), 5)),
            topic("logs", ((4,), (4,), None)),
            topic("__consumer_offsets", ((6,), (6,), 6)),
            topic("__transaction_state", ((6,), (6,), 6)),
        )


@pytest.fixture
def admin(monkeypatch: pytest.MonkeyPatch) -> Fake:
    fake = Fake()
    monkeypatch.setattr(sync, "Admin", fake)
    monkeypatch.setattr(session_module, "check_reachable", lambda _: None)
    monkeypatch.setattr(transactions, "_now_ms", lambda: NOW_MS)
    return fake


def run(*arguments: str, code: int = 0) -> str:
    result = runner.invoke(app, ["transactions", *arguments], prog_name="tidemark")
    assert result.exit_code == code, result.output
    return result.output


def read(*arguments: str) -> Any:
    return json.loads(run(*arguments, "--json"))


def test_all_filters_of_a_listing_reach_the_brokers(admin: Fake) -> None:
    found = run(
        "list", "--state", "ongoing", "--producer-id", "7", "--duration-filter", "900",
        "--transactional-id-pattern", "pa.*",
    )  # fmt: skip
    assert found.splitlines() == [
        "TRANSACTIONAL ID\tCOORDINATOR\tPRODUCER\tSTATE", "pay\t4\t7\tOngoing"
    ]  # fmt: skip
    assert admin.transactions.asked == [
        {"states": ["ongoing"], "producer_ids": [7], "older_than_ms": 900, "pattern": "pa.*"}
    ]
    assert read("list") == [
        {"transactional_id": "pay", "coordinator_id": 4, "producer_id": 7, "state": "Ongoing"}
    ]
    nothing = {"states": (), "producer_ids": (), "older_than_ms": None, "pattern": ""}
    assert admin.transactions.asked[-1] == nothing


def test_a_transactional_id_is_described_with_or_without_an_open_transaction(admin: Fake) -> None:
    described = read("describe", "--transactional-id", "pay")
    assert described["duration_ms"] == 1_500
    assert described["partitions"][1] == {"topic": "logs", "partition": 0}
    row = run("describe", "--transactional-id", "pay").splitlines()[1]
    assert row == "pay\t7\t3\tOngoing\t60000\t1500\tevents-1,logs-0"
    assert read("describe", "--transactional-id", "idle")["duration_ms"] is None
    assert run("describe", "--transactional-id", "idle").splitlines()[1].endswith("60000\t-\t-")
    error = run("describe", "--transactional-id", "no", code=1)
    assert "(TRANSACTIONAL_ID_NOT_FOUND)" in error


def test_producers_of_a_partition_are_shown_with_dashes_for_what_they_lack(admin: Fake) -> None:
    found = run("describe-producers", "--topic", "events", "--partition", "1").splitlines()
    assert found[1:] == [f"7\t3\t-\t41\t{OPEN.last_timestamp_ms}\t40", "8\t0\t6\t-\t5\t-"]
    (first, second) = read("describe-producers", "--topic", "events", "--partition", "1")
    assert (first["txn_start_offset"], second["txn_start_offset"]) == (40, None)
    assert read("describe-producers", "--topic", "events", "--partition", "0") == []


def test_a_transaction_is_aborted_by_its_start_or_by_its_producer(admin: Fake) -> None:
    partition = ("abort", "--topic", "events", "--partition", "1")
    assert read(*partition, "--start-offset", "40") == {
        "topic": "events", "partition": 1, "producer_id": 7, "producer_epoch": 3,
        "coordinator_epoch": 0,
    }  # fmt: skip
    ids = ("--producer-id", "8", "--producer-epoch", "0", "--coordinator-epoch", "6")
    assert "producer 8 is aborted in events-1" in run(*partition, *ids)
    assert admin.transactions.changed == [(WHERE, 7, 3, 0, False), (WHERE, 8, 0, 6, False)]


@pytest.mark.parametrize(
    "wrong",
    [
        (),
        ("--start-offset", "40", "--producer-id", "7"),
        ("--producer-id", "7", "--producer-epoch", "3"),
        ("--producer-epoch", "3", "--coordinator-epoch", "0"),
    ],
)
def test_an_abort_that_names_no_one_transaction_is_refused(
    admin: Fake, wrong: tuple[str, ...]
) -> None:
    error = run("abort", "--topic", "events", "--partition", "1", *wrong, code=1)
    assert "--coordinator-epoch" in error
    assert admin.transactions.changed == []


def test_an_abort_where_nothing_is_open_says_how_to_look(admin: Fake) -> None:
    error = run("abort", "--topic", "events", "--partition", "1", "--start-offset", "5", code=1)
    assert "(INVALID_TXN_STATE)" in error and "describe-producers --topic events" in error
    assert admin.transactions.changed == []


def test_a_transaction_that_its_coordinator_will_end_is_aborted_by_force_alone(admin: Fake) -> None:
    admin.transactions.refusal = InvalidTxnStateError("its coordinator will end it")
    partition = ("abort", "--topic", "events", "--partition", "1", "--start-offset", "40")
    assert "its coordinator will end it" in run(*partition, code=1)
    assert admin.transactions.changed == []
    run(*partition, "--force")
    assert admin.transactions.changed == [(WHERE, 7, 3, 0, True)]


@pytest.mark.parametrize(
    ("where", "looked_at"),
    [
        ((), ["events-0", "events-1", "__consumer_offsets-0"]),
        (("--broker-id", "5"), ["events-1"]),
        (("--topic", "events"), ["events-0", "events-1"]),
        (("--topic", "events", "--partition", "0"), ["events-0"]),
        (("--topic", "events", "--broker-id", "6"), []),
        (("--topic", "logs", "--partition", "0"), ["logs-0"]),
    ],
)
def test_hanging_transactions_are_looked_for_where_the_options_say(
    admin: Fake, where: tuple[str, ...], looked_at: list[str]
) -> None:
    run("find-hanging", *where, "--max-transaction-timeout", "2")
    ((partitions, limit_ms),) = admin.transactions.asked
    assert sorted(map(str, partitions)) == sorted(looked_at)
    assert limit_ms == 120_000


def test_hanging_transactions_are_shown_as_abort_takes_them(admin: Fake) -> None:
    result = runner.invoke(app, ["transactions", "find-hanging"])
    assert "logs-0 has no leader and is left out" in result.stderr
    row = result.stdout.splitlines()[1]
    assert row == f"events\t1\t7\t3\t-\t40\t{OPEN.last_timestamp_ms}\t20"
    (found,) = json.loads(runner.invoke(app, ["transactions", "find-hanging", "--json"]).stdout)
    assert (found["topic"], found["partition"], found["txn_start_offset"]) == ("events", 1, 40)
    assert "--partition needs --topic" in run("find-hanging", "--partition", "0", code=1)
    unknown = run("find-hanging", "--topic", "events", "--partition", "2", code=1)
    assert "there is no partition events-2" in unknown


def test_a_transactional_id_is_terminated_by_force(admin: Fake) -> None:
    assert "fenced" in run("force-terminate", "--transactional-id", "pay")
    run("force-terminate", "--transactional-id", "pay", "--lose-prepared")
    assert admin.transactions.changed == [("pay", False), ("pay", True)]
    error = run("force-terminate", "--transactional-id", "no", code=1)
    assert "(TRANSACTIONAL_ID_NOT_FOUND)" in error
