"""Offsets: who may commit them, what is told of them, and when they end (KIP-211, KIP-447)."""

from __future__ import annotations

from uuid import UUID

import pytest

from coordinator.groups.commits import Commit
from coordinator.groups.shard import GroupSettings
from tests.coordinator.groups.driver import GROUP, Client, Driver, settle
from tests.coordinator.images import image, topic_id
from tidemark.errors import (
    ApiError,
    ErrorCode,
    GroupIdNotFoundError,
    InvalidGroupIdError,
    NonEmptyGroupError,
    StaleMemberEpochError,
    UnknownMemberIdError,
    UnknownTopicIdError,
)
from tidemark.v1 import group_pb2 as pb

DAY_MS = 24 * 3_600_000


def topics(
    name: str = "a", number: int = 0, offset: int = 1, text: str = "", of: UUID | None = None
) -> list[pb.OffsetCommitRequest.Topic]:
    partition = pb.OffsetCommitRequest.Partition(
        partition_index=number, committed_offset=offset, committed_metadata=text
    )
    topic = pb.OffsetCommitRequest.Topic(name=name, partitions=[partition])
    if of is not None:
        topic.topic_id = of.bytes
    return [topic]


def commit(
    driver: Driver,
    wanted: list[pb.OffsetCommitRequest.Topic],
    member: str = "",
    epoch: int = -1,
    group: str = GROUP,
    producer_id: int = -1,
) -> int:
    """Commits; returns the code of the first partition."""
    request = Commit(group, member, epoch, wanted)
    answer = driver.apply(driver.shard.commit(request, driver.now), producer_id)
    return int(answer.topics[0].partitions[0].error_code)


def fetched(driver: Driver, name: str = "a", number: int = 0, stable: bool = False) -> int:
    """The offset that a group has, or the number of the error below zero."""
    topic = pb.OffsetFetchRequest.Topic(name=name, partition_indexes=[number])
    request = pb.OffsetFetchRequest.Group(group_id=GROUP, topics=[topic])
    found = driver.shard.fetch(request, stable).topics[0].partitions[0]
    return -int(found.error_code) if found.error_code else int(found.committed_offset)


def test_a_group_without_members_takes_commits_of_anybody() -> None:
    driver = Driver({"a": 2})
    assert fetched(driver) == -1
    assert commit(driver, topics(offset=5, text="so far")) == 0
    assert commit(driver, topics(number=1, offset=9)) == 0
    assert (fetched(driver), fetched(driver, number=1)) == (5, 9)
    driver.reload()
    found = driver.shard.fetch(pb.OffsetFetchRequest.Group(group_id=GROUP, all_topics=True), False)
    assert [p.committed_offset for p in found.topics[0].partitions] == [5, 9]
    assert found.topics[0].partitions[0].metadata == "so far"
    assert found.topics[0].partitions[0].committed_leader_epoch == -1
    (listed,) = driver.shard.list_groups()
    assert (listed.group_id, listed.group_state, listed.group_type) == (GROUP, "Empty", "classic")


def test_only_members_commit_for_a_group_that_has_some() -> None:
    driver = Driver({"a": 2})
    first = Client(driver, "1", "a")
    assert commit(driver, topics(), "1", first.epoch) == 0
    with pytest.raises(UnknownMemberIdError, match="only they"):
        commit(driver, topics())
    with pytest.raises(UnknownMemberIdError, match="join again"):
        commit(driver, topics(), "2", 1)
    with pytest.raises(StaleMemberEpochError):
        commit(driver, topics(), "1", first.epoch + 1)
    with pytest.raises(GroupIdNotFoundError):
        commit(driver, topics(), "1", 1, group="other")


