"""The quickstart: a whole cluster on this machine, real data, killed processes, and exact counts.

Three controllers and three brokers run as separate processes. 336,776 flights are produced with
acks=all, while the active controller and a leading broker are killed. Rolled segments move to the
tier. The client and Spark read everything back and compare it with the source. A stream counts
flights by carrier and minute into another topic, while its driver is killed. Exit status 0 only if
every count agrees. Run it by `scripts/quickstart`.
"""

from __future__ import annotations

import argparse
import io
import json
import math
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.json
from quickstart_data import FLIGHTS, Flights, load_flights, same_events, wrong_minutes
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

from tidemark.cli.local_cluster import LocalCluster
from tidemark.client import Admin, Consumer, NewTopic, Producer
from tidemark.client.models import ReplicaDescription
from tidemark.types import TopicPartition

TOPIC = "flights"
MINUTES = "flights-per-minute"
PARTITIONS = 6
KILLED_AFTER_BATCH = 0
LATE_DAYS = 14
CHUNK_ROWS = 4_000
LOOKUP_TEXT, LOOKUP_MS = "2013-07-04T00:00Z", 1_372_896_000_000
TOPIC_CONFIGS = {
    "min.insync.replicas": "2",
    "segment.bytes": str(1 << 20),
    "retention.ms": "-1",
    "remote.storage.enable": "true",
    "local.retention.bytes": str(1 << 20),
    "file.delete.delay.ms": "1000",
}
BROKER_SETTINGS = {
    "broker.session.timeout.ms": "3000",
    "broker.heartbeat.interval.ms": "500",
    "log.retention.check.interval.ms": "1000",
    "remote.log.storage.system.enable": "true",
    "remote.log.manager.task.interval.ms": "1000",
    "remote.log.metadata.topic.num.partitions": "6",
}
console = Console(highlight=False, width=min(shutil.get_terminal_size((110, 40)).columns, 140))


class Mismatch(Exception):
    """A count or a value does not agree; the message names it."""


def check(condition: bool, message: str) -> None:
    """Raises Mismatch unless the condition holds."""
    if not condition:
        raise Mismatch(message)


@contextmanager
def bar(title: str, total: int | None) -> Iterator[Callable[[int], None]]:
    """A progress bar whose yielded function sets the completed amount."""
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
    )
    with Progress(*columns, console=console, transient=True) as progress:
        task = progress.add_task(f"  {title}", total=total)
        yield lambda done: progress.update(task, completed=done)


def wait_until(what: str, deadline_s: float, ready: Callable[[], tuple[int, int]]) -> None:
    """Polls `ready` -> (done, total) until both are equal; raises Mismatch after the deadline."""
    end, done, total = time.monotonic() + deadline_s, 0, 1
    with bar(what, None) as show:
        while time.monotonic() < end:
            done, total = ready()
            show(done)
            if done == total:
                return
            time.sleep(0.25)
    raise Mismatch(f"{what}: {done} of {total} after {deadline_s:.0f} s")


def tier_settings(root: Path) -> tuple[dict[str, str], str]:
    """The remote storage manager's settings and its name: S3 with TIDEMARK_S3_ENDPOINT, else a
    directory.
    """
    endpoint, bucket = os.environ.get("TIDEMARK_S3_ENDPOINT"), os.environ.get("TIDEMARK_S3_BUCKET")
    if endpoint and bucket:
        return {
            "remote.log.storage.manager.class.name": "s3",
            "rsm.config.endpoint": endpoint,
            "rsm.config.bucket": bucket,
            "rsm.config.key.prefix": f"quickstart-{os.getpid()}",
        }, f"s3://{bucket} at {endpoint}"
    tier = root / "tier"
    return {"remote.log.storage.manager.class.name": "directory", "rsm.config.dir": str(tier)}, str(
        tier
    )


def create_topic(admin: Admin) -> None:
    """Step 2: creates the topic."""
    admin.create_topics([NewTopic(TOPIC, PARTITIONS, 3, configs=TOPIC_CONFIGS)])
    rows = admin.describe_topics([TOPIC])[TOPIC].partitions
    check(all(len(p.replicas) == 3 for p in rows), "a partition has not three replicas")


def kill_active_controller_and_a_leader(cluster: LocalCluster, admin: Admin) -> list[int]:
    """Step 4, first half: kills both with SIGKILL. Returns the node ids."""
    controller = admin.describe_quorum().leader_id
    leaders = [p.leader for p in admin.describe_topics([TOPIC])[TOPIC].partitions]
    broker = max(set(leaders), key=leaders.count)
    for node in (controller, broker):
        cluster.kill(node)
    console.print(
        f"  SIGKILL: active controller {controller}, "
        f"and broker {broker}, which leads {leaders.count(broker)} partitions"
    )
    return [controller, broker]


