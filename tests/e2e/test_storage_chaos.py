"""Brokers and their disks under faults, with a load: every acknowledged record is there once and in
order, and the replicas are equal.

Brokers are killed and stopped. Disks break, vanish, come back or are replaced. Replicas move
between directories, records are deleted and compacted, segments go to the tier.
`TIDEMARK_CHAOS_SEED` chooses the actions, `TIDEMARK_CHAOS_ACTIONS` their number.
"""

from __future__ import annotations

import os
import random
from pathlib import Path
from typing import Any

import pytest

from commitlog.disk.os_files import OsDirectory
from commitlog.dump import DumpOptions, dump_file
from tests.crash.strace import require_strace
from tests.e2e.storage_faults import DISKS, Faults, disk_of
from tests.e2e.storage_load import (
    EVENTS,
    PARTITIONS,
    STATE,
    TIERED,
    TOPICS,
    Load,
    check,
    read_all,
    starts_of,
)
from tidemark.cli.dev import tier_settings
from tidemark.cli.local_cluster import LocalCluster
from tidemark.client import Admin, NewTopic
from tidemark.types import TopicPartition

SETTINGS = {
    "broker.session.timeout.ms": "3000",
    "broker.heartbeat.interval.ms": "300",
    "replica.lag.time.max.ms": "10000",
    "log.retention.check.interval.ms": "500",
    "log.cleaner.backoff.ms": "300",
    "log.cleaner.dedupe.buffer.size": "1048576",
    "log.cleaner.delete.retention.ms": "86400000",
    "replica.alter.log.dirs.io.max.bytes.per.second": "300000",
    "remote.log.manager.task.interval.ms": "500",
    "remote.log.metadata.topic.num.partitions": "1",
}
SMALL = {
    "min.insync.replicas": "2",
    "segment.bytes": "30000",
    "index.interval.bytes": "1000",
    "file.delete.delay.ms": "500",
}
OF_TOPIC = {
    EVENTS: {},
    TIERED: {"remote.storage.enable": "true", "local.retention.bytes": "90000"},
    STATE: {"cleanup.policy": "compact", "min.cleanable.dirty.ratio": "0.2"},
}
HEAVY = ["broken_disk", "replaced_disk", "absent_disk", "lost_disk", "kill", "pause"]
LIGHT = ["move", "move", "delete_records", "elect"]


def cluster_in(path: Path, controllers: int) -> LocalCluster:
    """Three brokers with two disks each; their metadata logs are on a third one."""
    overrides = {
        broker: {
            "log.dirs": ",".join(str(disk_of(path, broker, name)) for name in DISKS),
            "metadata.log.dir": str(path / f"broker-{broker}"),
        }
        for broker in range(controllers + 1, controllers + 4)
    }
    return LocalCluster(
        path,
        controllers=controllers,
        brokers=3,
        overrides=SETTINGS | tier_settings(path / "tier"),
        node_overrides=overrides,
    )


def plan(rng: random.Random, count: int, *, controllers: int) -> list[str]:
    """Heavy actions with light ones before them, so that moves are under way when a disk breaks."""
    heavy = HEAVY + ["kill_controller"] * (controllers > 1)
    actions = []
    for _ in range(count):
        actions += rng.sample(LIGHT, 2)
        actions.append(rng.choice(heavy))
    return actions


def chaos(path: Path, seed: int, actions: list[str], controllers: int) -> None:
    repeat = f"TIDEMARK_CHAOS_SEED={seed}: {actions}"
    with cluster_in(path, controllers) as cluster:
        cluster.wait_ready(60)
        servers = cluster.bootstrap_servers
        with Admin(servers) as admin, Load(servers, seed) as load:
            admin.create_topics(
                [NewTopic(t, PARTITIONS, 3, configs=SMALL | OF_TOPIC[t]) for t in TOPICS]
            )
            faults = Faults(cluster, load, admin, seed)
            load.wait_more(300)
            faults.run(actions)
            load.stop()
            brokers = cluster.broker_ids
            faults.wait_for_isr(set(brokers))
            faults.until(lambda: settled(faults), 60, lambda: watched(faults))
            check(load, read_all(servers), starts_of(admin, brokers))
        processes = [cluster.node(n).process for n in (*cluster.controller_ids, *brokers)]
    assert all(process is not None and process.poll() == 0 for process in processes), repeat
    compare_replicas(path, brokers)


