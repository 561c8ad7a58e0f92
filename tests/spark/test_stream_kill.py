"""SIGKILL of a streaming query's driver at each point of a batch, and of a leader, on processes."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.spark.killed_driver import POINTS
from tidemark.cli.local_cluster import LocalCluster
from tidemark.client import Admin, NewTopic, Producer

pytestmark = [
    pytest.mark.soak,
    pytest.mark.spark,
    pytest.mark.timeout(900),
    pytest.mark.skipif("TIDEMARK_SOAK" not in os.environ, reason="scripts/soak runs it"),
]

PARTITIONS, EACH = 2, 450
SETTINGS = {"broker.session.timeout.ms": "3000", "broker.heartbeat.interval.ms": "500"}


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[LocalCluster]:
    (tmp_path / "cluster").mkdir()
    with LocalCluster(
        tmp_path / "cluster", controllers=1, brokers=3, overrides=SETTINGS
    ) as cluster:
        cluster.wait_ready(60)
        with Admin(cluster.bootstrap_servers) as admin:
            admin.create_topics([NewTopic("t", PARTITIONS, 3)])
        with Producer(cluster.bootstrap_servers, acks="all", linger_ms=0) as producer:
            for number in range(EACH):
                for partition in range(PARTITIONS):
                    producer.send("t", b"%d" % number, partition=partition).result(30)
        yield cluster


def drive(cluster: LocalCluster, directory: Path, point: str) -> int:
    """The exit status of a driver that dies at `point`; it has a process group of its own."""
    command = [sys.executable, "-m", "tests.spark.killed_driver"]
    command += [cluster.bootstrap_servers, str(directory), point]
    environment = os.environ | {"PYSPARK_PYTHON": sys.executable, "SPARK_LOCAL_IP": "127.0.0.1"}
    done = subprocess.run(
        command, env=environment, start_new_session=True, capture_output=True, timeout=200
    )
    if done.returncode not in (0, -9):
        raise AssertionError(done.stderr.decode()[-3000:])
    return done.returncode


def test_each_row_comes_once_and_a_repeated_batch_has_the_same_rows(
    cluster: LocalCluster, tmp_path: Path
) -> None:
    for point in POINTS:
        assert drive(cluster, tmp_path, point) == -9, point
    with Admin(cluster.bootstrap_servers) as admin:
        leader = admin.describe_topics(["t"])["t"].partitions[0].leader
        assert leader is not None
    cluster.kill(leader)
    assert drive(cluster, tmp_path, "none") == 0
    batches: dict[int, set[str]] = {}
    files = sorted((tmp_path / "out").iterdir())
    for file in files:
        rows = file.read_text()
        number = int(file.name.partition("-")[0])
        assert len(set(rows.splitlines())) == len(rows.splitlines()), "a row twice in a batch"
        batches.setdefault(number, set()).add("".join(sorted(rows.splitlines(True))))
    assert all(len(forms) == 1 for forms in batches.values()), "a repetition with other rows"
    assert len(files) > len(batches), "no batch was repeated"
    found = sorted(row for (form,) in batches.values() for row in form.splitlines())
    assert found == sorted(f"{p} {o}" for p in range(PARTITIONS) for o in range(EACH))