def produce(cluster: LocalCluster, admin: Admin, flights: Flights) -> tuple[list[int], float]:
    """Steps 3 and 4: sends all events with acks=all, and kills two nodes half way.

    Returns the killed nodes and the seconds taken.
    """
    killed: list[int] = []
    started, rows = time.monotonic(), flights.events.num_rows
    producer = Producer(cluster.bootstrap_servers, acks="all", delivery_timeout_ms=120_000)
    pending = []
    with producer, bar("producing", rows) as show:
        for begin in range(0, rows, CHUNK_ROWS):
            if not killed and begin >= rows // 2:
                killed = kill_active_controller_and_a_leader(cluster, admin)
            pending.append(producer.send_arrow(TOPIC, flights.events.slice(begin, CHUNK_ROWS)))
            while len(pending) > 8:
                pending.pop(0).result()
            show(begin)
        for future in pending:
            future.result()
    return killed, time.monotonic() - started


def restart_and_wait_in_sync(cluster: LocalCluster, admin: Admin, killed: list[int]) -> None:
    """Step 4, second half: restarts the nodes and waits until every replica is in sync."""
    for node in killed:
        cluster.restart(node)

    def in_sync() -> tuple[int, int]:
        partitions = admin.describe_topics([TOPIC])[TOPIC].partitions
        return sum(len(p.isr) for p in partitions), sum(len(p.replicas) for p in partitions)

    wait_until("waiting for every replica to be in sync", 60, in_sync)


def replicas_of_topic(admin: Admin) -> list[ReplicaDescription]:
    """Every replica of the topic on every live broker."""
    dirs = admin.describe_log_dirs(topics=[TOPIC])
    return [
        replica
        for of_broker in dirs.values()
        for log_dir in of_broker
        for replica in log_dir.replicas
    ]


def wait_for_tier(admin: Admin) -> Table:
    """Step 5: waits until all rolled segments are in the tier, and local retention has deleted
    copies.

    Returns the table of partitions.
    """

    def tiered() -> tuple[int, int]:
        limit = (1 << 20) + (1 << 20)  # local retention, plus a segment that may exceed it
        replicas = replicas_of_topic(admin)
        done = [r.size_bytes <= limit for r in replicas]
        done += [r.remote_copy_lag_segments == 0 for r in replicas if r.is_leader]
        return sum(done), PARTITIONS * 3 + PARTITIONS

    wait_until("waiting for the tier", 90, tiered)
    table = Table(
        "partition",
        "log start",
        "local start",
        "highest tiered",
        "high watermark",
        "local bytes",
        "remote bytes",
    )
    for column in table.columns:
        column.justify = "right"
    total = 0
    leaders = [r for r in replicas_of_topic(admin) if r.is_leader]
    for row in sorted(leaders, key=lambda r: r.topic_partition):
        numbers = (
            row.log_start_offset,
            row.local_log_start_offset,
            -1 if row.highest_remote_offset is None else row.highest_remote_offset,
            row.high_watermark,
        )
        sizes = (row.size_bytes, row.remote_log_size_bytes)
        table.add_row(str(row.topic_partition.partition), *(f"{n:,}" for n in (*numbers, *sizes)))
        total += row.high_watermark - row.log_start_offset
    check(total == FLIGHTS, f"the partitions hold {total:,} events, not {FLIGHTS:,}")
    return table


def read_back(cluster: LocalCluster, flights: Flights) -> tuple[float, dict[int, int]]:
    """Step 6: reads everything from offset 0 and compares it; then looks up a time in each
    partition.
    """
    partitions = [TopicPartition(TOPIC, p) for p in range(PARTITIONS)]
    batches: list[pa.RecordBatch] = []
    next_offset = dict.fromkeys(partitions, 0)
    first: dict[int, int] = {}
    started, count = time.monotonic(), 0
    with Consumer(cluster.bootstrap_servers) as consumer, bar("reading back", FLIGHTS) as show:
        consumer.assign(partitions)
        consumer.seek_to_beginning()
        ends = consumer.end_offsets(partitions)
        while any(next_offset[tp] < ends[tp] for tp in partitions):
            polled = consumer.poll_arrow(timeout_ms=30_000)
            check(bool(polled), f"nothing came for 30 s with {count:,} events read")
            for tp, batch in polled.items():
                offsets = batch.column("offset")
                contiguous = offsets[0].as_py() == next_offset[tp]
                last = offsets[len(offsets) - 1].as_py()
                check(
                    contiguous and last - next_offset[tp] + 1 == len(offsets),
                    f"{tp} has a gap at {next_offset[tp]}",
                )
                if tp.partition not in first:
                    later = pc.index(pc.greater_equal(batch.column("timestamp"), LOOKUP_MS), True)
                    if later.as_py() >= 0:
                        first[tp.partition] = offsets[later.as_py()].as_py()
                next_offset[tp], count = last + 1, count + len(offsets)
                batches.append(batch)
            show(count)
        seconds = time.monotonic() - started
        found = consumer.offsets_for_times(dict.fromkeys(partitions, LOOKUP_MS))
    for tp in partitions:
        check(
            found[tp].offset == first[tp.partition],
            f"{tp}: {LOOKUP_TEXT} is at {first[tp.partition]}, found {found[tp]}",
        )
    read = pa.Table.from_batches(batches).select(["key", "value", "timestamp"])
    difference = same_events(pa.Table.from_batches([flights.events]), read)
    check(difference is None, difference or "")
    return seconds, first


