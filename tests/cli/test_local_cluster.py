"""Commands against a real controller and broker; processes that stop, are killed, and leave nothing
behind.
"""

from __future__ import annotations

import itertools
import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from typer.testing import CliRunner

from tidemark.cli.local_cluster import LocalCluster, LocalClusterError, health_of
from tidemark.cli.main import app

runner = CliRunner()


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalCluster]:
    directory = tmp_path_factory.mktemp("cluster")
    # Small, so that the metadata log soon begins at a checkpoint.
    small = {
        "metadata.log.segment.bytes": "1024",
        "metadata.log.max.record.bytes.between.snapshots": "1000",
        "metadata.max.retention.bytes": "2000",
        "broker.session.timeout.ms": "3000",  # the successor of a killed broker waits that long
    }
    with LocalCluster(directory, controllers=1, brokers=1, controller_overrides=small) as cluster:
        cluster.wait_ready(60)
        yield cluster


def call(cluster: LocalCluster, *arguments: str, stdin: str | None = None) -> str:
    options = ["--bootstrap-server", cluster.bootstrap_servers]
    result = runner.invoke(app, [*arguments, *options], input=stdin)
    assert result.exit_code == 0, result.stderr
    return result.stdout


def test_topics_produce_consume_quorum_and_log_dirs(cluster: LocalCluster, tmp_path: Path) -> None:
    assert "created topic words" in call(cluster, "topics", "create", "words", "--partitions", "2")
    assert "words\t2\t1" in call(cluster, "topics", "list")
    assert "PARTITION\tLEADER" in call(cluster, "topics", "describe", "words")
    again = runner.invoke(
        app, ["topics", "create", "words", "--bootstrap-server", cluster.bootstrap_servers]
    )
    assert again.exit_code == 1
    assert "(TOPIC_ALREADY_EXISTS)" in again.stderr
    call(cluster, "topics", "create", "words", "--if-not-exists")
    call(cluster, "produce", "words", "--key-separator", "=", stdin="a=1\nb=2\nc=3\n")
    lines = tmp_path / "lines"
    lines.write_text("d\ne\n")
    produced = call(cluster, "produce", "words", "--file", str(lines), "--json")
    told = json.loads(produced)
    assert (told["topic"], told["records"]) == ("words", 2)
    assert sum(part["records"] for part in told["partitions"]) == 2
    read = call(cluster, "consume", "words", "--from-beginning", "--max-messages", "5", "--json")
    rows = [json.loads(line) for line in read.splitlines()]
    assert sorted(row["value"] for row in rows) == ["1", "2", "3", "d", "e"]
    keyed = call(
        cluster, "consume", "words", "--from-timestamp", "0", "--timeout", "0.5", "--print-key"
    )
    assert "a\t1" in keyed.splitlines()
    status = json.loads(call(cluster, "quorum", "describe", "--status", "--json"))
    assert (status["LeaderId"], status["ClusterId"]) == (1, cluster.cluster_id)
    replication = json.loads(call(cluster, "quorum", "describe", "--replication", "--json"))
    assert [row["Status"] for row in replication] == ["Leader", "Observer"]
    dirs = json.loads(call(cluster, "log-dirs", "describe", "--topic", "words", "--json"))
    assert len(dirs["2"][0]["replicas"]) == 2
    assert "words-0" in call(cluster, "log-dirs", "describe")
    assert "deleted" in call(cluster, "topics", "delete", "words")


def test_live_metadata_is_read_from_a_checkpoint_where_the_log_begins_at_one(
    cluster: LocalCluster,
) -> None:
    def quorum() -> dict[str, object]:
        shown = json.loads(call(cluster, "metadata", "cat", "/quorum", "--json"))
        found: dict[str, object] = shown["/quorum"]
        return found

    numbers = itertools.count()
    while not quorum()["logStartOffset"]:
        call(cluster, "topics", "create", f"many-{next(numbers)}", "--partitions", "10")
    found = quorum()
    assert str(found["snapshot"]).endswith(".checkpoint")
    assert (found["leaderId"], found["voters"]) == (1, [{"id": 1}])
    on_disk = str(cluster.node(1).data_directory)
    assert "0 changes" in call(cluster, "metadata", "diff", on_disk, cluster.controller_servers)
    early = ["metadata", "ls", "--as-of", "1", "--bootstrap-server", cluster.controller_servers]
    refused = runner.invoke(app, early)
    assert refused.exit_code == 1
    assert "has nothing before offset" in refused.stderr


