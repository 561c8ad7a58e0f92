"""The settings that a throttled reassignment makes and removes."""

from __future__ import annotations

from tests.cli.fake_admin import FakeAdmin, topic
from tests.cli.test_operator_commands import admin as admin
from tests.cli.test_operator_commands import call
from tidemark.cli.throttles import throttled_replicas
from tidemark.client.models import AlterConfigOp, ConfigResource, PartitionReassignment
from tidemark.types import TopicPartition

RATES = ("leader.replication.throttled.rate", "follower.replication.throttled.rate")
LISTS = ("leader.replication.throttled.replicas", "follower.replication.throttled.replicas")


def removed(*names: str) -> list[AlterConfigOp]:
    return [AlterConfigOp(name, None, "DELETE") for name in names]


ENDED = (
    "alter_configs",
    {ConfigResource.topic("t"): removed(*LISTS)}
    | {ConfigResource.broker(b): removed(*RATES) for b in (4, 5, 6)},
    False,
)


def test_replicas_that_exist_send_and_new_ones_fetch() -> None:
    a, b, c = TopicPartition("t", 0), TopicPartition("t", 1), TopicPartition("u", 0)
    before = {a: (4, 5), b: (5, 6), c: (4,)}
    wanted = {a: (5, 6), b: (6, 5), c: (4, 6)}
    assert throttled_replicas(before, wanted) == {
        "t": (["0:4", "0:5"], ["0:6"]),
        "u": (["0:4"], ["0:6"]),
    }


def test_a_throttle_is_set_before_the_moves_begin_and_removed_when_they_are_done(
    admin: FakeAdmin,
) -> None:
    admin.add(topic("t", ([4, 5], [4, 5], 4)))
    call("reassign", "execute", "t-0=5,6", "--throttle", "1000", "--dry-run")
    assert admin.calls == []
    call("reassign", "execute", "t-0=5,6", "--throttle", "1000")
    rates = [AlterConfigOp(name, "1000", "SET") for name in RATES]
    lists = [AlterConfigOp(LISTS[0], "0:4,0:5", "APPEND"), AlterConfigOp(LISTS[1], "0:6", "APPEND")]
    assert admin.calls == [
        ("alter_configs", {ConfigResource.broker(b): rates for b in (4, 5, 6)}, False),
        ("alter_configs", {ConfigResource.topic("t"): lists}, False),
        ("reassign", {TopicPartition("t", 0): (5, 6)}),
    ]
    admin.calls.clear()
    call("reassign", "verify", "t-0=5,6", exit_code=1)
    assert admin.calls == [], "it is not done: the throttle stays"
    admin.add(topic("t", ([5, 6], [5, 6], 5)))
    call("reassign", "verify", "t-0=5,6", "--preserve-throttles")
    assert admin.calls == []
    call("reassign", "verify", "t-0=5,6")
    assert admin.calls == [ENDED]


def test_a_cancelled_reassignment_is_throttled_no_more(admin: FakeAdmin) -> None:
    partition = TopicPartition("t", 0)
    admin.add(topic("t", ([4], [4], 4)))
    admin.under_way = {partition: PartitionReassignment((4, 5), (5,), ())}
    call("reassign", "cancel", "t-0")
    assert admin.calls == [("reassign", {partition: None}), ENDED]
    admin.calls.clear()
    call("reassign", "cancel", "t-0", "--preserve-throttles")
    assert admin.calls == [("reassign", {partition: None})]
