"""A group shard with a log in memory: what is decided is appended and replayed at once."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeVar
from uuid import UUID

from coordinator.groups.heartbeat import Heartbeat, HeartbeatAnswer
from coordinator.groups.members import Assignment
from coordinator.groups.shard import GroupSettings, GroupShard
from coordinator.records.groups import GROUP_RECORDS
from coordinator.runtime.now import Now
from coordinator.runtime.result import CoordinatorResult
from tests.coordinator.images import image

A = TypeVar("A")

GROUP = "g"


class Driver:
    """One partition; time moves by `advance` alone, the wall clock also by `wall_ahead_ms`."""

    def __init__(self, topics: Mapping[str, int], settings: GroupSettings | None = None) -> None:
        self.settings = settings or GroupSettings()
        self.image = image(topics)
        self.now_ms = 1_000_000
        self.wall_ahead_ms = 1_700_000_000_000
        self.log: list[tuple[bytes, bytes | None, int]] = []
        self.shard = self._new_shard()
        self.shard.loaded(0, self.now)

    @property
    def now(self) -> Now:
        return Now(self.now_ms + self.wall_ahead_ms, self.now_ms)

    def _new_shard(self) -> GroupShard:
        return GroupShard(self.settings, lambda: self.image)

    def apply(self, result: CoordinatorResult[A], producer_id: int = -1) -> A:
        """Appends and replays; through their bytes, as the runtime does at a load."""
        for key, value in result.records:
            data = GROUP_RECORDS.encode(key, value)
            self.log.append((*data, producer_id))
            self.shard.replay(*GROUP_RECORDS.decode(*data), len(self.log) - 1, producer_id)
        return result.answer

    def reload(self, compacted: bool = False) -> None:
        """The coordinator moves: another shard replays the log, as the cleaner may have left it."""
        last = {key: number for number, (key, _, _) in enumerate(self.log)}
        self.shard = self._new_shard()
        for number, (key, value, producer_id) in enumerate(self.log):
            if not compacted or last[key] == number:
                decoded = GROUP_RECORDS.decode(key, value)
                self.shard.replay(*decoded, number, producer_id)
        self.shard.loaded(1, self.now)

    def set_topics(self, topics: Mapping[str, int]) -> None:
        """The topics change, and the shard is told."""
        names = {*self.image.topics.ids_by_name, *topics}
        self.image = image(topics)
        self.shard.topics_changed(names)

    def advance(self, by_ms: int) -> None:
        """Moves the time on, and carries out what is due."""
        end_ms = self.now_ms + by_ms
        while (due_ms := self.shard.next_deadline_ms()) is not None and due_ms <= end_ms:
            self.now_ms = max(self.now_ms, due_ms)
            for result in self.shard.on_deadline(self.now):
                self.apply(result)
        self.now_ms = end_ms

    def heartbeat(self, member: str, epoch: int, **told: Any) -> HeartbeatAnswer:
        return self.apply(self.shard.heartbeat(Heartbeat(GROUP, member, epoch, **told), self.now))

    def join(self, member: str, *topics: str, **told: Any) -> HeartbeatAnswer:
        """The first heartbeat of a member."""
        values: dict[str, Any] = {
            "rebalance_timeout_ms": 30_000,
            "owned": {},
            "subscribed_topic_names": topics,
        }
        return self.heartbeat(member, 0, **(values | told))

    def members(self) -> dict[str, Any]:
        return dict(self.shard.groups[GROUP].members)


class Client:
    """A member that does as it is told: it gives up at once what it is not assigned."""

    def __init__(self, driver: Driver, name: str, *topics: str, **told: Any) -> None:
        self.driver, self.name = driver, name
        self.owned: Assignment = {}
        answer = driver.join(name, *topics, **told)
        self.epoch = answer.member_epoch
        self._take(answer)

    def _take(self, answer: HeartbeatAnswer) -> None:
        self.epoch = answer.member_epoch
        if answer.assignment is not None:
            self.owned = {k: v for k, v in answer.assignment.items() if v}

    def beat(self, **told: Any) -> HeartbeatAnswer:
        """A heartbeat that tells what it owns."""
        answer = self.driver.heartbeat(self.name, self.epoch, owned=self.owned, **told)
        self._take(answer)
        return answer

    @property
    def partitions(self) -> set[tuple[UUID, int]]:
        return {(topic, number) for topic, numbers in self.owned.items() for number in numbers}


def settle(*clients: Client, rounds: int = 4) -> None:
    """Heartbeats of all, until all have what they are to have."""
    for _ in range(rounds):
        for client in clients:
            client.beat()
