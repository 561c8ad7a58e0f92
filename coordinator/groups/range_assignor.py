"""The range assignor: for each topic a contiguous range, the same for topics of one size."""

from __future__ import annotations

from collections.abc import Mapping
from uuid import UUID

from coordinator.groups.subscribers import MemberSubscription, Partitions, TopicView


def assign_ranges(
    members: Mapping[str, MemberSubscription], topics: TopicView
) -> dict[str, Partitions]:
    """Gives each subscriber of a topic a contiguous range of it.

    All topics have the members in one order, by instance id and member id; so topics of one size
    are co-partitioned. Where all subscribe to the same topics, members keep the order that they
    have and new ones come behind. Racks are not looked at: they would break ranges.
    """
    first = next(iter(members.values()), None)
    is_sticky = all(first is not None and m.topic_ids == first.topic_ids for m in members.values())
    found: dict[str, dict[UUID, frozenset[int]]] = {member_id: {} for member_id in members}
    in_order = sorted(members.values(), key=_place if is_sticky else _name)
    for topic_id in sorted({topic_id for member in in_order for topic_id in member.topic_ids}):
        count = topics.partition_count(topic_id)
        subscribers = [member for member in in_order if topic_id in member.topic_ids]
        each, more = divmod(max(0, count), len(subscribers))
        begin = 0
        for position, member in enumerate(subscribers):
            end = begin + each + (position < more)
            if end > begin:
                found[member.member_id][topic_id] = frozenset(range(begin, end))
            begin = end
    return dict(found)


def _place(member: MemberSubscription) -> tuple[float, bool, str, str]:
    starts = [min(numbers) for numbers in member.assigned.values() if numbers]
    return (min(starts, default=float("inf")), *_name(member))


def _name(member: MemberSubscription) -> tuple[bool, str, str]:
    return member.instance_id is None, member.instance_id or "", member.member_id
