"""A Spark session of local[2] for benches, and the CPU time of all its processes."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

_TICKS = os.sysconf("SC_CLK_TCK")


class Cost(NamedTuple):
    """Time and CPU time of one read, in seconds."""

    wall_s: float
    cpu_s: float


def open_session(settings: Mapping[str, str] | None = None) -> Any:
    """A session without a UI; the caller stops it."""
    os.environ["PYSPARK_PYTHON"] = sys.executable
    os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
    from pyspark.sql import SparkSession

    builder = SparkSession.builder.master("local[2]").appName("bench")
    for key, value in {
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.driver.bindAddress": "127.0.0.1",
        **(settings or {}),
    }.items():
        builder = builder.config(key, value)
    session = builder.getOrCreate()
    session.sparkContext.setLogLevel("ERROR")
    return session


def _processes() -> Iterator[tuple[int, int, int]]:
    """Id, parent, and ticks of CPU of each process, with those of its children that ended."""
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = path.read_text().rpartition(")")[2].split()
        except OSError:  # it has ended meanwhile
            continue
        yield int(path.parent.name), int(fields[1]), sum(map(int, fields[11:15]))


def cpu_s(session: Any) -> float:
    """CPU time of this process, of the JVM, and of all Python processes of Spark."""
    found = {number: (parent, ticks) for number, parent, ticks in _processes()}
    tree = {session.sparkContext._gateway.proc.pid}
    while True:
        more = {number for number, (parent, _) in found.items() if parent in tree} - tree
        if not more:
            break
        tree |= more
    return time.process_time() + sum(found[n][1] for n in tree if n in found) / _TICKS


def cost(session: Any, work: Any) -> Cost:
    """The time of one call of `work`, and what it cost."""
    begin_s, begin_cpu_s = time.perf_counter(), cpu_s(session)
    work()
    return Cost(time.perf_counter() - begin_s, cpu_s(session) - begin_cpu_s)


def drain(frame: Any) -> None:
    """Brings every column into the JVM, and no further."""
    frame.write.format("noop").mode("overwrite").save()