class SparkProcess:
    """quickstart_spark.py, in a group of its own, with its objects as they come."""

    def __init__(self, cluster: LocalCluster, root: Path, *options: str) -> None:
        script = Path(__file__).with_name("quickstart_spark.py")
        places = (cluster.bootstrap_servers, TOPIC, MINUTES, str(root / "checkpoint"))
        self._log = root / "spark.log"
        with self._log.open("ab") as stderr:
            self._process = subprocess.Popen(
                [sys.executable, str(script), *places, "--late-days", str(LATE_DAYS), *options],
                stdout=subprocess.PIPE,
                stderr=stderr,
                text=True,
                start_new_session=True,
            )

    def objects(self) -> Iterator[dict[str, Any]]:
        """Yields the objects. Raises Mismatch if the process ends with an error."""
        assert self._process.stdout is not None
        for line in self._process.stdout:
            if line.startswith("{"):
                yield json.loads(line)
        if self._process.wait() != 0:
            tail = self._log.read_text(errors="replace").splitlines()[-12:]
            raise Mismatch("the Spark job failed:\n" + "\n".join(tail))

    def kill(self) -> None:
        """Kills the driver and its JVM, if they still run."""
        with suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()


def read_with_spark(flights: Flights, spark: Iterator[dict[str, Any]]) -> dict[str, float]:
    """Step 7: compares row count, rows and mean departure delay per carrier with the CSV's.

    Returns the seconds that each part took.
    """
    answer = next(spark)
    found = answer["carriers"]
    check(sum(n for n, _ in found.values()) == FLIGHTS, "Spark counted other rows than the CSV has")
    check(found.keys() == flights.per_carrier.keys(), "Spark found other carriers than the CSV has")
    for carrier, (count, mean) in flights.per_carrier.items():
        n, delay = found[carrier]
        equal = n == count and math.isclose(delay, mean, rel_tol=1e-9)
        check(equal, f"carrier {carrier}: Spark has {n}, {delay}; the CSV {count}, {mean}")
    seconds: dict[str, float] = answer["seconds"]
    return seconds


def stream_across_a_kill(
    cluster: LocalCluster, root: Path, driver: SparkProcess, spark: Iterator[dict[str, Any]]
) -> tuple[int, int]:
    """Step 8: kills the stream's driver while it works on a batch, and runs the stream to its end.

    Returns the last batch before the kill, and the last of all.
    """
    killed_after = next(each["batch"] for each in spark if each["batch"] >= KILLED_AFTER_BATCH)
    driver.kill()
    later = SparkProcess(cluster, root, "--resume")
    try:
        told = list(later.objects())
    finally:
        later.kill()
    check(bool(told), "the driver was killed when the stream had ended")
    check(not any(each["late"] for each in told), "flights came later than the stream waits")
    return killed_after, told[-1]["batch"]


def read_minutes(cluster: LocalCluster, flights: Flights) -> int:
    """Step 8, second half: compares what the stream wrote with the CSV; returns its records."""
    partitions = [TopicPartition(MINUTES, p) for p in range(PARTITIONS)]
    values: dict[TopicPartition, list[bytes]] = {tp: [] for tp in partitions}
    with Consumer(cluster.bootstrap_servers, isolation_level="read_committed") as consumer:
        consumer.assign(partitions)
        consumer.seek_to_beginning()
        ends = consumer.end_offsets(partitions)
        while any(consumer.position(tp) < ends[tp] for tp in partitions):
            for tp, batch in consumer.poll_arrow(timeout_ms=1_000).items():
                values[tp] += batch.column("value").to_pylist()
    lines = b"\n".join(value for tp in partitions for value in values[tp])
    found = pa.json.read_json(io.BytesIO(lines)).to_pandas()
    wrong = wrong_minutes(flights, found, LATE_DAYS)
    check(wrong is None, wrong or "")
    return len(found)


