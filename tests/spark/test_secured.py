"""The source, the sink and jobs over TLS with SCRAM logins, on a secured cluster with ACLs."""

from __future__ import annotations

import contextlib
import io
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from tests.e2e.test_security import SECONDS, Secured, allow, until
from tidemark.cli.main import app
from tidemark.client import Consumer, Producer
from tidemark.client.models import NewTopic
from tidemark.security import acls
from tidemark.spark import take_snapshot
from tidemark.spark.versions import limits
from tidemark.types import TopicPartition

pytestmark = pytest.mark.spark

PASSWORD = "correct horse"
SINKS = "tidemark-sink-"
SETTINGS = (
    "transaction.state.log.replication.factor=2",
    "transaction.state.log.num.partitions=1",
    "transaction.state.log.min.isr=1",
)


@pytest.fixture(scope="module")
def secured(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Secured]:
    """Topics with 40 records in flights; ann may use those, and sinks."""
    cluster = Secured(tmp_path_factory.mktemp("secured-spark"), *SETTINGS)
    try:
        cluster.start(1)
        cluster.start(2)
        with cluster.admin(cluster.by_certificate("admin"), "CERTS") as admin:
            until(lambda: len(admin.describe_cluster().brokers) == 2)
            names = ("flights", "flights-late", "flights-copy")
            topics = [NewTopic(name, 2, 2) for name in names]
            until(lambda: bool(admin.create_topics(topics)))
            admin.security.set_scram_password("ann", PASSWORD)
            wanted = [(acls.TOPIC, "flights"), *((kind, SINKS) for kind in _OF_SINKS)]
            admin.security.create_acls(
                [
                    allow(kind, name, acls.ALL, "User:ann", pattern=acls.PREFIXED)
                    for kind, name in wanted
                ]
            )
            until(lambda: len(admin.security.describe_acls()) == len(wanted))
        with Producer(cluster.at("USERS"), security=ann(cluster)) as producer:
            done = [producer.send("flights", b"%d" % n, partition=n % 2) for n in range(40)]
            assert len([each.result(SECONDS) for each in done]) == 40
        yield cluster
    finally:
        cluster.stop()


_OF_SINKS = (acls.TOPIC, acls.GROUP, acls.TRANSACTIONAL_ID)


def ann(secured: Secured) -> dict[str, str]:
    return secured.by_password("ann", PASSWORD)


def options(secured: Secured, prefix: str = "kafka.") -> dict[str, str]:
    given = {"bootstrap.servers": secured.at("USERS")} | ann(secured)
    return {prefix + name: value for name, value in given.items()}


def settings_file(secured: Secured, path: Path) -> Path:
    path.write_text("".join(f"{name}={value}\n" for name, value in ann(secured).items()))
    return path


def values(secured: Secured, topic: str) -> list[int]:
    """The committed values of a topic."""
    partitions = [TopicPartition(topic, number) for number in range(2)]
    found: list[int] = []
    with Consumer(
        secured.at("USERS"),
        security=ann(secured),
        isolation_level="read_committed",
        auto_offset_reset="earliest",
    ) as consumer:
        consumer.assign(partitions)
        ends = consumer.end_offsets(partitions)
        while any(consumer.position(tp) < ends[tp] for tp in partitions):
            found += [int(record.value or b"") for record in consumer.poll(1_000)]
    return sorted(found)


def test_a_batch_and_its_plan_tell_no_secret(spark: Any, secured: Secured, tmp_path: Path) -> None:
    reader = spark.read.format("tidemark").options(**options(secured))
    rows = reader.option("subscribe", "flights").load()
    assert sorted(int(row.value) for row in rows.select("value").collect()) == list(range(40))
    told = io.StringIO()
    with contextlib.redirect_stdout(told):
        rows.explain("extended")
    assert "tidemark" in told.getvalue() and PASSWORD not in told.getvalue()
    path = str(tmp_path / "plan.json")
    with take_snapshot(path, options(secured) | {"subscribe": "flights"}):
        again = spark.read.format("tidemark").options(**options(secured))
        assert again.option("snapshot", path).load().count() == 40
    assert PASSWORD not in Path(path).read_text()


def test_a_login_that_is_wrong_is_told_and_the_password_is_not(
    spark: Any, secured: Secured
) -> None:
    wrong = options(secured) | {"kafka.sasl.password": "pssst"}
    rows = spark.read.format("tidemark").options(**wrong).option("subscribe", "flights").load()
    with pytest.raises(Exception, match="SaslAuthenticationError") as raised:
        rows.count()
    assert "pssst" not in str(raised.value)


def test_a_stream_writes_each_batch_once(spark: Any, secured: Secured, tmp_path: Path) -> None:
    """Also where its checkpoint has lost the last commit, so that the batch is made again."""
    checkpoint = tmp_path / "checkpoint"
    limit = {"maxBytesPerTrigger": "1000000"} if limits else {}

    def run() -> Any:
        rows = spark.readStream.format("tidemark").options(**options(secured, ""))
        rows = rows.option("subscribe", "flights").option("columns", "value").options(**limit)
        rows = rows.option("commitGroupId", f"{SINKS}watched").load()
        writing = rows.writeStream.format("tidemark").options(**options(secured))
        writing = writing.option("topic", "flights-late").option("checkpointLocation", checkpoint)
        query = writing.trigger(availableNow=True).start()
        query.awaitTermination()
        return query

    assert PASSWORD not in str([progress.json for progress in run().recentProgress])
    assert values(secured, "flights-late") == list(range(40))
    with secured.admin(ann(secured)) as admin:
        until(lambda: bool(admin.groups.offsets(f"{SINKS}watched")))
    (checkpoint / "commits" / "0").unlink()
    for crc in (checkpoint / "commits").glob(".*"):
        crc.unlink()
    run()
    assert values(secured, "flights-late") == list(range(40))


def test_a_table_names_a_file_of_settings(spark: Any, secured: Secured, tmp_path: Path) -> None:
    path = settings_file(secured, tmp_path / "ann.properties")
    given = f"'bootstrap.servers' '{secured.at('USERS')}', subscribe 'flights'"
    with pytest.raises(Exception, match=r"sasl.password would be in the catalog"):
        shown = ", ".join(f"'{name}' '{value}'" for name, value in ann(secured).items())
        spark.sql(f"CREATE TABLE secured USING tidemark OPTIONS ({given}, {shown})")
    spark.sql(f"CREATE TABLE secured USING tidemark OPTIONS ({given}, commandConfig '{path}')")
    try:
        assert spark.sql("SELECT count(*) FROM secured").first()[0] == 40
    finally:
        spark.sql("DROP TABLE secured")


def test_a_job_takes_the_settings_of_its_command(
    spark: Any, secured: Secured, tmp_path: Path
) -> None:
    path = str(settings_file(secured, tmp_path / "ann.properties"))
    servers, state = secured.at("USERS"), str(tmp_path / "state")
    mirror = ["--command-config", path, "spark", "run", "mirror", "flights", "--verify", "--state"]
    mirror += [state, "--bootstrap-server", servers, "--to-topic", "flights-copy"]
    mirror += ["--to-bootstrap-server", servers]
    refused = CliRunner().invoke(app, mirror)
    assert "--to-bootstrap-server needs --to-command-config" in refused.output
    done = CliRunner().invoke(app, [*mirror, "--to-command-config", path])
    assert done.exit_code == 0, done.output
    assert values(secured, "flights-copy") == list(range(40))
    assert PASSWORD not in done.output
    assert not any(
        PASSWORD in each.read_text(errors="replace")
        for each in Path(state).rglob("*")
        if each.is_file()
    )
