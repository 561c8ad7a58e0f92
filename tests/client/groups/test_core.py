"""A member's core against the coordinator's: lost answers, pauses, a coordinator that moves."""

from __future__ import annotations

import random
from collections.abc import Mapping
from itertools import pairwise

import pytest

from coordinator.groups.description import fill_assignment
from coordinator.groups.heartbeat import Heartbeat
from coordinator.groups.shard import GroupSettings
from node.coordination.groups import decoded
from tests.coordinator.groups.driver import GROUP, Driver
from tests.coordinator.images import topic_id
from tidemark.client.groups.core import MemberSettings, Membership, MembershipCore
from tidemark.client.retry import RetryPolicy
from tidemark.errors import (
    ApiError,
    CoordinatorLoadInProgressError,
    GroupMaxSizeReachedError,
    NetworkError,
    UnreleasedInstanceIdError,
    code_of,
)
from tidemark.types import TopicPartition
from tidemark.v1 import group_pb2 as pb

INTERVAL_MS = 3_000


def settings(name: str = "1", **values: object) -> MemberSettings:
    return MemberSettings(GROUP, name, retry=RetryPolicy(), **values)  # type: ignore[arg-type]


class Process:
    """A consumer that polls: it takes over each assignment at once."""

    def __init__(self, driver: Driver, name: str = "1", **values: object) -> None:
        self.driver = driver
        self.core = MembershipCore(settings(name, **values), random.Random(name))
        self.sent: list[pb.ConsumerGroupHeartbeatRequest] = []
        self.lost: list[set[TopicPartition]] = []

    def subscribe(self, *names: str, pattern: str = "") -> None:
        self.core.subscribe(names, pattern, self.driver.now_ms)

    def poll(self) -> None:
        now_ms = self.driver.now_ms
        self.core.polled(now_ms)
        if self.core.error is not None:
            raise self.core.error
        if self.core.state is Membership.LOST:
            self.lost.append(set(self.core.owned))
            self.core.gave_up(now_ms)
        if self.core.has_work and self.core.target is not None:
            self.core.reconciled(self.core.target, now_ms)

    def beat(self, lose: str = "") -> bool:
        """Sends the heartbeat that is due; loses the request, or the answer."""
        request = self.core.heartbeat(self.driver.now_ms)
        if request is None:
            return False
        self.sent.append(request)
        answer = None if lose == "request" else self.serve(request)
        if answer is None or lose == "answer":
            self.core.failed(NetworkError("lost"), self.driver.now_ms)
        else:
            self.core.answered(request, answer, self.driver.now_ms)
        return True

    def serve(self, request: pb.ConsumerGroupHeartbeatRequest) -> pb.ConsumerGroupHeartbeatResponse:
        heartbeat: Heartbeat = decoded(request, "client", "/host")
        try:
            found = self.driver.apply(self.driver.shard.heartbeat(heartbeat, self.driver.now))
        except ApiError as error:
            return pb.ConsumerGroupHeartbeatResponse(
                error_code=int(code_of(error)), error_message=str(error)
            )
        answer = pb.ConsumerGroupHeartbeatResponse(
            member_epoch=found.member_epoch, heartbeat_interval_ms=INTERVAL_MS
        )
        if found.assignment is not None:
            answer.assignment.SetInParent()
            fill_assignment(answer.assignment, found.assignment, self.driver.image)
        return answer

    def run(self, ms: int) -> None:
        """Polls and heartbeats for some time."""
        end_ms = self.driver.now_ms + ms
        while True:
            self.poll()
            while self.beat():
                self.poll()
            if self.driver.now_ms >= end_ms:
                return
            self.driver.advance(100)

    @property
    def partitions(self) -> Mapping[TopicPartition, bytes]:
        return self.core.owned


def parts(name: str, *numbers: int) -> dict[TopicPartition, bytes]:
    return {TopicPartition(name, number): topic_id(name).bytes for number in numbers}


def test_a_member_joins_and_then_tells_only_what_is_new() -> None:
    process = Process(Driver({"a": 2}), rack_id="r", assignor="range")
    process.subscribe("a")
    process.run(10_000)
    assert process.partitions == parts("a", 0, 1)
    first, owned, *rest = process.sent
    assert (first.member_epoch, first.rack_id, first.server_assignor) == (0, "r", "range")
    assert first.HasField("owned")
    assert list(first.subscribed_topic_names.names) == ["a"]
    assert not owned.HasField("subscribed_topic_names")
    assert [list(t.partitions) for t in owned.owned.topic_partitions] == [[0, 1]]
    assert len(rest) == 3
    for request in rest:
        assert not request.HasField("owned")
        assert not request.HasField("rebalance_timeout_ms")


