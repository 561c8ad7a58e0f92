"""Delivery to listeners that load a checkpoint in steps: the order of their calls."""

from __future__ import annotations

import asyncio
from collections.abc import Generator
from dataclasses import dataclass, field

import pytest

from quorum.raft.effects import LeaderAndEpoch
from quorum.replica.client import CommittedBatch
from quorum.replica.listeners import Listeners
from snapshot.names import SnapshotId
from tests.quorum.replica.servers import RaftNodes, Recorder
from tidemark.errors import CorruptMessageError

LEADER = LeaderAndEpoch(2, 1)
CHECKPOINT = SnapshotId(5, 1)


@dataclass
class FakeReplica:
    high_watermark: int | None = 10
    leader_and_epoch: LeaderAndEpoch = LEADER
    role: object = None
    committed_offset: int | None = 8


@dataclass
class FakeReader:
    id: SnapshotId


@dataclass
class FakeLog:
    """A log with one record a batch, from `start_offset` on."""

    start_offset: int = 5
    latest_snapshot: SnapshotId | None = CHECKPOINT

    def open_snapshot(self, snapshot_id: SnapshotId) -> FakeReader:
        return FakeReader(snapshot_id)

    def read_committed(
        self, offset: int, end_offset: int, max_bytes: int
    ) -> tuple[list[CommittedBatch], int]:
        assert offset >= self.start_offset
        return [CommittedBatch(offset, offset, 1, 0, [b"x"])], offset + 1


@dataclass
class Slow:
    """A listener that needs three steps for a checkpoint, or fails at one of them."""

    heard: list[str] = field(default_factory=list)
    fails_at: int | None = None

    def handle_commit(self, batches: list[CommittedBatch]) -> None:
        self.heard.append(f"commit {batches[0].base_offset}")

    def handle_load_snapshot(self, reader: FakeReader) -> Generator[None, None, None]:
        try:
            for step in range(3):
                if step == self.fails_at:
                    raise CorruptMessageError("a torn batch")
                self.heard.append(f"step {step} of {reader.id.end_offset}")
                yield
        except GeneratorExit:
            self.heard.append(f"given up {reader.id.end_offset}")
            raise
        self.heard.append(f"loaded {reader.id.end_offset}")

    def handle_caught_up(self) -> None:
        self.heard.append("caught up")

    def handle_leader_change(self, leader: LeaderAndEpoch) -> None:
        self.heard.append(f"leader {leader.leader_id}")


def delivery(listener: Slow, log: FakeLog | None = None) -> tuple[Listeners, FakeReplica, FakeLog]:
    replica, log = FakeReplica(), log or FakeLog()
    listeners = Listeners(replica, log)  # type: ignore[arg-type]
    listeners.add(listener)  # type: ignore[arg-type]
    return listeners, replica, log


def test_each_round_is_one_step_and_nothing_else_comes_before_the_last() -> None:
    listener = Slow()
    listeners, _, _ = delivery(listener)
    for step in range(3):
        assert listeners.deliver()
        assert listener.heard[-1] == f"step {step} of 5"
    assert sum(iter(listeners.deliver, False)) == 4
    assert listener.heard == [
        *("step 0 of 5", "step 1 of 5", "step 2 of 5", "loaded 5"),
        *("commit 5", "leader 2", "commit 6", "commit 7", "caught up", "commit 8", "commit 9"),
    ]


def test_other_listeners_do_not_wait_for_a_slow_one() -> None:
    slow, quick = Slow(), Slow()
    listeners, _, log = delivery(slow)
    listeners.deliver()
    log.latest_snapshot, log.start_offset = None, 0
    listeners.add(quick)  # type: ignore[arg-type]
    listeners.deliver()
    assert quick.heard == ["commit 0", "leader 2"]
    assert slow.heard == ["step 0 of 5", "step 1 of 5"]


def test_a_load_is_given_up_when_the_log_begins_behind_it() -> None:
    listener = Slow()
    listeners, replica, log = delivery(listener)
    listeners.deliver()
    log.latest_snapshot, log.start_offset, replica.high_watermark = SnapshotId(20, 1), 20, 21
    for _ in range(4):
        listeners.deliver()
    assert listener.heard == [
        *("step 0 of 5", "given up 5", "step 0 of 20", "step 1 of 20", "step 2 of 20"),
        *("loaded 20", "commit 20", "caught up", "leader 2"),
    ]


def test_a_newer_checkpoint_that_the_log_still_leads_to_disturbs_no_load() -> None:
    listener = Slow()
    listeners, _, log = delivery(listener)
    listeners.deliver()
    log.latest_snapshot = SnapshotId(9, 1)
    for _ in range(3):
        listeners.deliver()
    assert listener.heard[:5] == [
        *("step 0 of 5", "step 1 of 5", "step 2 of 5", "loaded 5", "commit 5"),
    ]
    assert "loaded 9" not in listener.heard


def test_a_failure_in_the_middle_reaches_the_replica() -> None:
    listener = Slow(fails_at=2)
    listeners, _, _ = delivery(listener)
    listeners.deliver()
    listeners.deliver()
    with pytest.raises(CorruptMessageError, match="torn"):
        listeners.deliver()
    assert "loaded 5" not in listener.heard


class Gated(Recorder):
    """A state machine whose load lasts until the test ends it."""

    def __init__(self) -> None:
        super().__init__()
        self.steps, self.may_end = 0, False

    def handle_load_snapshot(self, reader) -> Generator[None, None, None]:
        while not self.may_end:
            self.steps += 1
            yield
        super().handle_load_snapshot(reader)


def test_a_voter_that_loads_a_checkpoint_votes_and_acknowledges_meanwhile() -> None:
    async def scenario() -> None:
        nodes = RaftNodes()
        await nodes.start_all(1, 2, 3)
        leader = await nodes.elected()
        written = [b"value-%d" % n for n in range(20)]
        leader.append(leader.epoch, written)
        await nodes.committed(written)
        for node_id, server in nodes.servers.items():
            await server.create_snapshot(nodes.recorders[node_id].next_offset, written)
        loading = {n: Gated() for n in nodes.servers}
        for node_id, server in nodes.servers.items():
            server.register(loading[node_id])
        await nodes.until(lambda: all(g.steps > 3 for g in loading.values()), "all load")
        # All nodes are in the middle of a load: the two that remain need each other's votes.
        await nodes.kill(leader.node_id)
        successor = await nodes.elected()
        successor.append(successor.epoch, [b"after"])
        await nodes.committed([*written, b"after"])
        left = [loading[n] for n in nodes.servers]
        assert all((g.values, g.leaders, g.snapshots_loaded) == ([], [], 0) for g in left)
        for gated in left:
            gated.may_end = True
        await nodes.until(lambda: all(g.values[-1:] == [b"after"] for g in left), "they went on")
        await nodes.until(
            lambda: loading[successor.node_id].leader.is_leader(successor.node_id), ""
        )
        assert all(g.values == [*written, b"after"] for g in left)
        await nodes.stop_all()

    asyncio.run(scenario())
