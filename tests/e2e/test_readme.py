"""README's blocks, run as printed against real clusters.

`HELD_BY` at the end names a test for each block of the page; a block without one fails.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from itertools import takewhile
from pathlib import Path

import pytest

import tests.helm.test_readme as helm
import tests.test_documents as documents
import tests.wheel.test_installed as wheel
from node.runtime.storage import format_storage
from tests.readme import README, block, blocks
from tests.spark import test_session as spark_session
from tests.spark.sink import test_spark_sink as spark_sink
from tidemark import Admin, Consumer, NewTopic, Producer, TopicPartition
from tidemark.cli.local_cluster import LocalCluster
from tidemark.client import OffsetAndMetadata
from tidemark.config import load_server_config
from tidemark.config.properties import format_properties


def commands(text: str) -> list[str]:
    """The command lines of a block."""
    return [line for line in text.splitlines() if line]


def run(line: str, directory: Path, bootstrap_servers: str) -> str:
    """The output of a line in bash; it must succeed. `tidemark` is the tested one."""
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    done = subprocess.run(
        ["bash", "-euo", "pipefail", "-c", line],
        cwd=directory,
        env=os.environ | {"PATH": path, "TIDEMARK_BOOTSTRAP_SERVER": bootstrap_servers},
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, (line, done.stdout, done.stderr)
    return done.stdout


def replaced(text: str, places: Mapping[str, object]) -> str:
    """The text with places of this test; each must occur."""
    for old, new in places.items():
        assert old in text
        text = text.replace(old, str(new))
    return text


def test_the_two_commands_are_scripts_that_ci_runs() -> None:
    ci = (README.parent / ".ci" / "run").read_text(encoding="utf-8")
    for line in commands(block("Two commands", "bash")):
        script = line.split()[0]
        assert os.access(README.parent / script, os.X_OK)
        assert re.search(rf"^for step in .*{re.escape(script)}\b", ci, re.MULTILINE)


@contextmanager
def running(line: str, directory: Path) -> Iterator[str]:
    """Runs `tidemark dev` while the block runs, as in another terminal; yields its brokers."""
    with subprocess.Popen(
        ["bash", "-c", f"exec {line}"], cwd=directory, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        try:
            lines = takewhile(lambda line: not line.startswith("Ctrl-C"), process.stdout)
            yield dict(re.findall(r"^(\w+): +(\S+)$", "".join(lines), re.MULTILINE))["brokers"]
        finally:
            process.send_signal(signal.SIGINT)
            process.wait(60)


def test_the_cluster_to_play_with_answers_as_printed(tmp_path: Path) -> None:
    (tmp_path / ".venv").symlink_to(sys.prefix)
    text = replaced(
        block("A cluster to play with", "bash"), {"/tmp/tidemark": tmp_path / "tidemark"}
    )
    dev, create, produce, consume, consume_near, describe, dump = commands(text)
    with running(dev, tmp_path) as servers:
        run(create, tmp_path, servers)
        run(produce, tmp_path, servers)
        for from_here in (consume, consume_near):
            assert run(from_here, tmp_path, servers) == '{"hello": "tide"}\n'
        assert "LeaderId:" in run(describe, tmp_path, servers)
        assert '{"hello": "tide"}' in run(dump, tmp_path, servers)


def test_the_lines_of_pipes_run_as_printed(tmp_path: Path, small_cluster: LocalCluster) -> None:
    servers = small_cluster.bootstrap_servers
    (tmp_path / "records.bin").write_bytes(b"".join(b"k%d:v%d\0" % (n, n) for n in range(12)))
    with Admin(servers) as admin:
        admin.create_topics([NewTopic(name, 1, 1) for name in ("events", "logs", "copy")])
    try:
        last, several, produce, copy = commands(block("In pipes", "bash"))
        told = json.loads(run(produce, tmp_path, servers))
        assert told["partitions"] == [
            {"partition": 0, "records": 12, "first_offset": 0, "last_offset": 11}
        ]
        printed = [f"0:{n} k{n}=v{n}" for n in range(2, 7)]
        assert run(last, tmp_path, servers).splitlines() == printed
        assert len(run(several, tmp_path, servers).splitlines()) == 12
        run(copy, tmp_path, servers)
        with Consumer(servers) as consumer:
            consumer.assign([TopicPartition("copy", 0)])
            consumer.seek_to_beginning()
            copied = [(record.key, record.value, record.headers) for record in consumer.poll(5_000)]
        header = (("source", b"a"),)
        assert copied == [(b"k%d" % n, b"v%d" % n, header) for n in range(12)]
    finally:
        with Admin(servers) as admin:
            admin.delete_topics(["events", "logs", "copy"])


def new_controller(cluster: LocalCluster, file: Path) -> None:
    """The settings and the formatted directory of a controller that could join."""
    settings = {
        "process.roles": "controller",
        "node.id": "9",
        "listeners": "CONTROLLER://127.0.0.1:9199",
        "controller.listener.names": "CONTROLLER",
        "controller.quorum.bootstrap.servers": cluster.controller_servers,
        "log.dirs": str(file.parent / "controller-9"),
    }
    file.write_text(format_properties(settings), encoding="utf-8")
    format_storage(load_server_config(file, {}), cluster.cluster_id)


@contextmanager
def stopped_controllers(cluster: LocalCluster, directory: Path) -> Iterator[dict[str, Path]]:
    """Copies of two stopped controllers; yields the places of README that name them.

    Controller 2 is down during the block, and controller 1 is copied at its end. What commits
    in the block is in controller 1's log, so that its log is the most recent one.
    """
    one, two = (cluster.node(number) for number in (1, 2))
    directory.mkdir()
    file = directory / "controller.properties"
    file.write_text(
        format_properties(one.settings | {"log.dirs": str(directory / "1")}), encoding="utf-8"
    )
    cluster.kill(2)
    shutil.copytree(two.data_directory, directory / "2")
    yield {"controller.properties": file, "/data/controller-2": directory / "2"}
    cluster.kill(1)
    shutil.copytree(one.data_directory, directory / "1")
    for number in (1, 2):
        cluster.restart(number)
    cluster.wait_ready(60)


def test_each_line_for_operators_succeeds_as_printed(tmp_path: Path) -> None:
    disks = [tmp_path / "broker-4", tmp_path / "broker-4-too"]
    # The cleaner would remove indexes while dump-log reads them: a line makes the topic compacted.
    two_disks = {4: {"log.dirs": ",".join(map(str, disks)), "log.cleaner.enable": "false"}}
    two_copies = {  # so that a broker can be drained
        "offsets.topic.replication.factor": "2",
        "transaction.state.log.replication.factor": "2",
    }
    with LocalCluster(tmp_path, node_overrides=two_disks, overrides=two_copies) as cluster:
        cluster.wait_ready(60)
        servers = cluster.bootstrap_servers
        topic = NewTopic(
            "events", assignments={0: [4, 5], 1: [5, 6]}, configs={"segment.bytes": "16384"}
        )
        stopped = stopped_controllers(cluster, tmp_path / "stopped")
        with stopped as recovered, Admin(servers) as admin:
            admin.create_topics([topic])
            offsets = {TopicPartition("events", n): OffsetAndMetadata(0) for n in range(2)}
            admin.groups.alter_offsets("billing", offsets)
            offset = admin.describe_quorum().high_watermark
        with Producer(servers) as producer:
            for _ in range(100):  # segments roll, and with them the indexes
                producer.send("events", bytes(1000), partition=0).result()
        with Producer(servers, transactional_id="etl") as producer:
            producer.init_transactions()
        new_controller(cluster, tmp_path / "controller.properties")
        disks.sort(key=lambda disk: not (disk / "events-0").exists())
        places = {
            "/disk1/tidemark": disks[0],
            "/disk2/tidemark": disks[1],
            "/data/controller-1": cluster.node(1).data_directory,
            "/data/controller-2": cluster.node(2).data_directory,
            "--as-of 4711": f"--as-of {offset}",
        }
        printed = commands(block("For operators", "bash"))
        recover = [replaced(line, recovered) for line in printed if "quorum recover" in line]
        lines = [line for line in printed if "quorum recover" not in line]
        lines = recover + commands(replaced("\n".join(lines), places))
        told = {line: run(line, tmp_path, servers) for line in lines}
        assert (disks[1] / "events-0").exists() is False  # moved to disk 2, then drained
        with Admin(servers) as admin:
            events = admin.describe_topics(["events"])["events"]
    assert len(events.partitions) == 12
    assert not any(4 in partition.replicas for partition in events.partitions)
    assert "would add controller 9" in "".join(told.values())
    assert "would make 1 the voters" in "".join(told.values())


def test_a_measurement_runs_as_printed(small_cluster: LocalCluster, tmp_path: Path) -> None:
    create, produce, consume, through = commands(block("Measure", "bash"))
    servers = small_cluster.bootstrap_servers
    run(create, tmp_path, servers)
    assert run(produce, tmp_path, servers).startswith("200000 records, ")
    assert json.loads(run(consume, tmp_path, servers))["failed"] == 0
    assert run(through, tmp_path, servers).startswith("200 records, ")


def test_the_python_blocks_run_as_printed(
    small_cluster: LocalCluster, capfd: pytest.CaptureFixture[str]
) -> None:
    names = {
        "bootstrap_servers": small_cluster.bootstrap_servers,
        "leader_address": small_cluster.bootstrap_servers,
        "coordinator_address": small_cluster.bootstrap_servers,
    }
    exec(compile(block("Python", "python"), "README.md: Python", "exec"), dict(names))
    assert "b'tide' b'hello'" in capfd.readouterr().out
    raw = block("Any language, by gRPC", "python")
    exec(compile(raw, "README.md: gRPC", "exec"), dict(names))
    out = capfd.readouterr().out
    assert 'value: "hello from anywhere"' in out
    assert "offset: 1" in out
    group = block("Consumer groups", "python").replace(
        'group_id="greeters"', 'group_id="greeters", auto_offset_reset="earliest"'
    )
    group = group.replace("work())", "asyncio.wait_for(work(), 6))")
    with pytest.raises(TimeoutError):
        exec(compile(group, "README.md: groups", "exec"), dict(names))
    assert "0 b'hello'" in capfd.readouterr().out
    transactions = block("Transactions", "python")
    exec(compile(transactions, "README.md: transactions", "exec"), dict(names))
    with Consumer(names["bootstrap_servers"], isolation_level="read_committed") as consumer:
        consumer.assign([TopicPartition("shouts", 0)])
        consumer.seek_to_beginning()
        assert next(iter(consumer.poll(10_000))).value == b"HELLO"
    with Consumer(names["bootstrap_servers"], group_id="shouters") as consumer:
        greetings = TopicPartition("greetings", 0)
        assert consumer.committed([greetings])[greetings] is not None
    stubs = block("A group by stubs alone", "python")
    exec(compile(stubs, "README.md: stubs", "exec"), dict(names))
    assert "1 [0]" in capfd.readouterr().out


def test_the_last_step_of_an_upgrade_runs_as_printed(
    tmp_path: Path, small_cluster: LocalCluster
) -> None:
    describe, upgrade = commands(block("Upgrade", "bash"))
    servers = small_cluster.bootstrap_servers
    assert "controller" in run(describe, tmp_path, servers)
    assert "already" in run(upgrade, tmp_path, servers)  # a new cluster has the newest levels


HELD_BY = {
    ("Two commands", "bash"): test_the_two_commands_are_scripts_that_ci_runs,
    ("A cluster to play with", "bash"): test_the_cluster_to_play_with_answers_as_printed,
    ("In pipes", "bash"): test_the_lines_of_pipes_run_as_printed,
    ("For operators", "bash"): test_each_line_for_operators_succeeds_as_printed,
    ("Measure", "bash"): test_a_measurement_runs_as_printed,
    ("Install", "bash"): wheel.test_what_readme_installs_is_as_much_as_it_says,
    ("Python", "python"): test_the_python_blocks_run_as_printed,
    ("Consumer groups", "python"): test_the_python_blocks_run_as_printed,
    ("Transactions", "python"): test_the_python_blocks_run_as_printed,
    ("Tests without a cluster", "python"): documents.test_the_test_in_the_readme_passes,
    ("Any language, by gRPC", "python"): test_the_python_blocks_run_as_printed,
    ("A group by stubs alone", "python"): test_the_python_blocks_run_as_printed,
    ("Spark", "python"): wheel.test_spark_finds_the_format_by_its_name,
    ("Spark: some columns", "python"): spark_session.test_the_blocks_of_the_readme_run_as_printed,
    ("Spark: SQL", "sql"): spark_session.test_the_sql_of_the_readme_runs_as_printed,
    ("Spark: a stream", "python"): spark_session.test_the_blocks_of_the_readme_run_as_printed,
    ("Spark: a sink", "python"): spark_sink.test_the_block_of_the_readme_runs_as_printed,
    ("Spark: typed values", "python"): spark_session.test_the_blocks_of_the_readme_run_as_printed,
    **{
        (section, "python"): spark_session.test_the_blocks_of_the_readme_run_as_printed
        for section in (
            "Spark: progress of streams",
            "Spark: the tier, past the brokers",
            "Spark: push-down",
        )
    },
    ("Kubernetes", "bash"): helm.test_the_kubernetes_block_renders_as_printed,
    ("Upgrade", "bash"): test_the_last_step_of_an_upgrade_runs_as_printed,
}


def test_every_block_of_the_page_is_held_by_a_test() -> None:
    picture, *rest = [(found.section, found.language) for found in blocks()]
    assert picture == ("Tidemark", "")
    assert rest == list(HELD_BY)
