"""A member's life in a consumer group (KIP-848), in the scenarios of Kafka's tests."""

from __future__ import annotations

import pytest

from coordinator.groups.heartbeat import Heartbeat
from coordinator.groups.members import MemberState
from coordinator.groups.shard import GroupSettings
from coordinator.records.groups import ConsumerGroupCurrentMemberAssignmentKey
from tests.coordinator.groups.driver import GROUP, Client, Driver, settle
from tests.coordinator.images import topic_id
from tidemark.errors import (
    FencedInstanceIdError,
    FencedMemberEpochError,
    GroupMaxSizeReachedError,
    InvalidRegularExpressionError,
    InvalidRequestError,
    UnknownMemberIdError,
    UnreleasedInstanceIdError,
    UnsupportedAssignorError,
)


def of(name: str, *numbers: int) -> set[tuple[object, int]]:
    return {(topic_id(name), number) for number in numbers}


def test_the_first_member_gets_everything_at_once() -> None:
    driver = Driver({"a": 3, "b": 2})
    first = Client(driver, "1", "a", "b")
    assert first.partitions == of("a", 0, 1, 2) | of("b", 0, 1)
    assert first.epoch == 1
    assert driver.shard.groups[GROUP].state == "Stable"


def test_a_partition_is_given_only_after_its_old_owner_let_go() -> None:
    driver = Driver({"a": 4})
    first, second = Client(driver, "1", "a"), Client(driver, "2", "a")
    assert not second.partitions
    assert second.epoch == 2
    answer = driver.heartbeat("1", first.epoch)  # it says nothing of what it owns
    assert answer.member_epoch == 1, "it stays in its epoch until it has revoked"
    assert answer.assignment is not None
    kept = answer.assignment[topic_id("a")]
    assert len(kept) == 2
    second.beat()
    assert not second.partitions, "the first one has not let go"
    assert driver.shard.groups[GROUP].state == "Reconciling"
    still = driver.heartbeat("1", 1, owned={topic_id("a"): frozenset(range(4))})
    assert still.member_epoch == 1
    done = driver.heartbeat("1", 1, owned={topic_id("a"): kept})
    assert done.member_epoch == 2
    second.beat()
    assert second.partitions == of("a", *({0, 1, 2, 3} - kept))
    assert driver.shard.groups[GROUP].state == "Stable"


def test_members_that_keep_their_partitions_never_stop() -> None:
    driver = Driver({"a": 6})
    clients = [Client(driver, str(number), "a") for number in range(3)]
    settle(*clients)
    before = [client.partitions for client in clients]
    driver.heartbeat("2", -1)
    for client in clients[:2]:
        client.beat()
    assert all(mine <= client.partitions for mine, client in zip(before, clients[:2], strict=False))
    assert len(clients[0].partitions | clients[1].partitions) == 6


def test_a_member_without_heartbeats_is_removed_after_its_session() -> None:
    driver = Driver({"a": 2}, GroupSettings(session_timeout_ms=10_000))
    first, second = Client(driver, "1", "a"), Client(driver, "2", "a")
    settle(first, second)
    driver.advance(9_000)
    first.beat()
    driver.advance(1_000)
    assert set(driver.members()) == {"1"}
    first.beat()
    assert first.partitions == of("a", 0, 1)
    with pytest.raises(UnknownMemberIdError, match="epoch 0"):
        second.beat()


@pytest.mark.parametrize("jump_ms", [-86_400_000, 86_400_000])
def test_a_wall_clock_that_jumps_ends_no_session(jump_ms: int) -> None:
    driver = Driver({"t": 2})
    epoch = driver.join("a", "t").member_epoch
    driver.wall_ahead_ms += jump_ms
    driver.advance(44_000)
    assert driver.heartbeat("a", epoch).member_epoch == epoch
    driver.advance(44_000)
    assert "a" in driver.shard.groups[GROUP].members
    driver.advance(1_000)
    assert "a" not in driver.shard.groups[GROUP].members


def test_a_member_that_does_not_revoke_in_time_is_removed() -> None:
    driver = Driver({"a": 2}, GroupSettings(session_timeout_ms=1_000_000))
    first = Client(driver, "1", "a")
    Client(driver, "2", "a")
    held = {topic_id("a"): frozenset({0, 1})}
    for _ in range(6):
        driver.heartbeat("1", first.epoch, owned=held)
        driver.advance(5_000)
    assert set(driver.members()) == {"2"}


def test_each_revocation_has_the_whole_rebalance_timeout() -> None:
    driver = Driver({"a": 4}, GroupSettings(session_timeout_ms=1_000_000))
    first, _ = Client(driver, "1", "a"), Client(driver, "2", "a")
    first.beat()
    driver.advance(20_000)
    Client(driver, "3", "a")
    Client(driver, "4", "a")
    first.beat()
    assert driver.members()["1"].state is MemberState.UNREVOKED_PARTITIONS
    driver.advance(20_000)
    assert "1" in driver.members()
    driver.advance(10_000)
    assert "1" not in driver.members()


