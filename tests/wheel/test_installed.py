"""The installed wheel works without the checkout, and each extra is enough for its purpose."""

from __future__ import annotations

import json
import re
import shlex
from pathlib import Path

import pytest

from tests.readme import block
from tests.wheel.conftest import Install
from tests.wheel.environment import needed
from tidemark.cli.local_cluster import LocalCluster

CLIENT = block("Python", "python")
RAW = block("Any language, by gRPC", "python")
SPARK = block("Spark", "python")

OWN = """
import sys, tidemark
assert tidemark.__file__.startswith(sys.prefix + "/lib/"), tidemark.__file__
"""
PRODUCE_AND_CONSUME = """
import sys
from tidemark import Admin, Consumer, NewTopic, Producer, TopicPartition

with Admin(sys.argv[1]) as admin:
    admin.create_topics([NewTopic("fresh", num_partitions=1, replication_factor=1)])
with Producer(sys.argv[1], compression_type="zstd") as producer:
    producer.send("fresh", b"tide", key=b"in").result()
with Consumer(sys.argv[1]) as consumer:
    consumer.assign([TopicPartition("fresh", 0)])
    consumer.seek_to_beginning()
    print([(record.key, record.value) for record in consumer.poll(timeout_ms=10_000)])
"""
ADMINISTER = """
import sys
from tidemark import Admin, NewTopic

with Admin(sys.argv[1]) as admin:
    admin.create_topics([NewTopic("plain", num_partitions=1, replication_factor=1)])
    print([topic.name for topic in admin.list_topics()])
"""


def test_what_readme_installs_is_as_much_as_it_says() -> None:
    for line in block("Install", "bash").splitlines():
        command, comment = line.split("#")
        words = set(shlex.split(command)) - {"pip", "install", "&&"}
        if "--no-deps" in words:
            words -= {"--no-deps", "."}
        brought = needed(*(re.sub(r"^\.", "tidemark", word) for word in words))
        (count,) = re.findall(r"(\d+) packages", comment)
        assert len(brought) + 1 == int(count), line


def test_a_plain_install_produces_and_consumes(
    install: Install, small_cluster: LocalCluster
) -> None:
    client = install("tidemark")
    servers = small_cluster.bootstrap_servers
    out = client.output("python", "-c", OWN + PRODUCE_AND_CONSUME, servers)
    assert out == "[(b'in', b'tide')]\n"
    listed = client.output("tidemark", "topics", "list", "--bootstrap-server", servers)
    assert "fresh" in listed


def test_a_command_of_a_node_names_the_extra_that_it_needs(install: Install) -> None:
    done = install("tidemark").run("tidemark", "dev")
    assert done.returncode == 1
    assert done.stderr == (
        "tidemark: this command needs 'immutables', which is not installed: "
        "pip install 'tidemark[server]'\n"
    )


def test_administration_and_plain_records_need_neither_arrow_nor_numba(
    install: Install, small_cluster: LocalCluster
) -> None:
    small = install("grpcio", "protobuf", "crc32c")
    servers = small_cluster.bootstrap_servers
    assert "'plain'" in small.output("python", "-c", OWN + ADMINISTER, servers)
    raw = f"leader_address = {servers!r}\n" + RAW.replace('"greetings"', '"plain"')
    assert 'value: "hello from anywhere"' in small.output("python", "-c", raw)


def test_tidemark_dev_runs_a_cluster_from_what_is_installed(
    install: Install, tmp_path: Path
) -> None:
    server = install("tidemark[server]")
    command = ("tidemark", "dev", "--data-dir", str(tmp_path / "data"), "--json")
    with server.first_line(*command) as line:
        at = ("--bootstrap-server", json.loads(line)["bootstrap_servers"])
        server.output("tidemark", "topics", "create", "events", "--partitions", "1", *at)
        server.output("tidemark", "produce", "events", *at, stdin="hello\n")
        read = ("consume", "events", "--from-beginning", "--max-messages", "1")
        assert server.output("tidemark", *read, *at) == "hello\n"
        (segment,) = tmp_path.glob("data/broker-*/events-0/*.log")
        assert "hello" in server.output("tidemark", "dump-log", "--print-data-log", str(segment))


@pytest.mark.spark
def test_spark_finds_the_format_by_its_name(install: Install, small_cluster: LocalCluster) -> None:
    executor = install("tidemark", "pyspark")  # no more than that: an image that has Spark
    names = f"bootstrap_servers = {small_cluster.bootstrap_servers!r}\n"
    executor.output("python", "-c", names + CLIENT)
    assert "hello" in executor.output("python", "-c", OWN + names + SPARK)
