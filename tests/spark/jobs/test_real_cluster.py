"""Jobs that write to topics: a real cluster, a real Spark, and drivers that die between steps."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from tidemark.cli.local_cluster import LocalCluster
from tidemark.cli.main import app
from tidemark.client import Admin, Consumer, NewTopic, OffsetAndMetadata, Producer
from tidemark.errors import ConfigError
from tidemark.spark.jobs import copying, importing
from tidemark.spark.jobs.copying import Copied, Copy, copy
from tidemark.spark.jobs.export import export
from tidemark.spark.jobs.importing import Import, import_files
from tidemark.spark.jobs.journal import Journal
from tidemark.spark.jobs.reading import Source
from tidemark.spark.jobs.running import CountMismatchError, Progress
from tidemark.spark.jobs.target import Target, write
from tidemark.types import TopicPartition

pytestmark = pytest.mark.spark

PARTITIONS = 2
SETTINGS = {"offsets.topic.num.partitions": "1", "transaction.state.log.num.partitions": "2"}


class Killed(BaseException):
    """The end of the driver, in the middle of a run."""


@pytest.fixture(scope="module")
def servers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """One broker with topics a to h; a has 60 records, and 20 that were aborted."""
    place = tmp_path_factory.mktemp("jobs")
    with LocalCluster(place, controllers=1, brokers=1, overrides=SETTINGS) as cluster:
        cluster.wait_ready()
        with Admin(cluster.bootstrap_servers) as admin:
            admin.create_topics([NewTopic(name, PARTITIONS, 1) for name in "abcdegh"])
        fill(cluster.bootstrap_servers, 0, 40)
        with Producer(cluster.bootstrap_servers, transactional_id="aborts") as producer:
            producer.init_transactions()
            producer.begin_transaction()
            for number in range(20):
                producer.send("a", b"aborted", partition=number % PARTITIONS)
            producer.flush()
            producer.abort_transaction()
        fill(cluster.bootstrap_servers, 40, 20)
        yield cluster.bootstrap_servers


def fill(servers: str, first: int, count: int) -> None:
    with Producer(servers) as producer:
        for number in range(first, first + count):
            producer.send(
                "a",
                None if number % 7 == 0 else f"v{number}".encode(),
                None if number % 5 == 0 else f"k{number}".encode(),
                partition=number % PARTITIONS,
                timestamp_ms=1_000_000 + number,
                headers=(("n", str(number).encode()), ("none", None)) if number % 3 else (),
            )
        producer.flush()


def contents(servers: str, topic: str) -> dict[int, list[Any]]:
    """The committed records of a topic, in order, by partition."""
    found: dict[int, list[Any]] = {number: [] for number in range(PARTITIONS)}
    partitions = [TopicPartition(topic, number) for number in range(PARTITIONS)]
    with Consumer(
        servers, isolation_level="read_committed", auto_offset_reset="earliest"
    ) as consumer:
        consumer.assign(partitions)
        ends = consumer.end_offsets(partitions)
        while any(consumer.position(tp) < ends[tp] for tp in partitions):
            for tp, each in consumer.poll_arrow(timeout_ms=500).items():
                found[tp.partition] += each.select(
                    ["key", "value", "timestamp", "headers"]
                ).to_pylist()
    return found


def killed(patch: pytest.MonkeyPatch, owner: Any, name: str, *, before: bool) -> None:
    """Has the driver die at a call, or when it is done."""
    call = getattr(owner, name)

    def die(*arguments: Any, **named: Any) -> None:
        if not before:
            call(*arguments, **named)
        raise Killed

    patch.setattr(owner, name, die)


def run(spark: Any, job: Copy, directory: Path, **more: Any) -> tuple[Copied, list[Progress]]:
    said: list[Progress] = []
    done = copy(spark, job, str(directory), dry_run=False, report=said.append, **more)
    return done, said


def test_a_killed_mirror_goes_on_and_has_each_record_once_in_order(
    spark: Any, servers: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Killed when the first batch is planned, and when it took effect but has no result yet."""
    job = Copy("mirror", Source(servers, ("a",)), Target(servers, "b"), True, 50, verify=True)
    dry = copy(spark, job, str(tmp_path / "m"), dry_run=True, report=lambda _: None)
    assert dry.is_dry_run and dry.offsets_left > 60 and not (tmp_path / "m").exists()
    for before in (True, False):
        with monkeypatch.context() as patch, pytest.raises(Killed):
            killed(patch, copying, "write", before=before)
            run(spark, job, tmp_path / "m")
    done, _ = run(spark, job, tmp_path / "m")
    assert (done.records_in_all, done.is_verified) == (60, True)
    assert contents(servers, "b") == contents(servers, "a")
    fill(servers, 60, 10)
    done, said = run(spark, job, tmp_path / "m")
    assert (done.records, [each.records for each in said]) == (10, [10])
    assert contents(servers, "b") == contents(servers, "a")
    assert run(spark, job, tmp_path / "m")[0].batches == 0

    with Producer(servers) as producer, monkeypatch.context() as patch:
        producer.send("a", b"more", partition=0).result()

        def disturbed(*arguments: Any) -> None:
            write(*arguments)
            producer.send("b", b"not of the mirror", partition=0).result()

        patch.setattr(copying, "write", disturbed)
        with pytest.raises(CountMismatchError, match="partition 0: 1 records were read, and 2 are"):
            run(spark, job, tmp_path / "m")


