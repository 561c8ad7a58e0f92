"""Clients of both releases at once, and the judgement of what they report."""

from __future__ import annotations

import json
import subprocess
import sys
from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from types import TracebackType
from typing import Any

from tests.upgrade.worker import PARTITIONS, TOPIC, TRANSFERS
from tidemark.client import Consumer
from tidemark.types import TopicPartition

WORKER = Path(__file__).with_name("worker.py")


class Load:
    """Workers, by name; a context manager that ends them."""

    def __init__(self, servers: str, directory: Path) -> None:
        self._servers = servers
        self._directory = directory
        self._processes: dict[str, subprocess.Popen[str]] = {}

    def begin(self, name: str, kind: str, launcher: Iterable[str]) -> None:
        """Starts a worker; `launcher` stands before its command."""
        command = [*launcher, sys.executable, "-P", str(WORKER), kind, self._servers, name]
        with (self._directory / f"{name}.err").open("w") as errors:
            self._processes[name] = subprocess.Popen(
                command, stdout=subprocess.PIPE, stderr=errors, text=True
            )

    def check_alive(self) -> None:
        """Fails if a worker ended, with its errors."""
        for name, process in self._processes.items():
            assert process.poll() is None, f"{name}: {self._errors(name)}"

    def end(self, kind: str) -> dict[str, Any]:
        """Stops the workers whose names begin with `kind`. Returns their reports by name."""
        processes = {n: p for n, p in self._processes.items() if n.startswith(kind)}
        for process in processes.values():
            process.terminate()
        reports = {}
        for name, process in processes.items():
            output, _ = process.communicate(timeout=150)
            assert process.returncode == 0, f"{name}: {self._errors(name)}"
            reports[name] = json.loads(output)
            del self._processes[name]
        return reports

    def _errors(self, name: str) -> str:
        return (self._directory / f"{name}.err").read_text(encoding="utf-8")[-2000:]

    def __enter__(self) -> Load:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        for process in self._processes.values():
            process.kill()
            process.communicate()


def numbers_in(servers: str, topic: str) -> dict[str, list[int]]:
    """The committed numbers of each producer, partition by partition, in the order of the log."""
    found: dict[str, list[int]] = {}
    with Consumer(servers, isolation_level="read_committed") as consumer:
        for number in range(PARTITIONS):
            partition = TopicPartition(topic, number)
            consumer.assign([partition])
            consumer.seek_to_beginning()
            end = consumer.end_offsets([partition])[partition]
            while consumer.position(partition) < end:
                for rows in consumer.poll_arrow(timeout_ms=20_000).values():
                    for value in rows.column("value").to_pylist():
                        name, _, text = value.decode().partition(":")
                        found.setdefault(name, []).append(int(text))
    return found


def check_produced(servers: str, reports: dict[str, Any]) -> None:
    """Asserts that each record of an idempotent producer is there once, in its order."""
    found = numbers_in(servers, TOPIC)
    for name, report in reports.items():
        want = [n for part in range(PARTITIONS) for n in range(part, report["sent"], PARTITIONS)]
        if found[name] != want:
            times = Counter(found[name])
            missing = [n for n in want if not times[n]]
            twice = [n for n in want if times[n] > 1]
            raise AssertionError(f"{name}: missing {missing[:9]}, twice {twice[:9]}, or disordered")


def check_transacted(servers: str, reports: dict[str, Any]) -> None:
    """Asserts that each transaction is there once and whole, or failed and may be absent."""
    found = numbers_in(servers, TRANSFERS)
    for name, report in reports.items():
        times = Counter(found[name])
        assert max(times.values()) == 1, name
        missing = set(range(report["sent"])) - set(times) - set(report["unknown"])
        assert not missing, f"{name}: {sorted(missing)[:9]}"
        assert len(report["unknown"]) < report["sent"] / 2, name


def check_read(servers: str, reports: dict[str, Any]) -> None:
    """Asserts that the members read each offset; at least once, as groups promise."""
    partitions = [TopicPartition(TOPIC, number) for number in range(PARTITIONS)]
    with Consumer(servers) as consumer:
        ends = consumer.end_offsets(partitions)
    for partition in partitions:
        read: set[int] = set()
        for report in reports.values():
            for first, last in report["ranges"].get(str(partition.partition), ()):
                read |= set(range(first, last + 1))
        missing = set(range(ends[partition])) - read
        assert not missing, f"{partition}: {sorted(missing)[:9]} of {ends[partition]}"
