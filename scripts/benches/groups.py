"""Consumer groups: commits, heartbeats, a rebalance, and the load of a coordinator's partition.

The ceiling of requests is FindCoordinator in the same run: a unary call that decides nothing and
appends nothing. That of a load is the decoding of its records alone.
"""

from __future__ import annotations

import asyncio
import os
import tempfile
import time
import tracemalloc
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import grpc.aio
from benches.idle import Usage

from coordinator.groups.shard import GroupSettings, GroupShard
from coordinator.records.groups import GROUP_RECORDS, OffsetCommitKey, OffsetCommitValue
from coordinator.runtime.batches import Replayed, decode, encode
from quorum.image import EMPTY_IMAGE
from tidemark.cli.local_cluster import LocalCluster
from tidemark.client import Admin, NewTopic
from tidemark.errors import raise_for
from tidemark.v1 import group_pb2 as pb
from tidemark.v1 import group_pb2_grpc

SECONDS = 5.0
MEMBERS = int(os.environ.get("BENCH_GROUPS_MEMBERS", "1000"))
OFFSETS = int(os.environ.get("BENCH_GROUPS_OFFSETS", "200000"))
_UNDER_WAY = 32
Row = dict[str, Any]


def _row(name: str, value: float, unit: str, ceiling: float | None = None) -> Row:
    ratio = None if not ceiling else value / ceiling
    return {"name": name, "value": value, "unit": unit, "ceiling": ceiling, "ratio": ratio}


async def _per_second(ask: Callable[[int], Awaitable[Any]]) -> float:
    """Calls a second, with some of them under way at each time."""
    began, count = time.perf_counter(), 0

    async def work(number: int) -> None:
        nonlocal count
        while time.perf_counter() < began + SECONDS:
            await ask(number)
            count += 1

    await asyncio.gather(*(work(number) for number in range(_UNDER_WAY)))
    return count / (time.perf_counter() - began)


def _commit(group: str, partitions: int) -> pb.OffsetCommitRequest:
    request = pb.OffsetCommitRequest(group_id=group)
    topic = request.topics.add(name="events")
    for number in range(partitions):
        topic.partitions.add(partition_index=number, committed_offset=number)
    return request


def _join(member: int) -> pb.ConsumerGroupHeartbeatRequest:
    request = pb.ConsumerGroupHeartbeatRequest(group_id="crowd", member_id=f"member-{member:05}")
    request.rebalance_timeout_ms = 300_000
    request.subscribed_topic_names.names.append("events")
    request.owned.SetInParent()
    return request


async def _requests(address: str, pid: int) -> list[Row]:
    rows: list[Row] = []
    async with grpc.aio.insecure_channel(address) as channel:
        groups = group_pb2_grpc.GroupsStub(channel)
        keys = [f"group-{number}" for number in range(_UNDER_WAY)]
        finds = [pb.FindCoordinatorRequest(coordinator_keys=[key]) for key in keys]
        while (await groups.FindCoordinator(finds[0])).coordinators[0].error_code:  # noqa: ASYNC110
            await asyncio.sleep(0.2)

        async def measured(name: str, ask: Callable[[int], Awaitable[Any]]) -> tuple[float, float]:
            await _per_second(ask)  # warm
            begin = Usage.of(pid).cpu_s
            rate = await _per_second(ask)
            return rate, (Usage.of(pid).cpu_s - begin) / (rate * SECONDS) * 1e6

        plain, plain_us = await measured("find", lambda n: groups.FindCoordinator(finds[n]))
        rows.append(_row("FindCoordinator", plain, "/s"))
        for size in (1, 100):
            commits = [_commit(key, size) for key in keys]
            rate, cpu_us = await measured("commit", lambda n, c=commits: groups.OffsetCommit(c[n]))
            rows.append(
                _row(f"commits of {size} offsets, by {_UNDER_WAY} groups", rate, "/s", plain)
            )
            rows.append(_row(f"  broker's CPU of one, {size} offsets", cpu_us, "us", plain_us))
        rows += await _crowd(groups, pid, plain_us)
    return rows