def analyse(cluster: LocalCluster, admin: Admin, flights: Flights, root: Path) -> None:
    """Steps 7 and 8, with Spark."""
    admin.create_topics([NewTopic(MINUTES, PARTITIONS, 3, configs={"min.insync.replicas": "2"})])
    driver = SparkProcess(cluster, root)
    try:
        spark = driver.objects()
        with console.status("reading the topic with Spark"):
            took = read_with_spark(flights, spark)
        console.print(
            f"[bold]7[/] Spark: {FLIGHTS:,} rows, {len(flights.per_carrier)} carriers, counts and "
            "mean delays as in the CSV\n"
            f"  {sum(took.values()):.1f} s: {took['start']:.1f} until Spark runs, "
            f"{took['plan']:.1f} to plan, {took['query']:.1f} with the first start of its workers"
        )
        with console.status(f"streaming flights into topic {MINUTES}"):
            before, last = stream_across_a_kill(cluster, root, driver, spark)
            records = read_minutes(cluster, flights)
    finally:
        driver.kill()
    console.print(
        f"[bold]8[/] stream: SIGKILL of the driver after batch {before}, resumed to batch {last}\n"
        f"  topic {MINUTES} has {records:,} minutes of carriers, each once, with the flights of "
        "the CSV"
    )


def run(root: Path, keep: bool) -> None:
    """Runs all steps in order. Raises Mismatch if anything disagrees."""
    clock = time.monotonic()
    with console.status("reading flights.csv"):
        flights = load_flights()
    settings, tier = tier_settings(root)
    cluster = LocalCluster(
        root / "cluster",
        controllers=3,
        brokers=3,
        racks=("a", "b", "c"),
        overrides=BROKER_SETTINGS | settings,
    )
    try:
        with console.status("starting 3 controllers and 3 brokers"):
            cluster.start()
            cluster.wait_ready(60)
        console.print(
            f"[bold]1[/] 3 controllers, 3 brokers (racks a, b, c) at {cluster.bootstrap_servers}\n"
            f"  tier: {tier}"
        )
        with Admin(cluster.bootstrap_servers) as admin:
            create_topic(admin)
            console.print(f"[bold]2[/] topic {TOPIC}: {PARTITIONS} partitions, 3 replicas each")
            console.print(f"[bold]3[/] producing {FLIGHTS:,} flights with acks=all")
            killed, seconds = produce(cluster, admin, flights)
            console.print(f"  every event acknowledged in {seconds:.1f} s, the failover included")
            restart_and_wait_in_sync(cluster, admin, killed)
            console.print(
                f"[bold]4[/] nodes {killed[0]} and {killed[1]} restarted; every replica is in sync"
            )
            table = wait_for_tier(admin)
            console.print(
                "[bold]5[/] rolled segments are in the tier, older local copies are gone",
                table,
            )
            seconds, first = read_back(cluster, flights)
            console.print(
                f"[bold]6[/] read back {FLIGHTS:,} in {seconds:.1f} s: none is missing or differs"
            )
            console.print(
                f"  first flight at or after {LOOKUP_TEXT}: {dict(sorted(first.items()))}"
            )
            analyse(cluster, admin, flights, root)
        console.print(f"[bold green]all counts agree[/] ({time.monotonic() - clock:.0f} s)")
        if keep:
            stay(cluster, root)
    finally:
        cluster.stop()


def stay(cluster: LocalCluster, root: Path) -> None:
    """`--keep`: prints how to use the cluster and waits for Ctrl-C."""
    server = cluster.bootstrap_servers.split(",")[0]
    console.print("the cluster stays until Ctrl-C; try, in another terminal:")
    for command in (
        f"tidemark topics describe {TOPIC} --bootstrap-server {server}",
        f"tidemark consume {TOPIC} --from-beginning --max-messages 3 --bootstrap-server {server}",
        f"tidemark quorum describe --status --bootstrap-server {server}",
    ):
        console.print(f"  .venv/bin/{command}")
    console.print(f"  data: {root}")
    try:
        while True:
            time.sleep(3600)
    except KeyboardInterrupt:
        console.print("stopping")


def main() -> int:
    """Returns the exit status: 0 if all counts agree, 1 otherwise."""
    parser = argparse.ArgumentParser(prog="scripts/quickstart", description=__doc__)
    parser.add_argument(
        "--keep", action="store_true", help="leave the cluster running and say how to use it"
    )
    arguments = parser.parse_args()
    root = Path(tempfile.mkdtemp(prefix="tidemark-quickstart-"))
    try:
        run(root, arguments.keep)
    except Mismatch as mismatch:
        console.print(f"[bold red]FAILED[/] {mismatch}")
        console.print(f"  the nodes' logs and data are kept in {root}")
        return 1
    except BaseException:
        console.print(f"[bold red]FAILED[/] the nodes' logs and data are kept in {root}")
        raise
    shutil.rmtree(root, ignore_errors=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
