"""A real `tidemark server` (controller and broker in one) with several log directories, whose disk
is strace.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from node.runtime.storage import format_storage
from tests.crash.strace import strace_prefix
from tidemark.cli.local_cluster import free_ports
from tidemark.config import parse_server_config
from tidemark.config.properties import format_properties

CLUSTER_ID = "crash-test-cluster-id-"


class TracedServer:
    """One node; a context manager that leaves no process behind."""

    def __init__(self, path: Path, *, log_dirs: Sequence[str], metadata: str) -> None:
        broker, controller = free_ports(2)
        self.path = path
        self.address = f"127.0.0.1:{broker}"
        self._process: subprocess.Popen[bytes] | None = None
        self._output = path / "server.out"
        settings = {
            "process.roles": "broker,controller",
            "node.id": "1",
            "log.dirs": ",".join(str(path / name) for name in log_dirs),
            "metadata.log.dir": str(path / metadata),
            "listeners": f"PLAINTEXT://{self.address},CONTROLLER://127.0.0.1:{controller}",
            "controller.quorum.voters": f"1@127.0.0.1:{controller}",
            "log.flush.interval.messages": "1",
            "broker.heartbeat.interval.ms": "300",
            "broker.session.timeout.ms": "1500",
        }
        self._properties = path / "server.properties"
        self._properties.write_text(format_properties(settings))
        format_storage(parse_server_config(settings), CLUSTER_ID)

    def __enter__(self) -> TracedServer:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop(signal.SIGKILL)

    def start(self, inject: str = "", files: Sequence[str] = ()) -> None:
        """Starts the node; with `inject` under strace, for the given files."""
        prefix: list[str] = []
        if inject:
            paths = [self.path / file for file in files]
            prefix = strace_prefix(self.path / "strace.out", inject, paths)
        server = [sys.executable, "-m", "tidemark.cli.main", "server", "--die-with-parent", "-c"]
        with self._output.open("wb") as output:
            self._process = subprocess.Popen(
                [*prefix, *server, str(self._properties)],
                stdout=output,
                stderr=output,
                start_new_session=True,
            )

    def wait_ready(self, timeout_s: float = 60) -> None:
        """Waits until its broker is in service; raises with its output if it does not get there."""
        assert self._process is not None
        end = time.monotonic() + timeout_s
        while "broker 1 is ready" not in self.output():
            if self._process.poll() is not None or time.monotonic() > end:
                raise AssertionError(self.output())
            time.sleep(0.05)

    def wait_exit(self, timeout_s: float = 60) -> int:
        """Returns the exit code of a node that ends by itself."""
        assert self._process is not None
        return self._process.wait(timeout_s)

    def stop(self, number: int = signal.SIGTERM) -> None:
        """Ends the node and strace with it."""
        process, self._process = self._process, None
        if process is not None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, number)
            process.wait(60)

    def output(self) -> str:
        return self._output.read_text(errors="replace")

    def refused(self) -> list[str]:
        """Returns the system calls that strace refused, but those that other threads had begun when
        the first was: strace tells them as resumed.
        """
        lines = (self.path / "strace.out").read_text(errors="replace").splitlines()
        ends = [number for number, line in enumerate(lines) if "INJECTED" in line]
        before = lines[: ends[0]] if ends else []
        begun = {line.split()[0] for line in _unfinished(before)}
        kept: list[str] = []
        for line in (lines[number] for number in ends):
            thread = line.split()[0]
            if kept and "resumed>" in line and thread in begun:
                begun.discard(thread)
            else:
                kept.append(line)
        return kept


def _unfinished(lines: list[str]) -> list[str]:
    """The calls that have begun in these lines and not ended, the last one of each thread."""
    begun: dict[str, str] = {}
    for line in lines:
        thread = line.split(maxsplit=1)[0] if line else ""
        if "<unfinished ...>" in line:
            begun[thread] = line
        elif "resumed>" in line:
            begun.pop(thread, None)
    return list(begun.values())