async def _crowd(groups: Any, pid: int, plain_us: float) -> list[Row]:
    """1,000 members: their heartbeats, and one that leaves."""
    epochs: list[int] = []
    for number in range(MEMBERS):
        answer = await groups.ConsumerGroupHeartbeat(_join(number))
        raise_for(answer.error_code, answer.error_message)
        epochs.append(answer.member_epoch)

    async def beat(number: int, owned: Any = None) -> Any:
        request = _join(number)
        request.member_epoch = epochs[number]
        if owned is not None:
            request.owned.CopyFrom(owned)
        answer = await groups.ConsumerGroupHeartbeat(request)
        raise_for(answer.error_code, answer.error_message)
        epochs[number] = answer.member_epoch
        return answer

    async def settle() -> None:
        for _ in range(4):
            for number in range(MEMBERS):
                answer = await beat(number)
                if answer.HasField("assignment"):
                    await beat(number, answer.assignment)

    await settle()
    short = [
        pb.ConsumerGroupHeartbeatRequest(
            group_id="crowd", member_id=f"member-{n:05}", member_epoch=epochs[n]
        )
        for n in range(MEMBERS)
    ]
    begin, began = Usage.of(pid).cpu_s, time.perf_counter()
    for request in short:
        raise_for((await groups.ConsumerGroupHeartbeat(request)).error_code)
    cpu_us = (Usage.of(pid).cpu_s - begin) / MEMBERS * 1e6
    rate = MEMBERS / (time.perf_counter() - began)
    leave = pb.ConsumerGroupHeartbeatRequest(
        group_id="crowd", member_id="member-00007", member_epoch=-1
    )
    begin_s = time.perf_counter()
    await groups.ConsumerGroupHeartbeat(leave)
    left_s = time.perf_counter()
    await beat(8)
    assigned_s = time.perf_counter()
    return [
        _row(f"heartbeats of {MEMBERS} members, one after another", rate, "/s"),
        _row("  broker's CPU of one", cpu_us, "us", plain_us),
        _row("  of the members, every 5 s, of a core", cpu_us * MEMBERS / 5 / 1e4, "%"),
        _row("a member leaves", (left_s - begin_s) * 1e3, "ms"),
        _row("the next heartbeat, which assigns anew", (assigned_s - left_s) * 1e3, "ms"),
    ]


def _load() -> list[Row]:
    """Replays the records of many offsets, of 1,000 groups."""
    batches = []
    for begin in range(0, OFFSETS, 1_000):
        records = [
            (
                OffsetCommitKey(f"group-{number % 1_000}", "events", number // 1_000),
                OffsetCommitValue(number, 5, "", 1_700_000_000_000),
            )
            for number in range(begin, begin + 1_000)
        ]
        batches.append(encode(GROUP_RECORDS, records, 1_700_000_000_000))
    began = time.perf_counter()
    for batch in batches:
        for _ in decode(GROUP_RECORDS, batch):
            pass
    decoding_s = time.perf_counter() - began
    shard = GroupShard(GroupSettings(), lambda: EMPTY_IMAGE)
    tracemalloc.start()
    before = tracemalloc.get_traced_memory()[0]
    for batch in batches:
        for found in decode(GROUP_RECORDS, batch):
            assert isinstance(found, Replayed)
            shard.replay(found.key, found.value, found.offset, found.producer_id)
    held = tracemalloc.get_traced_memory()[0] - before
    tracemalloc.stop()
    assert shard.offsets.count == OFFSETS
    shard = GroupShard(GroupSettings(), lambda: EMPTY_IMAGE)
    began = time.perf_counter()
    for batch in batches:
        for found in decode(GROUP_RECORDS, batch):
            shard.replay(found.key, found.value, found.offset, -1)  # type: ignore[union-attr]
    load_s = time.perf_counter() - began
    return [
        _row("load of a partition", OFFSETS / load_s, "offsets/s", OFFSETS / decoding_s),
        _row("memory of an offset", held / OFFSETS, "B"),
    ]


def run() -> list[Row]:
    """Requests to one broker, then a load in this process."""
    with (
        tempfile.TemporaryDirectory(prefix="bench-groups-") as path,
        LocalCluster(Path(path), controllers=1, brokers=1) as cluster,
        Admin(cluster.bootstrap_servers) as admin,
    ):
        cluster.wait_ready(60)
        admin.create_topics([NewTopic("events", 1_000, 1)])
        admin.wait_until_topics_known(["events"])
        (pid,) = [p.pid for n in cluster.broker_ids if (p := cluster.node(n).process) is not None]
        rows = asyncio.run(_requests(cluster.bootstrap_servers, pid))
    return rows + _load()
