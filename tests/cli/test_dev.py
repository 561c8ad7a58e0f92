"""`tidemark dev` from start to Ctrl-C, as at a terminal; no process remains."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable
from pathlib import Path

import pytest
from typer.testing import CliRunner

from tidemark.cli.dev import _interrupt_on_signals
from tidemark.cli.local_cluster import is_free
from tidemark.cli.main import app

runner = CliRunner()
STOPPED_S = 30


class Dev:
    """The command as a process; a context manager that leaves nothing running."""

    def __init__(self, *options: str) -> None:
        command = [sys.executable, "-m", "tidemark.cli.main", "dev", "--json", *options]
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE)

    def __enter__(self) -> Dev:
        return self

    def __exit__(self, *_: object) -> None:
        self.process.kill()
        self.process.communicate()

    def announced(self) -> dict[str, str]:
        """The fields it prints when the cluster is ready."""
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        assert line, self.process.stderr and self.process.stderr.read().decode()
        found: dict[str, str] = json.loads(line)
        return found

    def children(self) -> list[int]:
        """The nodes' process ids."""
        tasks = Path(f"/proc/{self.process.pid}/task").glob("*/children")
        return [int(pid) for task in tasks for pid in task.read_text().split()]

    def stop(self, number: int) -> int:
        self.process.send_signal(number)
        return self.process.wait(STOPPED_S)


def alive(pids: list[int]) -> list[int]:
    return [pid for pid in pids if Path(f"/proc/{pid}").exists()]


def until(condition: Callable[[], bool]) -> None:
    """Waits for another process; the test's timeout ends it."""
    while not condition():
        time.sleep(0.01)


def call(servers: str, *arguments: str, stdin: str | None = None) -> str:
    result = runner.invoke(app, [*arguments, "--bootstrap-server", servers], input=stdin)
    assert result.exit_code == 0, result.stderr
    return result.stdout


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_cluster_is_started_used_and_gone(number: int, tmp_path: Path) -> None:
    options = ("--brokers", "2", "--data-dir", str(tmp_path / "data"))
    with Dev(*options, "--console") as dev:
        told = dev.announced()
        servers = told["bootstrap_servers"]
        pids = dev.children()
        assert len(pids) == 3
        call(servers, "topics", "create", "events", "--replication-factor", "2")
        call(servers, "produce", "events", stdin="hello\n")
        read = call(servers, "consume", "events", "--from-beginning", "--max-messages", "1")
        assert read == "hello\n"
        assert call(servers, "metadata", "ls", "/brokers").split() == ["2", "3"]
        assert "healthy" in call(servers, "cluster", "health")
        with urllib.request.urlopen(f"{told['console']}/api/topic?topic=events") as answer:
            (partition,) = json.load(answer)["rows"]["rows"]
            assert sorted(partition["replicas"]) == [2, 3]
        os.kill(pids[0], signal.SIGKILL)  # one of them dies, and comes back
        until(lambda: len(dev.children()) == 3 and pids[0] not in dev.children())
        pids = dev.children()
        outputs = sorted(path.name for path in Path(told["output_dir"]).iterdir())
        assert outputs == ["broker-2.log", "broker-3.log", "controller-1.log"]
        assert dev.stop(number) == 0
        assert not alive(pids)
        ports = [int(address.rsplit(":", 1)[1]) for address in servers.split(",")]
        assert all(map(is_free, ports))
    with Dev(*options) as again:
        servers = again.announced()["bootstrap_servers"]
        kept = call(servers, "consume", "events", "--from-beginning", "--max-messages", "1")
        assert kept == "hello\n"
        assert again.stop(number) == 0


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_is_an_exit_status_and_no_keyboard_interrupt(number: int) -> None:
    before = [(n, signal.getsignal(n)) for n in (signal.SIGINT, signal.SIGTERM)]
    try:
        _interrupt_on_signals()
        with pytest.raises(SystemExit) as ended:
            signal.raise_signal(number)
    finally:
        for each, handler in before:
            signal.signal(each, handler)
    assert ended.value.code == 130


def test_ctrl_c_while_it_starts_leaves_nothing_either() -> None:
    with Dev() as dev:
        until(lambda: len(dev.children()) == 2)
        pids = dev.children()
        assert dev.stop(signal.SIGINT) == 130
        until(lambda: not alive(pids))
