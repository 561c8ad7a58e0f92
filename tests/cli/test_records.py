"""Records as text and back: formats, and `produce` and `consume` on whole brokers in virtual
time."""

from __future__ import annotations

import io
import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from typer.testing import CliRunner, Result

from tidemark import client
from tidemark.cli import session
from tidemark.cli.consume import offset_of
from tidemark.cli.main import app
from tidemark.cli.produce import split
from tidemark.cli.record_format import (
    Fields,
    as_json_line,
    by_fields,
    by_format,
    fields_of_json,
    unescape,
)
from tidemark.client import sync
from tidemark.client.models import ConsumerRecord
from tidemark.errors import ConfigError
from tidemark.records.arrow import warm_up
from tidemark.testing import Cluster

runner = CliRunner()
RECORD = ConsumerRecord("t", 1, 2, 3, None, b"\xff\n", (("h", b"x"), ("i", None)))
BYTES = st.none() | st.binary(max_size=9)


def test_bytes_are_shown_as_they_are() -> None:
    assert by_fields([], b"null")(RECORD) == b"\xff\n\n"
    every = ["key", "offset", "headers", "partition", "timestamp"]
    shown = b"Timestamp:3\tPartition:1\tOffset:2\th:x,i:-\t-\t\xff\n\n"
    assert by_fields(every, b"-")(RECORD) == shown
    assert by_fields(["headers"], b"")(RECORD._replace(headers=())) == b"NO_HEADERS\t\xff\n\n"


def test_a_format_has_the_tokens_of_kcat() -> None:
    show = by_format(r"%t/%p@%o %T %k(%K) %s(%S) %h 100%%\t\x00\\", b"-")
    assert show(RECORD) == b"t/1@2 3 -(-1) \xff\n(2) h=x,i=- 100%\t\0\\"
    for wrong in ("%z", "%", r"\q", r"\x1", "%t\\"):
        with pytest.raises(ConfigError, match="unknown"):
            by_format(wrong, b"")


@given(BYTES, BYTES, st.lists(st.tuples(st.text(max_size=3), BYTES)), st.integers(0, 1 << 62))
def test_json_of_a_record_makes_the_same_record(
    key: bytes | None, value: bytes | None, headers: list[tuple[str, bytes | None]], at_ms: int
) -> None:
    line = as_json_line(ConsumerRecord("t", 1, 2, at_ms, key, value, tuple(headers)))
    assert line.count(b"\n") == 1
    assert fields_of_json(line) == Fields(value, key, tuple(headers), at_ms)


@pytest.mark.parametrize(
    "line",
    [
        "{",
        "[]",
        "{}",
        '{"value": 1}',
        '{"value": {"base64": "?"}}',
        '{"value": {"base64": 1}}',
        '{"value": "x", "colour": "red"}',
        '{"value": "x", "timestamp": "now"}',
        '{"value": "x", "headers": ["a"]}',
        '{"value": "x", "headers": 5}',
    ],
)
def test_json_that_is_no_record_is_refused(line: str) -> None:
    with pytest.raises(ConfigError):
        fields_of_json(line.encode())


def test_a_stream_is_split_at_its_delimiter() -> None:
    def parts(data: bytes, delimiter: bytes) -> list[bytes]:
        return list(split(io.BytesIO(data), delimiter))

    assert parts(b"a\r\n\nb\rc", b"\n") == [b"a", b"", b"b\rc"]
    assert parts(b"a\n\0b\0", unescape(r"\0")) == [b"a\n", b"b"]
    long = [bytes([1 + n]) * (n * 9_999) for n in range(20)]
    assert parts(b"--".join(long), b"--") == long, "delimiters across chunks"
    assert parts(b"a\nb\n", b"") == [b"a\nb\n"]
    assert parts(b"", b"\n") == []


def test_offsets_are_names_numbers_or_before_the_end() -> None:
    assert [offset_of(text) for text in (None, "latest", "5", "-10")] == [None, "latest", 5, -10]
    for wrong in ("", "x", "--1", "1.5", "9223372036854775808"):
        with pytest.raises(ConfigError, match="--offset"):
            offset_of(wrong)


@pytest.fixture(scope="module")
def running() -> Iterator[Cluster]:
    warm_up()
    assert all((client.Admin, client.Consumer, client.Producer)), "found before they are replaced"
    with Cluster(seed=5, brokers=1) as cluster:
        yield cluster


@pytest.fixture
def cluster(running: Cluster, monkeypatch: pytest.MonkeyPatch) -> Iterator[Cluster]:
    """Commands make clients of the cluster, which has the empty topic `events`."""
    for name, make in (("Producer", running.producer), ("Consumer", running.consumer)):
        monkeypatch.setattr(sync, name, lambda _, make=make, **settings: make(**settings))
    monkeypatch.setattr(session, "check_reachable", lambda _: None)
    running.create_topic("events", 2)
    yield running
    with running.admin() as admin:
        admin.delete_topics(["events"])


