"""The README's Python, run as printed against a real cluster."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import pytest

from tidemark.cli.local_cluster import LocalCluster

README = Path(__file__).parents[2] / "README.md"
BLOCKS = re.findall(r"```python\n(.*?)```", README.read_text(encoding="utf-8"), re.DOTALL)


def test_python_client_and_raw_grpc_client_run_as_printed(
    small_cluster: LocalCluster, capfd: pytest.CaptureFixture[str]
) -> None:
    names = {
        "bootstrap_servers": small_cluster.bootstrap_servers,
        "leader_address": small_cluster.bootstrap_servers,
    }
    client, raw, _ = BLOCKS
    exec(compile(client, "README.md: Python", "exec"), dict(names))
    assert "b'tide' b'hello'" in capfd.readouterr().out
    exec(compile(raw, "README.md: gRPC", "exec"), dict(names))
    out = capfd.readouterr().out
    assert 'value: "hello from anywhere"' in out
    assert "offset: 1" in out


@pytest.mark.spark
def test_spark_block_runs_as_printed(
    small_cluster: LocalCluster,
    capfd: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("PYSPARK_PYTHON", sys.executable)  # as an activated environment would
    names = {"bootstrap_servers": small_cluster.bootstrap_servers}
    if _empty(small_cluster):
        exec(compile(BLOCKS[0], "README.md: Python", "exec"), dict(names))
    exec(compile(BLOCKS[2], "README.md: Spark", "exec"), dict(names))
    assert "hello" in capfd.readouterr().out


def _empty(cluster: LocalCluster) -> bool:
    from tidemark import Admin

    with Admin(cluster.bootstrap_servers) as admin:
        return "greetings" not in {topic.name for topic in admin.list_topics()}