def test_a_commit_of_an_earlier_epoch_counts_for_what_the_member_still_has() -> None:
    driver = Driver({"a": 2})
    first = Client(driver, "1", "a")
    second = Client(driver, "2", "a")
    settle(first, second)
    ((_, mine),) = first.partitions
    assert first.epoch == 2
    assert commit(driver, topics(number=mine, offset=3), "1", 1) == 0
    with pytest.raises(StaleMemberEpochError, match="did not have"):
        commit(driver, topics(number=1 - mine), "1", 1)
    with pytest.raises(StaleMemberEpochError):
        commit(driver, topics(number=1 - mine), "2", 1)
    again = Client(driver, "1", "a")  # it gave up everything
    assert again.epoch == 2
    with pytest.raises(StaleMemberEpochError):
        commit(driver, topics(number=mine), "1", 1)


def test_a_partition_that_is_being_revoked_is_still_committed() -> None:
    driver = Driver({"a": 2})
    first = Client(driver, "1", "a")
    Client(driver, "2", "a")
    driver.heartbeat("1", first.epoch)
    for number in (0, 1):
        assert commit(driver, topics(number=number, offset=8), "1", 1) == 0
    with pytest.raises(StaleMemberEpochError):
        commit(driver, topics(), "2", 1)


def test_wrong_commits_have_their_error_and_the_others_count() -> None:
    driver = Driver({"a": 2}, GroupSettings(offset_metadata_max_bytes=4))
    assert commit(driver, topics(text="12345")) == ErrorCode.OFFSET_METADATA_TOO_LARGE
    assert commit(driver, topics(text="ääx")) == ErrorCode.OFFSET_METADATA_TOO_LARGE
    assert commit(driver, topics(offset=-1)) == ErrorCode.INVALID_REQUEST
    assert commit(driver, topics(number=1, text="1234")) == 0
    assert (fetched(driver), fetched(driver, number=1)) == (-1, 1)
    with pytest.raises(InvalidGroupIdError):
        commit(driver, topics(), group="")


def test_offsets_of_an_earlier_topic_of_the_same_name_do_not_count() -> None:
    driver = Driver({"a": 1})
    assert commit(driver, topics(offset=7, of=topic_id("a"))) == 0
    driver.image = image({"a": 1}, {"a": 1})
    assert fetched(driver) == -1
    with pytest.raises(UnknownTopicIdError):
        commit(driver, topics(of=topic_id("a")))
    deleted = {topic_id("a"): "a"}
    assert driver.shard.has_offsets_of(deleted)
    assert driver.apply(driver.shard.forget_topics(deleted))
    assert not driver.shard.has_offsets_of(deleted)
    assert commit(driver, topics(offset=2, of=topic_id("a", 1))) == 0
    assert not driver.shard.has_offsets_of(deleted)
    assert fetched(driver) == 2


def test_many_offsets_of_a_deleted_topic_are_forgotten_in_pieces() -> None:
    driver = Driver({"a": 1})
    for group in range(1_500):
        assert commit(driver, topics(), group=f"g{group}") == 0
    deleted = {topic_id("a"): "a"}
    assert not driver.apply(driver.shard.forget_topics(deleted))
    assert driver.apply(driver.shard.forget_topics(deleted))
    assert driver.shard.offsets.count == 0


def test_a_transactions_offsets_count_with_its_marker() -> None:
    driver = Driver({"a": 1})
    assert commit(driver, topics(offset=1)) == 0
    assert commit(driver, topics(offset=5), producer_id=77) == 0
    assert fetched(driver) == 1
    assert fetched(driver, stable=True) == -ErrorCode.UNSTABLE_OFFSET_COMMIT
    driver.shard.end_transaction(77, committed=False)
    assert fetched(driver, stable=True) == 1
    assert commit(driver, topics(offset=6), producer_id=77) == 0
    driver.shard.end_transaction(77, committed=True)
    assert fetched(driver, stable=True) == 6
    assert not driver.shard.offsets.has_open_transactions(GROUP)


def test_a_later_commit_is_not_undone_by_a_transaction_that_ends_behind_it() -> None:
    driver = Driver({"a": 1})
    commit(driver, topics(offset=5), producer_id=77)
    commit(driver, topics(offset=9))
    driver.shard.end_transaction(77, committed=True)
    assert fetched(driver) == 9


