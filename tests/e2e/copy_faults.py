"""Worker processes that copy a topic, and what happens to them and to their brokers.

Each record is a number; partition P of the input has P, P + INPUTS, P + 2 * INPUTS, and so on. The
input is written in parts, one for each fault, which comes at a seeded point of its copy.
"""

from __future__ import annotations

import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pyarrow as pa

from tests.e2e.copy_worker import GROUP, INPUT, OUTPUT, OUTPUTS, RESTART
from tidemark.cli.local_cluster import LocalCluster
from tidemark.client import Admin, Producer

_POLL_S = 0.02
_LONGEST_S = 120.0
_STAYS_OPEN_MS = 1_000
_CHUNK = 20_000
_MORE = 30_000
INPUTS = 6
BROKER_FAULTS = ("group_coordinator", "transaction_coordinator", "leader")
WORKER_FAULTS = ("kill_worker", "zombie", "succeeded_zombie")


class Workers:
    """The processes by name; a context manager that leaves none behind."""

    def __init__(self, directory: Path, servers: str, names: list[str]) -> None:
        self._directory = directory
        self._servers = servers
        self.names = names
        self._processes = {name: self._spawn(name) for name in names}
        self._zombies: list[subprocess.Popen[bytes]] = []
        self.restarts = 0

    def __enter__(self) -> Workers:
        return self

    def __exit__(self, *_: object) -> None:
        for process in self._all():
            process.kill()
            process.wait()

    def _all(self) -> list[subprocess.Popen[bytes]]:
        return [*self._processes.values(), *self._zombies]

    def output_of(self, name: str) -> Path:
        """All that processes of a name printed."""
        return self._directory / f"{name}.out"

    def _spawn(self, name: str) -> subprocess.Popen[bytes]:
        command = [sys.executable, "-m", "tests.e2e.copy_worker", self._servers, name]
        with self.output_of(name).open("ab") as output:
            return subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=output, stderr=subprocess.STDOUT
            )

    def watch(self) -> None:
        """Starts again what ended to be started again. Asserts that nothing ended otherwise."""
        for name, process in self._processes.items():
            status = process.poll()
            if status is not None:
                assert status == RESTART, f"{name}: {status}: {self.output_of(name).read_text()}"
                self.restarts += 1
                self._processes[name] = self._spawn(name)

    def kill(self, name: str) -> None:
        """SIGKILL; the next process begins at once."""
        self._processes[name].kill()
        self._processes[name].wait()
        self._processes[name] = self._spawn(name)

    def signal(self, name: str, number: signal.Signals) -> None:
        self._processes[name].send_signal(number)

    def succeed(self, name: str) -> subprocess.Popen[bytes]:
        """Starts another process under the name of one that hangs, which is returned."""
        old = self._processes[name]
        self._zombies.append(old)
        self._processes[name] = self._spawn(name)
        return old

    def stop(self) -> None:
        """SIGTERM. Asserts that each process ends well, or was about to be started again."""
        for process in self._processes.values():
            process.send_signal(signal.SIGTERM)
        for name, process in self._processes.items():
            status = process.wait(60)
            assert status in (0, RESTART), f"{name}: {status}: {self.output_of(name).read_text()}"