def run(*arguments: str, data: bytes = b"", code: int = 0) -> Result:
    result = runner.invoke(app, [*arguments], input=data, prog_name="tidemark")
    assert result.exit_code == code, result.output
    return result


def consume(*options: str) -> bytes:
    return run("consume", "events", "--timeout", "1", *options).stdout_bytes


def test_binary_goes_through_produce_and_consume_unchanged(cluster: Cluster) -> None:
    data = bytes(range(256)) * 3
    made = run("produce", "events", "--delimiter", "", "--partition", "1", "--json", data=data)
    assert json.loads(made.stdout) == {
        "topic": "events",
        "records": 1,
        "partitions": [{"partition": 1, "records": 1, "first_offset": 0, "last_offset": 0}],
    }
    assert consume("--from-beginning", "-f", "%s") == data


def test_json_of_consume_is_produced_as_the_same_records(cluster: Cluster) -> None:
    options = ("--key-separator", "=", "--header", "of=test", "--timestamp", "77")
    text = b"a=1\nb=-\n\xff=\x00\n"
    run("produce", "events", *options, "--null-marker", "-", data=text)
    before = consume("--from-beginning", "--json")
    run("produce", "events", "--from-json", data=before)

    def told(data: bytes) -> list[str]:
        rows = [json.loads(line) for line in data.splitlines()]
        return sorted(json.dumps([row[name] for name in NAMES]) for row in rows)

    assert len(told(before)) == 3
    assert told(consume("--from-beginning", "--json")) == sorted(2 * told(before))
    assert consume("--from-beginning", "-f", r"%k %S;").count(b"b -1;") == 2


NAMES = ("key", "value", "headers", "timestamp", "partition")


def test_consume_begins_at_an_offset_or_so_many_before_the_end(cluster: Cluster) -> None:
    for partition in ("0", "1"):
        lines = "".join(f"{partition}-{n}\n" for n in range(5)).encode()
        run("produce", "events", "--partition", partition, data=lines)
    assert sorted(consume("--offset", "-2").split()) == [b"0-3", b"0-4", b"1-3", b"1-4"]
    assert consume("--offset", "3", "--partition", "1").split() == [b"1-3", b"1-4"]
    assert len(consume("--offset", "-99").split()) == 10
    assert consume("--offset", "latest") == b""
    assert len(consume("--offset", "earliest", "-n", "4").split()) == 4


def test_several_topics_are_read_together(cluster: Cluster) -> None:
    cluster.create_topic("others")
    run("produce", "events", data=b"x\n")
    run("produce", "others", data=b"y\n")
    both = run("consume", "events", "others", "--from-beginning", "-n", "2", "-f", "%t=%s ")
    assert sorted(both.stdout.split()) == ["events=x", "others=y"]


def test_an_unknown_topic_or_partition_is_told_soon_and_in_one_line(cluster: Cluster) -> None:
    for command in (["consume", "evnets"], ["produce", "evnets"]):
        began_ms = cluster.now_ms
        result = run(*command, data=b"x\n", code=1)
        assert "topic 'evnets' does not exist" in result.stderr
        assert "topics list" in result.stderr
        assert cluster.now_ms - began_ms < 4_000
        began_ms = cluster.now_ms
        run(*command, "--timeout", "0.5", data=b"x\n", code=1)
        assert cluster.now_ms - began_ms < 1_000
    for command in (["consume", "events"], ["produce", "events"]):
        result = run(*command, "--partition", "2", data=b"x\n", code=1)
        assert "events-2 does not exist; events has 2 partitions" in result.stderr


@pytest.mark.parametrize(
    "options",
    [
        ["--from-json", "--key-separator", "="],
        ["--header", "x"],
        ["--timestamp", "soon"],
        ["--timeout", "0"],
        ["--delimiter", r"\q"],
    ],
)
def test_wrong_options_of_produce_are_refused(options: list[str]) -> None:
    assert run("produce", "events", *options, code=1).stderr.startswith("tidemark: ")


def test_wrong_options_of_consume_are_refused() -> None:
    for options in (
        ["--from-beginning", "--offset", "1"],
        ["--format", "%s", "--print-key"],
        ["--group", "g", "--offset", "1"],
    ):
        assert run("consume", "events", *options, code=1).stderr.startswith("tidemark: ")


def test_a_cluster_that_does_not_answer_is_told_by_both(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(session, "_REACH_S", 0)
    for command in ("consume", "produce"):
        result = run(command, "t", "--bootstrap-server", "127.0.0.1:1", data=b"x\n", code=1)
        assert "no node answers" in result.stderr


def test_a_file_that_is_not_there_is_one_line(cluster: Cluster, tmp_path: Path) -> None:
    result = run("produce", "events", "--file", str(tmp_path / "none"), code=1)
    assert "can not read" in result.stderr