def settled(faults: Faults) -> bool:
    return not watched(faults)


def watched(faults: Faults) -> list[str]:
    """The unfinished work: moves under way, replicas that lag, offline directories."""
    found = []
    ends: dict[TopicPartition, set[tuple[int, int]]] = {}
    for broker in faults.cluster.broker_ids:
        for name, directory in faults.log_dirs(broker).items():
            if directory.error is not None:
                found.append(f"{name}: {directory.error} {directory.error_message}")
            for replica in directory.replicas:
                if replica.is_future:
                    found.append(f"{name}: {replica.topic_partition} moves there")
                    continue
                end = replica.log_end_offset, replica.high_watermark
                ends.setdefault(replica.topic_partition, set()).add(end)
                if replica.uncleanable_reason:
                    found.append(f"{name}: {replica.uncleanable_reason}")
    for topic in TOPICS:
        for partition in range(PARTITIONS):
            known = ends.get(TopicPartition(topic, partition), set())
            if len(known) != 1 or len(set(next(iter(known)))) != 1:
                found.append(f"{topic}-{partition}: (end, high watermark) {known}")
    return found


def compare_replicas(path: Path, brokers: list[int]) -> None:
    """Asserts that each broker has one log of each partition on disk, with the same records."""
    for topic in TOPICS:
        for partition in range(PARTITIONS):
            name = f"{topic}-{partition}"
            logs = []
            for broker in brokers:
                homes = [
                    found
                    for disk in DISKS
                    for found in disk_of(path, broker, disk).glob(f"{name}*")
                    if not found.name.endswith("-delete")
                ]
                assert [home.name for home in homes] == [name], homes
                logs.append(entries(homes[0], deep=topic == STATE))
            if topic == STATE:
                same_state(name, logs)
            else:
                same_batches(name, logs)


def entries(log: Path, *, deep: bool) -> list[dict[str, Any]]:
    """The batches, or the records, of all segments. Asserts that none is damaged."""
    found = []
    options = DumpOptions(deep_iteration=deep, print_data_log=deep)
    for segment in sorted(log.glob("*.log")):
        for entry in dump_file(OsDirectory(str(log)), segment.name, options):
            assert entry["kind"] not in ("damage", "mismatch"), entry
            if entry["kind"] == ("record" if deep else "batch"):
                found.append(entry)
    return found


def same_batches(name: str, logs: list[list[dict[str, Any]]]) -> None:
    fields = ("base_offset", "last_offset", "partition_leader_epoch", "crc")
    begin = max(log[0]["base_offset"] for log in logs)
    first, *others = (
        [tuple(b[f] for f in fields) for b in log if b["base_offset"] >= begin] for log in logs
    )
    for other in others:
        assert other == first, f"{name}: {sorted(set(other) ^ set(first))[:10]}"


def same_state(name: str, logs: list[list[dict[str, Any]]]) -> None:
    """Asserts that common entries are equal, and the last value of each key; cleaning times
    differ.
    """
    by_offset: dict[int, tuple[Any, Any]] = {}
    states = []
    for log in logs:
        state = {}
        for record in log:
            stored = record["key"], record["payload"]
            assert by_offset.setdefault(record["offset"], stored) == stored, (name, record)
            state[record["key"]] = (record["offset"], record["payload"])
        states.append(state)
    for state in states[1:]:
        assert state == states[0], f"{name}: {set(state.items()) ^ set(states[0].items())}"


def test_acknowledged_records_survive_what_happens_to_disks(tmp_path: Path) -> None:
    require_strace(tmp_path)
    seed = int(os.environ.get("TIDEMARK_CHAOS_SEED", "1"))
    count = int(os.environ.get("TIDEMARK_CHAOS_ACTIONS", "0"))
    rng = random.Random(seed)
    actions = ["move", "delete_records", "move", "replaced_disk"]
    if count:
        actions = plan(rng, count, controllers=1)
    chaos(tmp_path, seed, actions, controllers=1)


@pytest.mark.soak
@pytest.mark.timeout(900)
@pytest.mark.skipif("TIDEMARK_SOAK" not in os.environ, reason="scripts/soak runs it")
@pytest.mark.parametrize("seed", [11, 12, 13])
def test_the_same_for_longer(seed: int, tmp_path: Path) -> None:
    require_strace(tmp_path)
    chaos(tmp_path, seed, plan(random.Random(seed), 8, controllers=3), controllers=3)
