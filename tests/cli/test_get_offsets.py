"""`tidemark get-offsets`: names and times, the requested partitions, and missing ones."""

from __future__ import annotations

import json
from collections.abc import Mapping

import pytest
from typer.testing import CliRunner

from tests.cli.fake_admin import FakeAdmin as PlainFake
from tests.cli.fake_admin import topic
from tidemark.cli import session
from tidemark.cli.get_offsets import asked_of
from tidemark.cli.main import app
from tidemark.client import sync
from tidemark.client.models import OffsetAndTimestamp, OffsetSpec, TopicListing
from tidemark.errors import ConfigError
from tidemark.types import TopicPartition

runner = CliRunner()


class FakeAdmin(PlainFake):
    """An admin of partitions n that end at 10 * n; only partition 1 has a record late enough."""

    def __init__(self) -> None:
        super().__init__()
        self.topics = {
            name: topic(name, ((4,), (4,), 4), ((5,), (5,), 5)) for name in ("flights", "ships")
        }
        self.asked: list[tuple[dict[TopicPartition, int], bool]] = []

    def list_topics(self, *, include_internal: bool = False) -> list[TopicListing]:
        return [TopicListing(t.name, t.topic_id, 2, 1) for t in self.topics.values()]

    def list_offsets(
        self, wanted: Mapping[TopicPartition, int], *, read_committed: bool = False
    ) -> dict[TopicPartition, OffsetAndTimestamp | None]:
        self.asked.append((dict(wanted), read_committed))
        return {
            p: OffsetAndTimestamp(10 * p.partition, -1 if asked < 0 else asked + 5, 0)
            if asked < 0 or p.partition
            else None
            for p, asked in wanted.items()
        }


@pytest.fixture
def admin(monkeypatch: pytest.MonkeyPatch) -> FakeAdmin:
    fake = FakeAdmin()
    monkeypatch.setattr(sync, "Admin", fake)
    monkeypatch.setattr(session, "check_reachable", lambda _: None)
    return fake


def test_all_partitions_end_where_the_high_watermark_is(admin: FakeAdmin) -> None:
    lines = runner.invoke(app, ["get-offsets"]).stdout.splitlines()
    assert [line.split("\t") for line in lines] == [
        ["PARTITION", "OFFSET", "TIMESTAMP"],
        ["flights-0", "0", "none"],
        ["flights-1", "10", "none"],
        ["ships-0", "0", "none"],
        ["ships-1", "10", "none"],
    ]
    assert set(admin.asked[0][0].values()) == {OffsetSpec.LATEST}
    assert admin.asked[0][1] is False


def test_a_time_finds_records_and_tells_where_there_is_none(admin: FakeAdmin) -> None:
    result = runner.invoke(app, ["get-offsets", "ships", "--time", "1000", "--json"])
    assert json.loads(result.stdout) == [
        {"topic": "ships", "partition": 0, "offset": None, "timestamp_ms": None},
        {"topic": "ships", "partition": 1, "offset": 10, "timestamp_ms": 1005},
    ]


def test_partitions_may_be_named_alone(admin: FakeAdmin) -> None:
    options = ["--topic-partition", "flights-1", "--time", "max-timestamp", "--read-committed"]
    assert runner.invoke(app, ["get-offsets", *options]).exit_code == 0
    assert admin.asked == [({TopicPartition("flights", 1): OffsetSpec.MAX_TIMESTAMP}, True)]


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["trains"], "trains"),
        (["--topic-partition", "trains-0"], "trains"),
        (["--topic-partition", "ships-2"], "there is no partition ships-2"),
        (["--topic-partition", "ships"], "write it as TOPIC-NUMBER"),
    ],
)
def test_what_is_not_there_is_told_at_once(admin: FakeAdmin, options: list[str], said: str) -> None:
    result = runner.invoke(app, ["get-offsets", *options])
    assert result.exit_code == 1
    assert said in result.stderr
    assert admin.asked == []


@pytest.mark.parametrize(
    ("text", "asked"),
    [
        ("earliest-local", -4),
        ("LATEST_TIERED", -5),
        ("earliest-pending-upload", -6),
        ("0", 0),
        ("1700000000000", 1_700_000_000_000),
        ("2026-11-21T08:00:00Z", 1_795_248_000_000),
        ("2026-11-21T08:00:00.250+00:00", 1_795_248_000_250),
    ],
)
def test_a_time_is_a_name_milliseconds_or_a_date(text: str, asked: int) -> None:
    assert asked_of(text) == asked


@pytest.mark.parametrize("text", ["", "-7", "soon", "1_000", "2026-13-01"])
def test_what_is_no_time_is_refused_with_what_is_one(text: str) -> None:
    with pytest.raises(ConfigError, match="earliest-pending-upload, ms, or a time"):
        asked_of(text)