class Feed:
    """Writes the input. `written` is the number of records."""

    def __init__(self, producer: Producer) -> None:
        self._producer = producer
        self.written = 0

    def write(self, count: int) -> None:
        """Writes the next numbers; at least `count`, and as many to each partition."""
        each = -(-count // INPUTS)
        deliveries = []
        for partition in range(INPUTS):
            numbers = pa.array(np.arange(each) * INPUTS + self.written + partition)
            values = numbers.cast(pa.string()).cast(pa.binary())
            for begin in range(0, each, _CHUNK):
                data = pa.RecordBatch.from_arrays([values[begin : begin + _CHUNK]], ["value"])
                deliveries.append(self._producer.send_arrow(INPUT, data, partition=partition))
        for delivery in deliveries:
            delivery.result()
        self.written += each * INPUTS


class Faults:
    """Carries faults out, one after the other. After each one the rest of its part has to be
    copied, before what was killed comes back."""

    def __init__(
        self, cluster: LocalCluster, workers: Workers, admin: Admin, feed: Feed, rng: random.Random
    ) -> None:
        self.cluster = cluster
        self.workers = workers
        self.admin = admin
        self.feed = feed
        self._rng = rng
        self._begin_s = time.monotonic()
        self.story: list[str] = []

    def _note(self, what: str) -> None:
        seconds = time.monotonic() - self._begin_s
        self.story.append(f"{seconds:.1f} s, {self.copied()} of {self.feed.written} copied: {what}")

    def copied(self) -> int:
        """Records whose copy is committed."""
        return sum(found.offset for found in self.admin.groups.offsets(GROUP).values())

    def until(self, holds: Callable[[], bool], what: str) -> None:
        """Waits; workers that ask for it are started again meanwhile."""
        deadline = time.monotonic() + _LONGEST_S
        while not holds():
            self.workers.watch()
            assert time.monotonic() < deadline, f"{what}: not in {_LONGEST_S:.0f} s: {self.story}"
            time.sleep(_POLL_S)

    def run(self, names: list[str], count: int) -> None:
        """The faults, spread over the copy of `count` records; returns when all is copied."""
        part = count // (len(names) + 1)  # faults have more written
        for name in names:
            self.feed.write(part)
            self._until_copied(self.feed.written - self._rng.randrange(part // 4, part))
            self._note(name)
            getattr(self, name)()
        self.feed.write(max(0, count - self.feed.written))
        self._until_copied(self.feed.written)
        self._note("the end")

    def _until_copied(self, wanted: int) -> None:
        self.until(lambda: self.copied() >= wanted, f"{wanted} copied")

    def _goes_on(self) -> None:
        """The others do what one has left."""
        self.feed.write(_MORE)
        self._until_copied(self.feed.written)

    # --- brokers

    def _kill_broker(self, broker: int) -> None:
        self.cluster.wait_ready(60)
        self.cluster.kill(broker)
        self._goes_on()
        self.cluster.restart(broker)

    def _leader_of(self, topic: str, partition: int) -> int:
        described = self.admin.describe_topics([topic])[topic]
        leader = described.partitions[partition].leader
        assert leader is not None
        return leader

    def group_coordinator(self) -> None:
        self._kill_broker(self._leader_of("__consumer_offsets", 0))

    def transaction_coordinator(self) -> None:
        name = self._rng.choice(self.workers.names)
        listed = self.admin.transactions.list()
        (broker,) = (one.coordinator_id for one in listed if one.transactional_id == name)
        self._kill_broker(broker)

    def leader(self) -> None:
        self._kill_broker(self._leader_of(OUTPUT, self._rng.randrange(OUTPUTS)))

    # --- workers

    def kill_worker(self) -> None:
        self.workers.kill(self._rng.choice(self.workers.names))
        self._goes_on()

    def _is_open(self, name: str, longer_than_ms: int | None = None) -> bool:
        found = self.admin.transactions.list(states=["Ongoing"], older_than_ms=longer_than_ms)
        return name in [one.transactional_id for one in found]

    def _paused_in_a_transaction(self) -> str:
        """Stops a worker whose transaction stays open: its end was not on the way already."""
        name = self._rng.choice(self.workers.names)

        def stopped() -> bool:
            self.feed.write(_MORE)
            self.workers.signal(name, signal.SIGSTOP)
            self.until(lambda: self._is_open(name, _STAYS_OPEN_MS) or not self._is_open(name), name)
            if self._is_open(name):
                return True
            self.workers.signal(name, signal.SIGCONT)
            return False

        self.until(stopped, f"{name} in a transaction")
        return name

    def zombie(self) -> None:
        """A worker wakes when its transaction was aborted and others have its partitions."""
        name = self._paused_in_a_transaction()
        self.until(lambda: not self._is_open(name), f"abort of {name}")
        self._goes_on()
        said = self.workers.output_of(name).stat().st_size
        self.workers.signal(name, signal.SIGCONT)
        self.until(
            lambda: self.workers.output_of(name).stat().st_size > said, f"an error of {name}"
        )

    def succeeded_zombie(self) -> None:
        """A worker wakes when another process has its transactional id: it has to end.

        If it abandons the transaction that it was in, it learns so by the next one.
        """
        name = self._paused_in_a_transaction()
        old = self.workers.succeed(name)
        self._goes_on()
        old.send_signal(signal.SIGCONT)

        def ended() -> bool:
            self.feed.write(INPUTS)
            return old.poll() is not None

        self.until(ended, "end of the fenced worker")
        assert old.returncode == RESTART, self.workers.output_of(name).read_text()
