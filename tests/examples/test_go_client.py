"""examples/go-client, built with `go build` alone, against three brokers of which one is killed."""

from __future__ import annotations

import shutil
import subprocess
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tidemark.cli.local_cluster import LocalCluster
from tidemark.client import Admin, Consumer
from tidemark.records import partition_for_key
from tidemark.types import TopicPartition

SOURCE = Path(__file__).parents[2] / "examples" / "go-client"
SETTINGS = {"broker.session.timeout.ms": "3000", "broker.heartbeat.interval.ms": "500"}
PARTITIONS = 3
HALF = 1000
ACKED_BEFORE_THE_KILL = 200


@pytest.fixture(scope="module")
def binary(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The client; skips without a Go toolchain, fails if there is one and it can not build."""
    go = shutil.which("go")
    if go is None:
        pytest.skip("no Go toolchain")
    built = tmp_path_factory.mktemp("go") / "go-client"
    build = ["build", "-buildvcs=false", "-o", str(built), "."]
    for arguments in (build, ["vet", "./..."], ["test", "./client"]):
        done = subprocess.run([go, *arguments], cwd=SOURCE, capture_output=True, text=True)
        assert done.returncode == 0, f"go {' '.join(arguments)}\n{done.stdout}{done.stderr}"
    return built


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory, binary: Path) -> Iterator[LocalCluster]:
    directory = tmp_path_factory.mktemp("cluster")
    with LocalCluster(directory, controllers=1, brokers=3, overrides=SETTINGS) as cluster:
        cluster.wait_ready(60)
        yield cluster


def run(binary: Path, cluster: LocalCluster, *arguments: str, lines: str = "") -> list[list[str]]:
    """The fields of each line that the client prints."""
    command = [str(binary), "-bootstrap", cluster.bootstrap_servers, *arguments]
    done = subprocess.run(command, input=lines, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    return [line.split("\t") for line in done.stdout.splitlines()]


def create(binary: Path, cluster: LocalCluster, topic: str) -> None:
    options = ["-partitions", str(PARTITIONS), "-replicas", "3", "-min-insync-replicas", "2"]
    run(binary, cluster, "create", *options, topic)


def test_keyed_records_are_where_other_clients_look_for_them(
    binary: Path, cluster: LocalCluster
) -> None:
    create(binary, cluster, "keyed")
    create(binary, cluster, "keyed")  # again is no error
    lines = "".join(f"{number % 7}={number}\n" for number in range(70))
    acked = run(binary, cluster, "produce", "-key-separator", "=", "keyed", lines=lines)
    read = run(binary, cluster, "consume", "keyed")
    assert sorted([row[0], row[1], row[3]] for row in read) == sorted(acked)
    assert len(read) == 70
    for partition, _, key, value in read:
        assert int(partition) == partition_for_key(key.encode(), PARTITIONS)
        assert int(value) % 7 == int(key)
    with Consumer(cluster.bootstrap_servers) as consumer:
        consumer.assign([TopicPartition("keyed", number) for number in range(PARTITIONS)])
        consumer.seek_to_beginning()
        seen: set[tuple[int, int, bytes | None, bytes | None]] = set()
        while len(seen) < 70:
            records = consumer.poll(timeout_ms=20_000)
            assert len(records), f"nothing came for 20 s with {len(seen)} read"
            seen |= {(r.partition, r.offset, r.key, r.value) for r in records}
    assert seen == {(int(p), int(o), key.encode(), value.encode()) for p, o, key, value in read}


def _produce_around_a_kill(
    client: subprocess.Popen[str], kill: Callable[[], None]
) -> list[list[str]]:
    """Lines that were acknowledged: half of them are handed over before the kill, which finds most
    of those on their way."""
    assert client.stdin is not None
    assert client.stdout is not None
    assert client.stderr is not None
    client.stdin.write("".join(f"{number}\n" for number in range(HALF)))
    client.stdin.flush()
    acked = [client.stdout.readline().split() for _ in range(ACKED_BEFORE_THE_KILL)]
    kill()
    client.stdin.write("".join(f"{number}\n" for number in range(HALF, 2 * HALF)))
    client.stdin.close()
    acked += [line.split() for line in client.stdout]
    assert client.wait() == 0, client.stderr.read()
    return acked


def test_every_acknowledged_line_is_read_once_though_its_leader_was_killed(
    binary: Path, cluster: LocalCluster
) -> None:
    create(binary, cluster, "killed")
    with Admin(cluster.bootstrap_servers) as admin:
        admin.wait_until_topics_known(["killed"])
        leader = admin.describe_topics(["killed"])["killed"].partitions[0].leader
    assert leader is not None
    command = [str(binary), "-bootstrap", cluster.bootstrap_servers, "produce", "killed"]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as client:
        watchdog = threading.Timer(120, client.kill)
        watchdog.start()
        try:
            acked = _produce_around_a_kill(client, lambda: cluster.kill(leader))
        finally:
            watchdog.cancel()
            client.kill()
    assert sorted(int(value) for _, _, value in acked) == list(range(2 * HALF))
    everything = run(binary, cluster, "consume", "killed")
    where = {(partition, offset): value for partition, offset, _, value in everything}
    assert all(where[partition, offset] == value for partition, offset, value in acked)
    # At least once: a request whose answer was lost is there twice. -once leaves out the second.
    once = run(binary, cluster, "consume", "-once", "killed")
    assert sorted(int(value) for _, _, _, value in once) == list(range(2 * HALF))
    for number in map(str, range(PARTITIONS)):
        values = [int(value) for partition, _, _, value in once if partition == number]
        assert values == sorted(values)
    cluster.restart(leader)
    cluster.wait_ready(60)
