"""Three brokers of Apache Kafka with its perf tools, beside three of Tidemark with `tidemark perf`.

The ceiling of each figure is Kafka's, in the same run. More than 100 % of records/s, and less of
latencies, is for Tidemark. Both have one controller, three brokers, RF 3, and clients with
their own defaults besides acks=all. Kafka's jars are those of `KAFKA_HOME`, or Maven gets them.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tidemark.cli.local_cluster import LocalCluster, free_ports
from tidemark.client import Admin, NewTopic

VERSION = os.environ.get("BENCH_KAFKA_VERSION", "4.3.0")
CACHE = Path.home() / ".cache" / "tidemark" / f"kafka-{VERSION}"
PARTITIONS = 6
SIZES = {100: 2_000_000, 1_000: 400_000}  # bytes of a record: records
PACED, PACED_S = 1_000, 10
CLUSTER_ID = "AAAAAAAAAAAAAAAAAAAAAQ"
_POM = """<project xmlns="http://maven.apache.org/POM/4.0.0"><modelVersion>4.0.0</modelVersion>
<groupId>peer</groupId><artifactId>peer</artifactId><version>1</version><dependencies>
<dependency><groupId>org.apache.kafka</groupId><artifactId>kafka_2.13</artifactId>
<version>{version}</version></dependency>
<dependency><groupId>org.apache.kafka</groupId><artifactId>kafka-tools</artifactId>
<version>{version}</version></dependency></dependencies></project>"""
_RATE = re.compile(r"([\d.]+) records/sec")
_LATENCY = re.compile(r"([\d.]+) ms (50|99)th")
Row = dict[str, Any]


def jars() -> str:
    """The class path of Kafka. Raises RuntimeError if it cannot be had."""
    home = os.environ.get("KAFKA_HOME")
    return f"{home}/libs/*" if home else f"{fetched(CACHE, _POM.format(version=VERSION))}/*"


def fetched(cache: Path, pom: str) -> Path:
    """The directory with the dependencies of a project, which Maven gets once."""
    if not (cache / "libs").is_dir():
        if shutil.which("mvn") is None:
            raise RuntimeError("set KAFKA_HOME to a Kafka distribution, or install Maven")
        cache.mkdir(parents=True, exist_ok=True)
        (cache / "pom.xml").write_text(pom)
        into = f"-DoutputDirectory={cache / 'partial'}"
        command = [
            "mvn",
            "-q",
            "-B",
            "dependency:copy-dependencies",
            into,
            "-DincludeScope=runtime",
        ]
        subprocess.run(command, cwd=cache, check=True)
        (cache / "partial").rename(cache / "libs")
    return cache / "libs"


def _java(main: str, *arguments: str, heap: str = "512m") -> list[str]:
    return ["java", f"-Xmx{heap}", "-cp", jars(), main, *arguments]


class Kafka:
    """A controller and brokers, three unless told otherwise; a context manager."""

    def __init__(self, directory: Path, brokers: int = 3) -> None:
        self._directory = directory
        self._controller, *self._brokers = free_ports(1 + brokers)
        self._processes: list[subprocess.Popen[bytes]] = []
        self.servers = ",".join(f"127.0.0.1:{port}" for port in self._brokers)

    def __enter__(self) -> Kafka:
        for number in range(1 + len(self._brokers)):
            path = self._settings(number)
            format_it = _java("kafka.tools.StorageTool", "format", "-t", CLUSTER_ID, "-c", path)
            subprocess.run(format_it, check=True, capture_output=True)
            with (self._directory / f"{number}.out").open("wb") as output:
                command = _java("kafka.Kafka", path, heap="1g")
                process = subprocess.Popen(command, stdout=output, stderr=subprocess.STDOUT)
            self._processes.append(process)
        return self

    def __exit__(self, *_: object) -> None:
        for process in reversed(self._processes):  # brokers hand over to a controller that runs
            process.terminate()
            process.wait(60)

    def _settings(self, number: int) -> str:
        role = "broker" if number else "controller"
        port = self._brokers[number - 1] if number else self._controller
        name = "PLAINTEXT" if number else "CONTROLLER"
        path = self._directory / f"{number}.properties"
        path.write_text(
            f"process.roles={role}\nnode.id={number}\nlisteners={name}://127.0.0.1:{port}\n"
            f"controller.quorum.voters=0@127.0.0.1:{self._controller}\n"
            "controller.listener.names=CONTROLLER\n"
            "listener.security.protocol.map=PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT\n"
            f"log.dirs={self._directory / str(number)}\n"
        )
        return str(path)

    def create(self, topic: str, partitions: int = PARTITIONS) -> None:
        """Creates a topic, as soon as all brokers are there."""
        replicas = str(len(self._brokers))
        sizes = ("--partitions", str(partitions), "--replication-factor", replicas)
        tool = "org.apache.kafka.tools.TopicCommand"
        command = _java(tool, "--bootstrap-server", self.servers, "--create", "--topic", topic)
        until = time.monotonic() + 60
        while subprocess.run([*command, *sizes], capture_output=True).returncode:
            if time.monotonic() > until:
                raise RuntimeError(f"Kafka does not create {topic}: see {self._directory}")

    def produce(self, topic: str, count: int, size: int, rate: int, *props: str) -> str:
        return _output(
            _java(
                "org.apache.kafka.tools.ProducerPerformance",
                *("--topic", topic, "--num-records", str(count), "--record-size", str(size)),
                *("--throughput", str(rate), "--producer-props", "acks=all"),
                *(f"bootstrap.servers={self.servers}", *props),
            )
        )

    def consume(self, topic: str, count: int) -> float:
        """Records a second, without the time to join a group."""
        tool = "org.apache.kafka.tools.ConsumerPerformance"
        arguments = ("--topic", topic, "--messages", str(count))
        text = _output(_java(tool, *arguments, "--bootstrap-server", self.servers))
        return float(text.strip().splitlines()[-1].split(",")[-1])


class Tidemark:
    """The same of a local cluster."""

    def __init__(self, cluster: LocalCluster) -> None:
        self.servers = cluster.bootstrap_servers

    def create(self, topic: str) -> None:
        with Admin(self.servers) as admin:
            admin.create_topics([NewTopic(topic, PARTITIONS, 3)])
            admin.wait_until_topics_known([topic])

    def produce(self, topic: str, count: int, size: int, rate: int) -> str:
        return self._perf(
            *("produce", "--topic", topic, "--num-records", str(count)),
            *("--record-size", str(size), "--throughput", str(rate)),
            *("--producer-property", "acks=all"),
        )

    def consume(self, topic: str, count: int) -> float:
        return _rate(self._perf("consume", "--topic", topic, "--num-records", str(count)))

    def _perf(self, *arguments: str) -> str:
        tool = [sys.executable, "-m", "tidemark.cli.main", "perf"]
        return _output([*tool, *arguments, "--bootstrap-server", self.servers])


def _output(command: Sequence[str]) -> str:
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        raise RuntimeError(f"{' '.join(command)}: {done.stderr[-500:]}")
    return done.stdout


def _rate(text: str) -> float:
    return float(_RATE.findall(text)[-1])


def _latencies(text: str) -> dict[str, float]:
    return {f"p{percent}": float(value) for value, percent in _LATENCY.findall(text)[-2:]}


def _measured(side: Kafka | Tidemark) -> Iterator[tuple[str, float, str]]:
    """Name, value and unit of each figure."""
    for size, count in SIZES.items():
        topic = f"perf-{size}"
        side.create(topic)
        side.produce(topic, count // 4, size, -1)  # warm
        yield f"produce acks=all RF 3, {size} B", _rate(side.produce(topic, count, size, -1)), "/s"
        yield f"consume, {size} B", side.consume(topic, count), "/s"
    side.create("paced")
    paced = _latencies(side.produce("paced", PACED * PACED_S, 100, PACED))
    for name, value in paced.items():
        yield f"produce of {PACED} records/s, {name}", value, "ms"


@contextmanager
def _tidemark(directory: Path) -> Iterator[Tidemark]:
    with LocalCluster(directory, controllers=1, brokers=3) as cluster:
        cluster.wait_ready(60)
        yield Tidemark(cluster)


def run() -> list[Row]:
    """One side after the other: they share the machine."""
    with tempfile.TemporaryDirectory(prefix="bench-peer-") as path:
        with _tidemark(Path(path) / "tidemark") as side:
            ours = list(_measured(side))
        (Path(path) / "kafka").mkdir()
        with Kafka(Path(path) / "kafka") as kafka:
            theirs = {name: value for name, value, _ in _measured(kafka)}
    return [
        {
            "name": f"beside Kafka {VERSION}: {name}",
            "value": value,
            "unit": unit,
            "ceiling": theirs[name],
            "ratio": value / theirs[name],
        }
        for name, value, unit in ours
    ]