def test_a_request_whose_answer_was_lost_may_come_again() -> None:
    driver = Driver({"a": 4})
    first = Client(driver, "1", "a")
    second = Client(driver, "2", "a")
    settle(first, second)
    driver.heartbeat("2", -1)
    lost = driver.heartbeat("1", first.epoch, owned=first.owned)
    assert lost.member_epoch > first.epoch
    again = driver.heartbeat(
        "1", first.epoch, owned=first.owned, rebalance_timeout_ms=1, subscribed_topic_names=("a",)
    )
    assert again == lost
    with pytest.raises(FencedMemberEpochError):
        driver.heartbeat("1", first.epoch)  # it does not say what it owns
    with pytest.raises(FencedMemberEpochError):
        driver.heartbeat("1", first.epoch - 1, owned=first.owned)
    with pytest.raises(FencedMemberEpochError):
        driver.heartbeat("1", lost.member_epoch + 1, owned=first.owned)


def test_a_fenced_member_that_gave_up_everything_joins_again_at_once() -> None:
    driver = Driver({"a": 4})
    first, second = Client(driver, "1", "a"), Client(driver, "2", "a")
    settle(first, second)
    again = Client(driver, "1", "a")
    assert len(again.partitions) == 2
    assert not again.partitions & second.partitions


def test_a_static_member_comes_back_to_its_partitions_without_a_rebalance() -> None:
    driver = Driver({"a": 4})
    first = Client(driver, "1", "a", instance_id="x")
    second = Client(driver, "2", "a")
    settle(first, second)
    epoch = driver.shard.groups[GROUP].epoch
    before = first.partitions
    with pytest.raises(UnreleasedInstanceIdError, match="must leave first"):
        Client(driver, "3", "a", instance_id="x")
    driver.heartbeat("1", -2, instance_id="x")
    second.beat()
    assert not second.partitions & before
    back = Client(driver, "3", "a", instance_id="x")
    assert back.partitions == before
    assert driver.shard.groups[GROUP].epoch == epoch
    with pytest.raises(FencedInstanceIdError):
        driver.heartbeat("1", first.epoch, instance_id="x")


def test_a_static_member_that_stays_away_is_removed_after_its_session() -> None:
    driver = Driver({"a": 2}, GroupSettings(session_timeout_ms=10_000))
    Client(driver, "1", "a", instance_id="x")
    driver.heartbeat("1", -2, instance_id="x")
    driver.advance(10_000)
    assert not driver.shard.groups[GROUP].members
    assert not driver.shard.groups[GROUP].static_members
    assert Client(driver, "3", "a", instance_id="x").partitions == of("a", 0, 1)


def test_new_partitions_and_topics_of_a_subscription_are_given_out() -> None:
    driver = Driver({"a": 1})
    first = Client(driver, "1", "a", "b")
    assert first.partitions == of("a", 0)
    driver.set_topics({"a": 2})
    first.beat()
    assert first.partitions == of("a", 0, 1)
    driver.set_topics({"a": 2, "b": 1})
    first.beat()
    assert first.partitions == of("a", 0, 1) | of("b", 0)
    driver.set_topics({"b": 1})
    first.beat()
    first.beat()
    assert first.partitions == of("b", 0)
    epoch = driver.shard.groups[GROUP].epoch
    driver.set_topics({"b": 1, "c": 9})
    first.beat()
    assert driver.shard.groups[GROUP].epoch == epoch, "nobody subscribes to it"


def test_a_pattern_matches_whole_names_and_topics_that_come_later() -> None:
    driver = Driver({"logs-a": 1, "logs-b": 1, "xlogs-a": 1, "__consumer_offsets": 1})
    first = Client(driver, "1", subscribed_topic_regex="logs-.*|__consumer.*")
    assert first.partitions == of("logs-a", 0) | of("logs-b", 0)
    driver.set_topics({"logs-a": 1, "logs-c": 1})
    settle(first)
    assert first.partitions == of("logs-a", 0) | of("logs-c", 0)
    first.beat(subscribed_topic_regex="logs-c")
    settle(first)
    assert first.partitions == of("logs-c", 0)
    assert set(driver.shard.groups[GROUP].resolved) == {"logs-c"}


def test_a_changed_subscription_moves_partitions_once() -> None:
    driver = Driver({"a": 2, "b": 2})
    first, second = Client(driver, "1", "a"), Client(driver, "2", "a", "b")
    settle(first, second)
    assert first.partitions <= of("a", 0, 1)
    first.beat(subscribed_topic_names=("b",))
    settle(first, second)
    assert first.partitions | second.partitions == of("a", 0, 1) | of("b", 0, 1)
    assert first.partitions <= of("b", 0, 1)
    assert not first.partitions & second.partitions


def test_a_heartbeat_without_news_appends_nothing() -> None:
    driver = Driver({"a": 2})
    first = Client(driver, "1", "a")
    size = len(driver.log)
    answer = driver.heartbeat("1", first.epoch)
    assert answer.assignment is None
    assert len(driver.log) == size