def test_a_lost_answer_is_asked_for_again_with_everything() -> None:
    process = Process(Driver({"a": 2}))
    process.subscribe("a")
    for lose in ("request", "answer", "answer"):
        while not process.beat(lose):
            process.driver.advance(100)
    process.run(2_000)
    assert process.partitions == parts("a", 0, 1)
    while not process.beat("answer"):
        process.driver.advance(100)
    sent = len(process.sent)
    process.run(2_000)
    assert process.sent[sent].HasField("owned")
    assert process.sent[sent].HasField("subscribed_topic_names")


def test_failures_are_repeated_with_a_growing_pause() -> None:
    process = Process(Driver({"a": 2}))
    process.subscribe("a")
    times = []
    for _ in range(6):
        while not process.beat("request"):
            process.driver.advance(1)
        times.append(process.driver.now_ms)
    pauses = [b - a for a, b in pairwise(times)]
    assert pauses[0] < 130
    assert 800 <= pauses[-1] <= 1_200


def test_a_fenced_member_gives_up_all_and_joins_again() -> None:
    process = Process(Driver({"a": 2}, GroupSettings(session_timeout_ms=10_000)))
    process.subscribe("a")
    process.run(1_000)
    process.driver.advance(20_000)
    assert process.driver.members() == {}
    assert process.beat()
    assert process.core.state is Membership.LOST
    assert process.core.has_work
    assert not process.beat(), "it joins when it has given up"
    process.run(1_000)
    assert process.lost == [set(parts("a", 0, 1))]
    assert process.partitions == parts("a", 0, 1)


def test_a_member_that_does_not_poll_leaves_and_comes_back_with_the_next_poll() -> None:
    driver = Driver({"a": 2})
    process = Process(driver, max_poll_interval_ms=20_000)
    process.subscribe("a")
    process.run(1_000)
    for _ in range(150):
        process.beat()
        driver.advance(100)
    assert driver.members(), "heartbeats go on while it works"
    for _ in range(100):
        process.beat()
        driver.advance(100)
    assert driver.members() == {}
    assert process.core.take_leaving()
    assert not process.core.take_leaving()
    process.run(1_000)
    assert process.lost == [set(parts("a", 0, 1))]
    assert process.partitions == parts("a", 0, 1)


def test_a_static_member_leaves_for_a_while() -> None:
    process = Process(Driver({"a": 2}), instance_id="x")
    process.subscribe("a")
    process.run(1_000)
    leave = process.core.leave()
    assert leave is not None
    assert (leave.member_epoch, leave.instance_id) == (-2, "x")
    process.serve(leave)
    assert set(process.driver.members()) == {"1"}
    assert process.core.state is Membership.OUT
    assert process.core.next_ms() is None
    assert process.core.leave() is None
    other = Process(process.driver, "2", instance_id="x")
    other.subscribe("a")
    other.run(1_000)
    assert other.partitions == parts("a", 0, 1)


def test_a_static_member_waits_for_its_predecessor_to_be_gone() -> None:
    driver = Driver({"a": 2}, GroupSettings(session_timeout_ms=10_000))
    first, second = (Process(driver, name, instance_id="x") for name in "12")
    first.subscribe("a")
    first.run(1_000)
    second.subscribe("a")
    second.run(5_000)
    assert not second.partitions
    second.run(10_000)
    assert second.partitions == parts("a", 0, 1)
    assert code_of(UnreleasedInstanceIdError()) == 111


def test_an_error_that_no_retry_cures_stops_the_member_until_it_subscribes() -> None:
    driver = Driver({"a": 2}, GroupSettings(max_size=1))
    first, second = Process(driver, "1"), Process(driver, "2")
    first.subscribe("a")
    first.run(1_000)
    second.subscribe("a")
    assert second.beat()
    with pytest.raises(GroupMaxSizeReachedError):
        second.poll()
    assert second.core.next_ms() is None
    leave = first.core.leave()
    assert leave is not None
    first.serve(leave)
    second.subscribe("a")
    second.run(1_000)
    assert second.partitions == parts("a", 0, 1)