def test_a_replay_into_the_same_topic_ends_and_keeps_its_rate(
    spark: Any, servers: str, tmp_path: Path
) -> None:
    """The first run fixes the end, so that later runs do not replay what it wrote."""
    source = Source(servers, ("c",))
    with Producer(servers) as producer:
        for number in range(60):
            producer.send("c", f"v{number}".encode(), f"k{number}".encode())
        producer.flush()
    waits: list[float] = []
    job = Copy("replay", source, Target(servers, "c"), False, 1_000, rate=2, verify=True)
    done, said = run(spark, job, tmp_path / "r", now_s=lambda: 0.0, sleep=waits.append)
    assert (done.records, [each.records for each in said]) == (60, [20, 40, 60])
    assert waits == [10.0, 20.0, 30.0]
    assert run(spark, job, tmp_path / "r")[0].batches == 0
    for rows in contents(servers, "c").values():
        half = len(rows) // 2
        assert [row["key"] for row in rows[:half]] == [row["key"] for row in rows[half:]]


def test_an_import_has_each_file_once_also_of_an_export(
    spark: Any, servers: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    export(
        *(spark, Source(servers, ("c",)), str(tmp_path / "out")),
        batch_records=80,
        dry_run=False,
        report=lambda _: None,
    )
    job = Import(str(tmp_path / "out"), "parquet", Target(servers, "d"), batch_files=2)
    for owner, name, before in ((importing, "write", False), (Journal, "finish", False)):
        with monkeypatch.context() as patch, pytest.raises(Killed):
            killed(patch, owner, name, before=before)
            import_files(spark, job, str(tmp_path / "i"), dry_run=False, report=lambda _: None)
    done = import_files(spark, job, str(tmp_path / "i"), dry_run=False, report=lambda _: None)
    written, there = (
        sorted(str(row) for rows in contents(servers, topic).values() for row in rows)
        for topic in "dc"
    )
    assert written == there and done.records_in_all == len(there) == 120
    assert (
        import_files(
            spark, job, str(tmp_path / "i"), dry_run=True, report=lambda _: None
        ).files_left
        == 0
    )

    rows = tmp_path / "rows"
    rows.mkdir()
    (rows / "one of two.json").write_text('{"carrier":"UA","n":1}\n{"carrier":"AA","n":2}\n')
    job = Import(str(rows), "json", Target(servers, "e"), key="carrier")
    assert (
        import_files(spark, job, str(tmp_path / "j"), dry_run=False, report=lambda _: None).records
        == 2
    )
    found = {row["key"]: row["value"] for each in contents(servers, "e").values() for row in each}
    assert found == {b"UA": b'{"carrier":"UA","n":1}', b"AA": b'{"carrier":"AA","n":2}'}


def test_commands_of_jobs_print_counts_and_say_what_they_would_do(
    spark: Any, servers: str, tmp_path: Path
) -> None:
    def call(*arguments: str, exit_code: int = 0) -> Any:
        given = ["spark", "run", *arguments, "--bootstrap-server", servers, "--json"]
        result = CliRunner().invoke(app, given)
        assert result.exit_code == exit_code, (arguments, result.output)
        return json.loads(result.stdout) if result.stdout else None

    with Producer(servers) as producer:
        for number in range(6):
            producer.send("g", b"v", partition=number % PARTITIONS)
        producer.flush()
    places = ("--to-bootstrap-server", servers, "--state", str(tmp_path / "m"))
    mirror = ("mirror", "g", "--to-topic", "h", *places, "--verify")
    before = call(*mirror, "--dry-run")
    assert (before["is_dry_run"], before["batches"]) == (True, 0)
    done = call(*mirror)
    assert 6 <= done["records"] <= before["offsets_left"] and done["is_verified"]
    assert call(*mirror)["batches"] == 0
    rows = call("stats", "h")["partitions"]
    assert next(row["records"] for row in rows if row["partition"] is None) == done["records"]
    call(*mirror[:-1], "--option", "minPartitions=4", exit_code=1)
    move = ("translate-offsets", "g", "--to-topic", "h", "--group", "watchers", *places)
    call(*move, exit_code=1)  # it has no offset
    with Admin(servers) as admin:
        where = {TopicPartition("g", n): OffsetAndMetadata(2) for n in range(PARTITIONS)}
        admin.groups.alter_offsets("watchers", where)
        wanted = [
            {"partition": n, "offset": 2, "target_offset": 2, "is_exact": True}
            for n in range(PARTITIONS)
        ]
        assert call(*move, "--dry-run") == wanted and set(admin.groups.offsets("watchers")) == set(
            where
        )
        assert call(*move) == wanted
        there = {TopicPartition("h", n): OffsetAndMetadata(2) for n in range(PARTITIONS)}
        found = admin.groups.offsets("watchers")
        assert {tp: found[tp].offset for tp in there} == dict.fromkeys(there, 2)
    call(*move[:-1], str(tmp_path / "none"), exit_code=1)


def test_a_mirror_to_itself_or_to_fewer_partitions_is_refused(
    spark: Any, servers: str, tmp_path: Path
) -> None:
    source = Source(servers, ("a",))
    with pytest.raises(ConfigError, match="mirrored to itself"):
        run(spark, Copy("mirror", source, Target(servers, "a"), True, 50), tmp_path / "x")
    with Admin(servers) as admin:
        admin.create_topics([NewTopic("narrow", 1, 1)])
    with pytest.raises(ConfigError, match="a has 2 partitions and narrow has 1"):
        run(spark, Copy("mirror", source, Target(servers, "narrow"), True, 50), tmp_path / "y")
    with contextlib.suppress(FileNotFoundError):
        assert not list((tmp_path / "y").iterdir())
