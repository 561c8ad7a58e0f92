"""The assignors: complete, balanced, sticky, near."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from uuid import UUID

from hypothesis import given, settings
from hypothesis import strategies as st

from coordinator.groups.assignors import ASSIGNORS
from coordinator.groups.subscribers import MemberSubscription, Partitions

TOPICS = [UUID(int=number + 1) for number in range(4)]


@dataclass
class Topics:
    counts: Mapping[UUID, int]
    near: Mapping[tuple[UUID, int], frozenset[str]] = field(default_factory=dict)

    def partition_count(self, topic_id: UUID) -> int:
        return self.counts.get(topic_id, -1)

    def racks(self, topic_id: UUID, partition: int) -> frozenset[str]:
        return self.near.get((topic_id, partition), frozenset())


def flat(found: Mapping[str, Partitions]) -> dict[tuple[UUID, int], str]:
    owners: dict[tuple[UUID, int], str] = {}
    for member, topics in found.items():
        for topic, numbers in topics.items():
            for number in numbers:
                assert (topic, number) not in owners, "two owners"
                owners[topic, number] = member
    return owners


def sizes(found: Mapping[str, Partitions]) -> dict[str, int]:
    return {member: sum(map(len, topics.values())) for member, topics in found.items()}


@st.composite
def groups(draw: st.DrawFn) -> tuple[dict[str, MemberSubscription], Topics]:
    counts = {topic: draw(st.integers(0, 7)) for topic in TOPICS[: draw(st.integers(1, 4))]}
    subscriptions = st.sets(st.sampled_from(TOPICS), min_size=1)
    same = draw(st.one_of(st.none(), subscriptions))
    racks = st.one_of(st.none(), st.sampled_from(["r1", "r2"]))
    near = {
        (topic, number): frozenset(draw(st.sets(st.sampled_from(["r1", "r2"]))))
        for topic, count in counts.items()
        for number in range(count)
    }
    members = {}
    free = [(topic, number) for topic in TOPICS for number in range(8)]
    for position in range(draw(st.integers(1, 6))):
        assigned: dict[UUID, set[int]] = {}
        for _ in range(draw(st.integers(0, 6))):
            if free:
                topic, number = free.pop(draw(st.integers(0, len(free) - 1)))
                assigned.setdefault(topic, set()).add(number)
        members[f"m{position}"] = MemberSubscription(
            f"m{position}",
            rack_id=draw(racks),
            topic_ids=frozenset(same or draw(subscriptions)),
            assigned={topic: frozenset(numbers) for topic, numbers in assigned.items()},
        )
    return members, Topics(counts, near)


def again(
    members: Mapping[str, MemberSubscription], found: Mapping[str, Partitions]
) -> dict[str, MemberSubscription]:
    return {
        name: MemberSubscription(
            name, member.instance_id, member.rack_id, member.topic_ids, found.get(name, {})
        )
        for name, member in members.items()
    }


@given(groups(), st.sampled_from(sorted(ASSIGNORS)))
@settings(max_examples=300, deadline=None)
def test_every_partition_has_one_owner_that_subscribes(
    group: tuple[dict[str, MemberSubscription], Topics], name: str
) -> None:
    members, topics = group
    found = ASSIGNORS[name](members, topics)
    owners = flat(found)
    wanted = {topic for member in members.values() for topic in member.topic_ids}
    assert set(owners) == {
        (topic, number) for topic in wanted for number in range(topics.partition_count(topic))
    }
    assert all(topic in members[owner].topic_ids for (topic, _), owner in owners.items())
    assert ASSIGNORS[name](again(members, found), topics) == found, "not sticky"


@given(groups())
@settings(max_examples=300, deadline=None)
def test_uniform_is_balanced_and_moves_no_more_than_that_needs(
    group: tuple[dict[str, MemberSubscription], Topics],
) -> None:
    members, topics = group
    found = ASSIGNORS["uniform"](members, topics)
    count, owners = sizes(found), flat(found)
    for (topic, _), owner in owners.items():
        for name, member in members.items():
            if topic in member.topic_ids:
                assert count[owner] <= count[name] + 1
    if len({member.topic_ids for member in members.values()}) == 1:
        assert max(count.values()) - min(count.values()) <= 1
        least, more = divmod(len(owners), len(members))
        had = {
            name: sum((t, n) in owners for t, ns in m.assigned.items() for n in ns)
            for name, m in members.items()
        }
        kept = sum(
            owners.get((t, n)) == name
            for name, m in members.items()
            for t, ns in m.assigned.items()
            for n in ns
        )
        sized = sorted(had.values(), reverse=True)
        assert kept == sum(min(size, least + (i < more)) for i, size in enumerate(sized))


def test_a_member_that_leaves_moves_only_its_own() -> None:
    topics = Topics(dict.fromkeys(TOPICS, 25))
    members = {
        f"m{n:03}": MemberSubscription(f"m{n:03}", topic_ids=frozenset(TOPICS)) for n in range(10)
    }
    found = ASSIGNORS["uniform"](members, topics)
    left = again(members, found)
    del left["m004"]
    moved = flat(ASSIGNORS["uniform"](left, topics))
    before = flat(found)
    assert {k for k in before if before[k] != moved[k]} == {
        k for k, owner in before.items() if owner == "m004"
    }


def test_partitions_are_read_in_their_rack_where_balance_allows() -> None:
    topics = Topics(
        {TOPICS[0]: 12},
        {(TOPICS[0], number): frozenset({f"r{number % 3}"}) for number in range(12)},
    )
    for subscriptions in ([TOPICS[:1]] * 3, [TOPICS[:1], TOPICS[:2], TOPICS[:1]]):
        members = {
            f"m{n}": MemberSubscription(f"m{n}", rack_id=f"r{n}", topic_ids=frozenset(wanted))
            for n, wanted in enumerate(subscriptions)
        }
        for (_, number), owner in flat(ASSIGNORS["uniform"](members, topics)).items():
            assert owner == f"m{number % 3}"


def test_topics_of_one_size_are_co_partitioned_by_range() -> None:
    topics = Topics({TOPICS[0]: 5, TOPICS[1]: 5, TOPICS[2]: 2})
    members = {
        name: MemberSubscription(name, instance, topic_ids=frozenset(TOPICS[:3]))
        for name, instance in (("c", None), ("b", "z"), ("a", None))
    }
    found = ASSIGNORS["range"](members, topics)
    assert found["b"] == {
        TOPICS[0]: frozenset({0, 1}),
        TOPICS[1]: frozenset({0, 1}),
        TOPICS[2]: frozenset({0}),
    }
    assert found["a"][TOPICS[0]] == found["a"][TOPICS[1]] == frozenset({2, 3})
    assert TOPICS[2] not in found["c"]
    joined = again(members, found) | {"0": MemberSubscription("0", topic_ids=frozenset(TOPICS[:3]))}
    later = ASSIGNORS["range"](joined, topics)
    assert later["0"] == {TOPICS[0]: frozenset({4}), TOPICS[1]: frozenset({4})}, "behind the others"


def test_skewed_subscriptions_end_balanced() -> None:
    draw = random.Random(7)
    topics = Topics({UUID(int=n + 1): draw.randint(1, 30) for n in range(30)})
    names = list(topics.counts)
    members = {
        f"m{n}": MemberSubscription(
            f"m{n}", topic_ids=frozenset(draw.sample(names, draw.randint(1, 10)))
        )
        for n in range(40)
    }
    found = ASSIGNORS["uniform"](members, topics)
    assert Counter(flat(found).values()) == Counter(
        {name: size for name, size in sizes(found).items() if size}
    )
    moved = flat(ASSIGNORS["uniform"](again(members, found), topics))
    assert moved == flat(found)