def test_a_coordinator_that_loads_is_asked_again() -> None:
    process = Process(Driver({"a": 1}))
    process.subscribe("a")
    request = process.core.heartbeat(process.driver.now_ms)
    assert request is not None
    code = int(code_of(CoordinatorLoadInProgressError()))
    process.core.answered(
        request, pb.ConsumerGroupHeartbeatResponse(error_code=code), process.driver.now_ms
    )
    assert process.core.state is Membership.JOINING
    process.run(1_000)
    assert process.partitions == parts("a", 0)


def test_a_changed_subscription_is_told_also_if_it_changed_under_way() -> None:
    process = Process(Driver({"a": 1, "b": 1}))
    process.subscribe("a")
    request = process.core.heartbeat(process.driver.now_ms)
    assert request is not None
    process.subscribe(pattern="b")
    process.core.answered(request, process.serve(request), process.driver.now_ms)
    process.run(4_000)
    assert process.partitions == parts("b", 0)
    process.subscribe("a", "b")
    process.run(4_000)
    assert process.partitions == parts("a", 0) | parts("b", 0)


@pytest.mark.parametrize("seed", range(40))
def test_members_share_all_partitions_whatever_gets_lost(seed: int) -> None:
    draw = random.Random(seed)
    driver = Driver({"a": 5, "b": 2}, GroupSettings(session_timeout_ms=10_000))
    processes: dict[str, Process] = {}

    def check() -> None:
        owners: dict[TopicPartition, str] = {}
        for name, process in processes.items():
            member = driver.members().get(name) if driver.shard.groups else None
            if member is None:
                continue  # fenced, and does not know it
            for partition in process.partitions:
                assert owners.setdefault(partition, name) == name

    for step in range(400):
        if len(processes) < 4 and draw.random() < 0.05:
            name = f"m{step}"
            processes[name] = Process(driver, name, instance_id=draw.choice(["", name]))
            processes[name].subscribe(*draw.choice([("a",), ("a", "b")]))
        for name, process in list(processes.items()):
            if draw.random() < 0.9:
                process.poll()
            process.beat(draw.choice(["", "", "", "request", "answer"]))
            if draw.random() < 0.01:
                leave = processes.pop(name).core.leave()
                if leave is not None and draw.random() < 0.7:
                    process.serve(leave)
        if draw.random() < 0.01:
            driver.reload()
        driver.advance(draw.choice([50, 200, 1_000]))
        check()
    for _ in range(300):
        for process in processes.values():
            process.poll()
            process.beat()
        driver.advance(200)
        check()
    if processes:
        wanted = {name for p in processes.values() for name in p.core._names}
        got = {partition for p in processes.values() for partition in p.partitions}
        assert got == {TopicPartition(n, i) for n in wanted for i in range({"a": 5, "b": 2}[n])}


def test_who_gave_up_everything_has_nothing_until_it_is_told() -> None:
    process = Process(Driver({"a": 2}))
    process.subscribe("a")
    process.run(1_000)
    process.core.state = Membership.LOST
    process.core.gave_up(process.driver.now_ms)
    assert not process.partitions
    assert not process.core.has_work
    while not process.beat():
        process.driver.advance(10)
    assert process.core.has_work


def test_a_change_under_way_is_told_with_the_next_heartbeat() -> None:
    process = Process(Driver({"a": 2}))
    process.subscribe("a")
    assert process.beat()
    process.poll()
    request = process.core.heartbeat(process.driver.now_ms)
    assert request is not None
    assert list(request.owned.topic_partitions[0].partitions) == [0, 1]
    process.core.reconciled(parts("a", 0), process.driver.now_ms)
    process.core.answered(request, process.serve(request), process.driver.now_ms)
    again = process.core.heartbeat(process.driver.now_ms)
    assert again is not None, "at once"
    assert list(again.owned.topic_partitions[0].partitions) == [0]


def test_a_success_makes_the_next_pause_short_again() -> None:
    process = Process(Driver({"a": 2}))
    process.subscribe("a")
    for _ in range(6):
        while not process.beat("request"):
            process.driver.advance(10)
    process.run(2_000)
    while not process.beat("request"):
        process.driver.advance(10)
    at_ms = process.driver.now_ms
    while not process.beat():
        process.driver.advance(10)
    assert process.driver.now_ms - at_ms < 150
