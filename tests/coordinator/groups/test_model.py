"""Random histories of a group: lost answers, pauses, moved coordinators, changing topics.

After every event no partition has two owners, and replaying the log gives the same state. Once all
is quiet, every partition of a subscribed topic has an owner.
"""

from __future__ import annotations

import contextlib
import random
from typing import Any

import pytest

from coordinator.groups.members import Assignment
from coordinator.groups.shard import GroupSettings
from tests.coordinator.groups.driver import GROUP, Driver
from tests.coordinator.images import topic_id
from tidemark.errors import ApiError

SESSION_MS, REBALANCE_MS = 10_000, 8_000


class Process:
    """A client as the protocol wants it: after any failure it tells all, and a fenced one gives up
    what it has. It also gives up by itself when its session must be over."""

    def __init__(self, world: World, name: str) -> None:
        self.world, self.name = world, name
        self.epoch = 0
        self.tells_all = True
        self.owned: Assignment = {}
        self.revoking: Assignment = {}
        self.heard_ms = world.driver.now_ms
        self.told = world.subscription()

    def beat(self, lost: bool) -> None:
        driver = self.world.driver
        told: dict[str, Any] = {"owned": self.owned}
        if self.epoch == 0 or self.tells_all:
            told |= {"rebalance_timeout_ms": REBALANCE_MS, **self.told}
        try:
            answer = driver.heartbeat(self.name, self.epoch, **told)
        except ApiError:
            self.give_up()
            return
        if lost:
            self.tells_all = True
            return
        self.tells_all = False
        self.heard_ms = driver.now_ms
        self.epoch = answer.member_epoch
        if answer.assignment is not None:
            self.owned = {t: n for t, n in answer.assignment.items() if n}

    def give_up(self) -> None:
        self.owned, self.epoch, self.tells_all = {}, 0, True

    def look_at_the_time(self) -> None:
        if self.world.driver.now_ms - self.heard_ms >= min(SESSION_MS, REBALANCE_MS):
            self.give_up()


class World:
    def __init__(self, seed: int) -> None:
        self.draw = random.Random(seed)
        settings = GroupSettings(session_timeout_ms=SESSION_MS)
        self.driver = Driver({"a": 4, "b": 3}, settings)
        self.processes: dict[str, Process] = {}
        self.names = iter(range(10_000))
        self.patterns = self.draw.random() < 0.3

    def subscription(self) -> dict[str, Any]:
        if self.patterns and self.draw.random() < 0.5:
            return {"subscribed_topic_names": (), "subscribed_topic_regex": "[ab]"}
        topics = self.draw.choice([("a",), ("a", "b"), ("b", "c"), ("a", "b", "c")])
        return {"subscribed_topic_names": topics, "subscribed_topic_regex": ""}

    def step(self) -> None:
        draw = self.draw
        match draw.choices(range(7), (30, 6, 4, 4, 10, 3, 3))[0]:
            case 0 if self.processes:
                draw.choice(list(self.processes.values())).beat(lost=draw.random() < 0.2)
            case 1 if len(self.processes) < 6:
                name = str(next(self.names))
                self.processes[name] = Process(self, name)
                self.processes[name].beat(lost=draw.random() < 0.2)
            case 2 if self.processes:
                gone = self.processes.pop(draw.choice(list(self.processes)))
                if draw.random() < 0.5 and gone.epoch:
                    gone.give_up()
                    with contextlib.suppress(ApiError):
                        self.driver.heartbeat(gone.name, -1)
                else:
                    self.processes[f"dead-{gone.name}"] = gone  # it pauses, and holds what it has
            case 3:
                self.driver.reload(compacted=draw.random() < 0.5)
            case 4:
                self.driver.advance(draw.choice([100, 1_000, 5_000]))
            case 5:
                counts = {t: draw.randint(1, 5) for t in ("a", "b", "c") if draw.random() < 0.8}
                self.driver.set_topics(counts)
            case 6 if self.processes:
                process = draw.choice(list(self.processes.values()))
                process.told, process.tells_all = self.subscription(), True
        for process in self.processes.values():
            process.look_at_the_time()
        self.check()

    def check(self) -> None:
        owners: dict[tuple[Any, int], str] = {}
        for process in self.processes.values():
            for topic, numbers in process.owned.items():
                for number in numbers:
                    other = owners.setdefault((topic, number), process.name)
                    assert other == process.name, f"{topic}-{number}: {other}, {process.name}"

    def check_replay(self) -> None:
        before = self.driver.shard
        for compacted in (False, True):
            self.driver.reload(compacted)
            after = self.driver.shard
            assert set(after.groups) == set(before.groups)
            for name, group in before.groups.items():
                other = after.groups[name]
                for field in ("epoch", "metadata_hash", "assignment_epoch", "members", "target"):
                    assert getattr(other, field) == getattr(group, field), field
                assert other.static_members == group.static_members
                assert other.resolved == group.resolved
                assert other._owners == group._owners

    def end(self) -> None:
        """All that is left beats on until nothing changes."""
        for _ in range(30):
            for process in list(self.processes.values()):
                process.beat(lost=False)
                self.check()
            self.driver.advance(500)
        group = self.driver.shard.groups.get(GROUP)
        if not self.processes or group is None:
            return
        assert group.state == "Stable"
        owned = {
            (topic, number)
            for process in self.processes.values()
            for topic, numbers in process.owned.items()
            for number in numbers
        }
        assert owned == {
            (topic_id(name), number)
            for name in group.topic_names()
            if (topic := self.driver.image.topics.get(name)) is not None
            for number in range(len(topic.partitions))
        }


@pytest.mark.parametrize("seed", range(60))
def test_no_partition_has_two_owners_and_all_get_one(seed: int) -> None:
    world = World(seed)
    for step in range(150):
        world.step()
        if step % 10 == 0:
            world.check_replay()
    world.end()
    world.check_replay()