def test_the_assignment_is_told_to_a_member_that_tells_all() -> None:
    driver = Driver({"a": 2})
    first = Client(driver, "1", "a")
    told = driver.heartbeat(
        "1",
        first.epoch,
        owned=first.owned,
        rebalance_timeout_ms=30_000,
        subscribed_topic_names=("a",),
    )
    assert told.assignment == {topic_id("a"): frozenset({0, 1})}


def test_a_full_group_takes_nobody_else() -> None:
    driver = Driver({"a": 2}, GroupSettings(max_size=1))
    Client(driver, "1", "a")
    with pytest.raises(GroupMaxSizeReachedError, match=r"group\.consumer\.max\.size"):
        Client(driver, "2", "a")
    Client(driver, "1", "a")


def test_most_members_choose_the_assignor() -> None:
    driver = Driver({"a": 4, "b": 4})
    clients = [Client(driver, str(n), "a", "b", server_assignor="range") for n in range(2)]
    settle(*clients)
    assert clients[0].partitions == of("a", 0, 1) | of("b", 0, 1)
    assert driver.shard.describe(GROUP).assignor_name == "range"


def test_unknown_members_and_groups_are_told_to_join() -> None:
    driver = Driver({"a": 1})
    for epoch in (1, -1, -2):
        with pytest.raises(UnknownMemberIdError):
            driver.heartbeat("1", epoch, instance_id="x" if epoch == -2 else None)
    Client(driver, "1", "a")
    for epoch in (1, -1):
        with pytest.raises(UnknownMemberIdError):
            driver.heartbeat("2", epoch)


@pytest.mark.parametrize(
    ("told", "error"),
    [
        ({"rebalance_timeout_ms": -1}, InvalidRequestError),
        ({"owned": None}, InvalidRequestError),
        ({"owned": {topic_id("a"): frozenset({0})}}, InvalidRequestError),
        ({"subscribed_topic_names": ()}, InvalidRequestError),
        ({"instance_id": ""}, InvalidRequestError),
        ({"rack_id": " "}, InvalidRequestError),
        ({"server_assignor": "sticky"}, UnsupportedAssignorError),
        ({"subscribed_topic_regex": "("}, InvalidRegularExpressionError),
    ],
)
def test_a_wrong_first_heartbeat_is_refused(told: dict[str, object], error: type) -> None:
    driver = Driver({"a": 1})
    with pytest.raises(error):
        driver.join("1", **({"subscribed_topic_names": ("a",)} | told))
    assert not driver.shard.groups


def test_wrong_ids_and_epochs_are_refused() -> None:
    driver = Driver({"a": 1})
    for wrong in (Heartbeat("", "1", 1), Heartbeat("g", "", 1), Heartbeat("g", "1" * 200, 1)):
        with pytest.raises(InvalidRequestError):
            driver.shard.heartbeat(wrong, 0)
    for epoch in (-2, -3):
        with pytest.raises(InvalidRequestError):
            driver.heartbeat("1", epoch)


def test_a_coordinator_that_moved_knows_all_and_gives_whole_sessions() -> None:
    driver = Driver({"a": 4}, GroupSettings(session_timeout_ms=10_000))
    first = Client(driver, "1", "a", instance_id="x")
    second = Client(driver, "2", subscribed_topic_regex="a")
    first.beat()
    before = driver.members()
    for compacted in (False, True):
        driver.advance(6_000)
        driver.reload(compacted)
        assert driver.members() == before
    driver.advance(9_000)
    settle(first, second)
    assert first.partitions | second.partitions == of("a", 0, 1, 2, 3)


def test_a_static_member_that_left_holds_nothing_that_it_was_to_give_up() -> None:
    driver = Driver({"a": 4})
    first = Client(driver, "1", "a", instance_id="x")
    second = Client(driver, "2", "a")
    first.beat(instance_id="x")  # it is told to give up two
    driver.heartbeat("1", -2, instance_id="x")
    second.beat()
    assert len(second.partitions) == 2
    assert not driver.members()["1"].revoking


def test_silent_members_are_removed_by_the_next_coordinator_too() -> None:
    driver = Driver({"a": 2}, GroupSettings(session_timeout_ms=10_000))
    first, second = Client(driver, "1", "a"), Client(driver, "2", "a")
    driver.heartbeat("1", first.epoch)  # it is told to give up one
    driver.reload()
    for _ in range(3):
        driver.advance(8_000)
        driver.heartbeat("1", first.epoch)
    assert set(driver.members()) == {"1"}, "the second one was silent"
    driver.advance(8_000)
    assert not driver.members(), "it has not given up in 30 s"
    assert second.epoch == 2


def test_a_member_whose_current_assignment_is_deleted_has_no_partitions() -> None:
    driver = Driver({"a": 2})
    Client(driver, "1", "a")
    driver.shard.replay(ConsumerGroupCurrentMemberAssignmentKey(GROUP, "1"), None, 0, -1)
    assert not driver.members()["1"].assigned
    assert driver.members()["1"].subscribed_topic_names == ("a",)
    assert driver.shard.groups[GROUP].owner_of(topic_id("a"), 0) is None
