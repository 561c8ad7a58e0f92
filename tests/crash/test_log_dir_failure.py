"""Disks refuse writes and syncs to a real server (strace injects EIO and ENOSPC).

A log directory takes only its own partitions offline. That of the metadata log, and the last one,
stop the process with exit code 1. Nothing acknowledged is lost after a restart.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from tests.crash.strace import require_strace
from tests.crash.traced_server import TracedServer
from tidemark.client.models import NewTopic
from tidemark.client.sync import Admin, Consumer, Producer
from tidemark.errors import ApiError, TidemarkError
from tidemark.types import TopicPartition

LOG = "00000000000000000000.log"
METADATA_LOG = f"m/__cluster_metadata-0/{LOG}"
WRITES = "pwritev,pwritev2"
SOAK = pytest.mark.skipif("TIDEMARK_SOAK" not in os.environ, reason="scripts/soak runs it")


def create(server: TracedServer, partitions: int) -> None:
    with Admin(server.address) as admin:
        admin.create_topics([NewTopic("events", partitions, 1)])


def produce(server: TracedServer, partitions: int, rounds: int) -> tuple[set[bytes], set[int]]:
    """Produces one record after the other to every partition that still accepts them. Returns the
    acknowledged ones, and the partitions that accepted no more.
    """
    acked: set[bytes] = set()
    failed: set[int] = set()
    patience: dict[str, Any] = {"delivery_timeout_ms": 2_000, "request_timeout_ms": 1_900}
    with Producer(server.address, acks="all", linger_ms=0, **patience) as producer:
        for number in range(rounds):
            sent = {
                p: producer.send("events", b"%d:%d" % (p, number), partition=p)
                for p in range(partitions)
                if p not in failed
            }
            for p, delivery in sent.items():
                try:
                    delivery.result()
                except ApiError:
                    failed.add(p)
                else:
                    acked.add(b"%d:%d" % (p, number))
    return acked, failed


def consume(server: TracedServer, partitions: list[int]) -> set[bytes]:
    found: set[bytes] = set()
    wanted = [TopicPartition("events", p) for p in partitions]
    with Consumer(server.address) as consumer:
        consumer.assign(wanted)
        consumer.seek_to_beginning()
        ends = consumer.end_offsets(wanted)
        while any(consumer.position(tp) < ends[tp] for tp in wanted):
            for batch in consumer.poll_arrow(timeout_ms=10_000).values():
                found.update(batch.column("value").to_pylist())
    return found


@pytest.mark.parametrize(
    "inject",
    [
        "fdatasync:error=EIO:when=4+",
        f"{WRITES}:error=ENOSPC:when=4+",
        pytest.param(f"{WRITES}:error=EIO:when=4+", marks=SOAK),
    ],
)
def test_a_failed_directory_takes_only_its_own_partitions_offline(
    inject: str, tmp_path: Path
) -> None:
    require_strace(tmp_path)
    with TracedServer(tmp_path, log_dirs=("a", "b"), metadata="m") as server:
        server.start(inject, [f"b/events-1/{LOG}", f"b/events-3/{LOG}"])
        server.wait_ready()
        create(server, 4)
        acked, failed = produce(server, 4, 12)
        assert server.refused(), server.output()
        assert failed == {1, 3}, server.output()
        with Admin(server.address) as admin:
            topic = admin.describe_topics(["events"])["events"]
            assert [p.leader for p in topic.partitions] == [1, None, 1, None]
        assert consume(server, [0, 2]) == {v for v in acked if v[:1] in b"02"}
        refused = server.refused()
        assert len(refused) == 1, "the first one was the last"
        server.stop()
        server.start()
        server.wait_ready()
        assert acked <= consume(server, [0, 1, 2, 3])
        _, failed = produce(server, 4, 1)
        assert not failed, server.output()


@pytest.mark.parametrize(
    ("log_dirs", "metadata", "file", "calls", "why"),
    [
        (("a", "b"), "m", METADATA_LOG, "fdatasync", METADATA_LOG),
        (("a", "b"), "a", f"a/events-0/{LOG}", "fdatasync", "the metadata log is in there"),
        pytest.param(
            *(("a",), "m", f"a/events-0/{LOG}", "fdatasync", "no other one is left"), marks=SOAK
        ),
        pytest.param(("a",), "m", METADATA_LOG, WRITES, METADATA_LOG, marks=SOAK),
        pytest.param(("a",), "m", f"a/events-0/{LOG}", WRITES, "no other one is left", marks=SOAK),
    ],
)
def test_the_metadata_directory_and_the_last_one_stop_the_process(
    log_dirs: tuple[str, ...], metadata: str, file: str, calls: str, why: str, tmp_path: Path
) -> None:
    require_strace(tmp_path)
    with TracedServer(tmp_path, log_dirs=log_dirs, metadata=metadata) as server:
        server.start(f"{calls}:error=EIO:when=12+", [file])
        server.wait_ready()
        create(server, 1)
        acked: set[bytes] = set()
        try:
            acked, _ = produce(server, 1, 40)
            for number in range(40):
                with Admin(server.address, default_api_timeout_ms=2_000) as admin:
                    admin.create_topics([NewTopic(f"more-{number}", 1, 1)])
        except TidemarkError:
            assert server.refused()
        assert server.wait_exit() == 1
        last = server.output().rstrip().splitlines()[-1]
        assert last.startswith("tidemark: node 1 stops: "), last
        assert "nput/output error" in last
        assert why in last
        assert len(server.refused()) == 1, "what was refused is never tried again"
        server.start()
        server.wait_ready()
        assert acked <= consume(server, [0])