def test_nodes_are_paused_killed_and_restarted(cluster: LocalCluster) -> None:
    cluster.pause(2)
    cluster.resume(2)
    cluster.kill(2)
    assert not cluster.node(2).is_running
    with pytest.raises(LocalClusterError, match="does not run"):
        cluster.pause(2)
    cluster.restart(2)
    cluster.wait_ready(60)
    assert cluster.node(2).is_running
    assert health_of(cluster.node(2).address) == "SERVING"
    with pytest.raises(ValueError, match="none of"):
        cluster.node(9)


def test_ready_means_the_process_that_runs_now_not_its_predecessor(cluster: LocalCluster) -> None:
    def epoch() -> int:
        shown = call(cluster, "metadata", "cat", "/brokers/2", "--json")
        found = json.loads(shown)["/brokers/2"]["epoch"]
        assert isinstance(found, int)
        return found

    before = epoch()
    cluster.kill(2)
    assert health_of(cluster.node(2).address) == "UNREACHABLE"
    cluster.restart(2)
    cluster.wait_ready(60)
    assert epoch() > before


def test_a_node_that_can_not_start_is_shown_with_its_output(tmp_path: Path) -> None:
    broken = LocalCluster(tmp_path, controllers=1, brokers=1)
    broken.start()
    try:
        broken.kill(2)
        broken.node(2).properties_file.write_text("node.id=2\n")
        broken.restart(2)
        with pytest.raises(LocalClusterError, match=r"(?s)broker 2 ended with 1.*process\.roles"):
            broken.wait_ready(30)
    finally:
        broken.stop()


def test_nothing_stays_behind_when_the_parent_is_killed(tmp_path: Path) -> None:
    script = (
        "import sys, time\nfrom pathlib import Path\n"
        "from tidemark.cli.local_cluster import LocalCluster\n"
        f"c = LocalCluster(Path({str(tmp_path)!r}), controllers=1, brokers=1)\n"
        "c.start()\nc.wait_ready(60)\nc.pause(2)\n"
        "print(*[c.node(n).process.pid for n in (1, 2)], flush=True)\ntime.sleep(600)\n"
    )
    with subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE) as parent:
        assert parent.stdout is not None
        pids = [int(pid) for pid in parent.stdout.readline().split()]
        parent.kill()
    assert len(pids) == 2
    assert all(_gone(pid) for pid in pids)


def _gone(pid: int) -> bool:
    """Waits for the kernel to deliver the signal; a zombie counts as gone."""
    status = Path(f"/proc/{pid}/status")
    for _ in range(100_000):
        try:
            if "State:\tZ" in status.read_text():
                return True
        except (FileNotFoundError, ProcessLookupError):
            return True
    return False


def test_nodes_elsewhere_are_known_by_their_hosts(tmp_path: Path) -> None:
    hosts = {1: "127.0.0.2", 2: "127.0.0.3"}
    launchers = {2: ("env", "PLACE=there")}
    cluster = LocalCluster(
        tmp_path, controllers=1, brokers=1, ports=[9092, 9092], hosts=hosts, launchers=launchers
    )
    assert cluster.bootstrap_servers == "127.0.0.3:9092"
    settings = cluster.node(2).settings
    assert settings["listeners"] == "PLAINTEXT://127.0.0.3:9092"
    assert settings["controller.quorum.voters"] == "1@127.0.0.2:9092"
    assert cluster.node(2).launcher == ("env", "PLACE=there")