def test_a_deleted_offset_does_not_come_back_by_a_transaction() -> None:
    driver = Driver({"a": 1})
    commit(driver, topics(offset=5), producer_id=77)
    wanted = [pb.OffsetFetchRequest.Topic(name="a", partition_indexes=[0])]
    driver.apply(driver.shard.delete_offsets(pb.OffsetDeleteRequest(group_id=GROUP, topics=wanted)))
    driver.shard.end_transaction(77, committed=True)
    assert fetched(driver) == -1


def test_offsets_of_subscribed_topics_are_not_deleted() -> None:
    driver = Driver({"a": 1, "b": 1})
    commit(driver, topics("a"))
    commit(driver, topics("b"))
    Client(driver, "1", subscribed_topic_regex="a")
    wanted = [pb.OffsetFetchRequest.Topic(name=name, partition_indexes=[0]) for name in "ab"]
    answer = driver.apply(
        driver.shard.delete_offsets(pb.OffsetDeleteRequest(group_id=GROUP, topics=wanted))
    )
    codes = [topic.partitions[0].error_code for topic in answer.topics]
    assert codes == [ErrorCode.GROUP_SUBSCRIBED_TO_TOPIC, ErrorCode.NONE]
    assert (fetched(driver, "a"), fetched(driver, "b")) == (1, -1)
    with pytest.raises(GroupIdNotFoundError):
        driver.shard.delete_offsets(pb.OffsetDeleteRequest(group_id="other"))


def test_a_group_is_deleted_with_its_offsets_when_its_members_left() -> None:
    driver = Driver({"a": 1})
    first = Client(driver, "1", "a")
    commit(driver, topics(), "1", first.epoch)
    commit(driver, topics("a", 0, 3), "1", first.epoch, producer_id=77)
    with pytest.raises(NonEmptyGroupError):
        driver.shard.delete_group(GROUP)
    driver.heartbeat("1", -1)
    driver.apply(driver.shard.delete_group(GROUP))
    driver.shard.end_transaction(77, committed=True)
    assert not driver.shard.list_groups()
    for ask in (driver.shard.delete_group, driver.shard.describe):
        with pytest.raises(GroupIdNotFoundError):
            ask(GROUP)
    driver.reload(compacted=True)
    assert not driver.shard.list_groups()


def test_a_fenced_member_is_told_so_when_it_fetches_offsets() -> None:
    driver = Driver({"a": 1})
    first = Client(driver, "1", "a")

    def ask(member: str, epoch: int) -> None:
        request = pb.OffsetFetchRequest.Group(
            group_id=GROUP, member_id=member, member_epoch=epoch, all_topics=True
        )
        driver.shard.fetch(request, True)

    ask("1", first.epoch)
    ask("", -1)
    for member, epoch, error in (
        ("2", 1, UnknownMemberIdError),
        ("1", first.epoch + 1, StaleMemberEpochError),
    ):
        with pytest.raises(ApiError) as refused:
            ask(member, epoch)
        assert type(refused.value) is error


def test_offsets_expire_with_their_group() -> None:
    driver = Driver({"a": 1, "b": 1})
    first = Client(driver, "1", "a")
    commit(driver, topics("a"), "1", first.epoch)
    commit(driver, topics("b"), "1", first.epoch)
    for _ in range(8 * 24 * 240):
        driver.advance(15_000)
        first.beat()
    assert fetched(driver, "b") == -1, "nobody subscribes to it"
    assert fetched(driver, "a") == 1, "it is in use, however old it is"
    driver.heartbeat("1", -1)
    driver.advance(1_000_000)
    assert not driver.shard.list_groups()
    assert not driver.shard.groups


def test_young_offsets_and_those_of_open_transactions_stay() -> None:
    driver = Driver({"a": 2})
    commit(driver, topics(number=0))
    commit(driver, topics(number=1), producer_id=77)
    driver.advance(6 * DAY_MS)
    assert fetched(driver) == 1
    commit(driver, topics(number=0), producer_id=77)
    driver.advance(2 * DAY_MS)
    assert fetched(driver) == 1
    driver.shard.end_transaction(77, committed=True)
    driver.advance(DAY_MS)
    assert (fetched(driver, number=0), fetched(driver, number=1)) == (1, -1)
