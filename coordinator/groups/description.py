"""Groups as ListGroups and ConsumerGroupDescribe tell them."""

from __future__ import annotations

from coordinator.groups.assignors import DEFAULT_ASSIGNOR
from coordinator.groups.group import CLASSIC, CONSUMER, EMPTY, STABLE, ConsumerGroup
from coordinator.groups.members import Assignment, Member, plain
from coordinator.records.groups import GroupMetadataValue
from quorum.image import MetadataImage
from tidemark.v1 import group_pb2 as pb


def listed(
    group_id: str, group: ConsumerGroup | None, classic: GroupMetadataValue | None
) -> pb.ListGroupsResponse.ListedGroup:
    """A group with its state and kind; without members' records it only commits offsets."""
    return pb.ListGroupsResponse.ListedGroup(
        group_id=group_id,
        group_state=state_of(group, classic),
        group_type=CLASSIC if group is None else CONSUMER,
    )


def state_of(group: ConsumerGroup | None, classic: GroupMetadataValue | None) -> str:
    """The state of a group; one without members' records is empty."""
    if group is not None:
        return group.state
    return STABLE if classic is not None and classic.members else EMPTY


def described(
    group_id: str,
    group: ConsumerGroup | None,
    classic: GroupMetadataValue | None,
    image: MetadataImage,
) -> pb.ConsumerGroupDescribeResponse.DescribedGroup:
    """A group with its members, by id."""
    answer = pb.ConsumerGroupDescribeResponse.DescribedGroup(
        group_id=group_id, group_state=state_of(group, classic)
    )
    if group is None:
        return answer
    answer.group_epoch = group.epoch
    answer.assignment_epoch = group.assignment_epoch
    answer.assignor_name = group.preferred_assignor({}) or DEFAULT_ASSIGNOR
    for _, member in sorted(group.members.items()):
        described_member = answer.members.add()
        _describe(described_member, member, group, image)
    return answer


def _describe(
    answer: pb.ConsumerGroupDescribeResponse.Member,
    member: Member,
    group: ConsumerGroup,
    image: MetadataImage,
) -> None:
    answer.member_id = member.member_id
    answer.member_epoch = member.member_epoch
    answer.client_id = member.client_id
    answer.client_host = member.client_host
    answer.subscribed_topic_names.extend(member.subscribed_topic_names)
    if member.instance_id is not None:
        answer.instance_id = member.instance_id
    if member.rack_id is not None:
        answer.rack_id = member.rack_id
    if member.subscribed_topic_regex:
        answer.subscribed_topic_regex = member.subscribed_topic_regex
    fill_assignment(answer.assignment, plain(member.assigned), image)
    fill_assignment(answer.target_assignment, group.target_of(member), image)


def fill_assignment(answer: pb.Assignment, assignment: Assignment, image: MetadataImage) -> None:
    """Writes partitions with the names of their topics, in their order."""
    for topic_id in sorted(assignment):
        topic = image.topics.by_id(topic_id)
        answer.topic_partitions.add(
            topic_id=topic_id.bytes,
            topic_name="" if topic is None else topic.name,
            partitions=sorted(assignment[topic_id]),
        )
