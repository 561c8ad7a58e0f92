"""The uniform assignor: balance first, then stickiness, then racks.

Members with the same subscription have quotas: all partitions divided by the members, and one more
for as many members as there is a remainder. Each keeps what it has up to its quota. Members with
different subscriptions keep all they have, and what is free goes to the subscriber with the fewest.
Then partitions move from the fullest members to emptier ones, while that brings them closer.
"""

from __future__ import annotations

import heapq
from collections import defaultdict
from collections.abc import Iterable, Mapping
from uuid import UUID

from coordinator.groups.subscribers import MemberSubscription, Partitions, TopicView

Partition = tuple[UUID, int]


def assign_uniformly(
    members: Mapping[str, MemberSubscription], topics: TopicView
) -> dict[str, Partitions]:
    """Gives all members as many partitions, to within one, and moves as few as that needs.

    Where subscriptions differ, no member has two more than another one that could take one of them.
    Among choices that are equally balanced and sticky, a member gets partitions that have a replica
    in its rack.
    """
    return _Uniform(members, topics).assign()


class _Uniform:
    """One assignment."""

    def __init__(self, members: Mapping[str, MemberSubscription], topics: TopicView) -> None:
        self._members = members
        self._topics = topics
        self._has_racks = any(member.rack_id for member in members.values())
        wanted = {topic_id for member in members.values() for topic_id in member.topic_ids}
        self._counts = {
            topic_id: count
            for topic_id in sorted(wanted)
            if (count := topics.partition_count(topic_id)) > 0
        }
        self._lightest: dict[UUID, list[tuple[int, str]]] = {}  # heaps of subscribers
        self._owned: dict[str, set[Partition]] = {member_id: set() for member_id in members}
        self._free: dict[Partition, None] = dict.fromkeys(
            (topic_id, number)
            for topic_id, count in self._counts.items()
            for number in range(count)
        )

    def assign(self) -> dict[str, Partitions]:
        if not self._members:
            return {}
        first = next(iter(self._members.values()))
        if all(member.topic_ids == first.topic_ids for member in self._members.values()):
            self._assign_equal()
        else:
            self._assign_different()
        return {member_id: _by_topic(owned) for member_id, owned in self._owned.items()}

    def _present(self, member: MemberSubscription) -> list[Partition]:
        """Partitions that a member has and may keep, those in its rack first."""
        present = [
            (topic_id, number)
            for topic_id, numbers in member.assigned.items()
            if topic_id in member.topic_ids
            for number in sorted(numbers)
            if (topic_id, number) in self._free
        ]
        if self._has_racks:
            present.sort(key=lambda partition: not self._is_near(member, partition))
        return present

    def _is_near(self, member: MemberSubscription, partition: Partition) -> bool:
        return member.rack_id is not None and member.rack_id in self._topics.racks(*partition)

    def _give(self, member_id: str, partition: Partition) -> None:
        self._owned[member_id].add(partition)
        del self._free[partition]

    # --- one subscription

    def _assign_equal(self) -> None:
        least, remainder = divmod(len(self._free), len(self._members))
        present = {
            member_id: self._present(self._members[member_id]) for member_id in self._members
        }
        # Those that have more than the least keep the one more; so the fewest partitions move.
        by_size = sorted(present, key=lambda member_id: (-len(present[member_id]), member_id))
        quotas = {
            member_id: least + (position < remainder) for position, member_id in enumerate(by_size)
        }
        for member_id, partitions in present.items():
            for partition in partitions[: quotas[member_id]]:
                if partition in self._free:
                    self._give(member_id, partition)
        short = [member_id for member_id in by_size if self._missing(member_id, quotas)]
        if self._has_racks:
            self._fill_by_rack(short, quotas)
        free = iter(list(self._free))
        for member_id in reversed(short):
            for _ in range(self._missing(member_id, quotas)):
                self._give(member_id, next(free))

    def _missing(self, member_id: str, quotas: Mapping[str, int]) -> int:
        return quotas[member_id] - len(self._owned[member_id])

    def _fill_by_rack(self, short: Iterable[str], quotas: Mapping[str, int]) -> None:
        """Gives members what is free in their rack; those partitions first that fewest can take."""
        wanting: dict[str, list[str]] = defaultdict(list)
        for member_id in short:
            rack = self._members[member_id].rack_id
            if rack is not None:
                wanting[rack].append(member_id)
        takers = {
            partition: [rack for rack in sorted(self._topics.racks(*partition)) if rack in wanting]
            for partition in self._free
        }
        for partition in sorted(takers, key=lambda each: (len(takers[each]), each)):
            for rack in takers[partition]:
                waiting = wanting[rack]
                while waiting and not self._missing(waiting[-1], quotas):
                    waiting.pop()
                if waiting:
                    self._give(waiting[-1], partition)
                    waiting.insert(0, waiting.pop())  # in turns
                    break

    # --- different subscriptions

    def _assign_different(self) -> None:
        for member_id, member in self._members.items():
            for partition in self._present(member):
                self._give(member_id, partition)
        subscribers: dict[UUID, list[str]] = {
            topic_id: sorted(
                m for m, member in self._members.items() if topic_id in member.topic_ids
            )
            for topic_id in self._counts
        }
        for topic_id in sorted(subscribers, key=lambda each: (len(subscribers[each]), each)):
            free = [(topic_id, number) for number in range(self._counts[topic_id])]
            self._spread([each for each in free if each in self._free], subscribers[topic_id])
        self._balance(subscribers)

    def _spread(self, free: list[Partition], subscribers: list[str]) -> None:
        """Gives free partitions of a topic to the subscribers with the fewest."""
        heap = [(len(self._owned[member_id]), member_id) for member_id in subscribers]
        heapq.heapify(heap)
        for partition in free:
            size, member_id = heapq.heappop(heap)
            level = [(size, member_id)]
            if self._has_racks:
                while heap and heap[0][0] == size:
                    if self._is_near(self._members[level[-1][1]], partition):
                        break
                    level.append(heapq.heappop(heap))
                near = [m for _, m in level if self._is_near(self._members[m], partition)]
                member_id = near[0] if near else level[0][1]
            for each in level:
                if each[1] != member_id:
                    heapq.heappush(heap, each)
            self._give(member_id, partition)
            heapq.heappush(heap, (size + 1, member_id))

    def _balance(self, subscribers: Mapping[UUID, list[str]]) -> None:
        """Moves partitions from the fullest members, as long as the receiver stays the smaller."""
        self._lightest = {
            topic_id: [(len(self._owned[each]), each) for each in members]
            for topic_id, members in subscribers.items()
        }
        for heap in self._lightest.values():
            heapq.heapify(heap)
        while self._pass():
            continue

    def _pass(self) -> bool:
        """Looks at each member, the fullest first; whether a partition was moved."""
        fullest = [(-len(owned), member_id) for member_id, owned in self._owned.items()]
        heapq.heapify(fullest)
        has_moved = False
        while fullest:
            size, member_id = heapq.heappop(fullest)
            if -size != len(self._owned[member_id]):
                continue
            moved = self._lighter(member_id)
            if moved is None:
                continue
            has_moved = True
            partition, receiver = moved
            self._owned[member_id].remove(partition)
            self._owned[receiver].add(partition)
            for changed in (member_id, receiver):
                size = len(self._owned[changed])
                heapq.heappush(fullest, (-size, changed))
                for topic_id in self._members[changed].topic_ids & self._lightest.keys():
                    heapq.heappush(self._lightest[topic_id], (size, changed))
        return has_moved

    def _lightest_of(self, topic_id: UUID) -> tuple[int, str]:
        """The subscriber with the fewest partitions, and how many it has."""
        heap = self._lightest[topic_id]
        while heap[0][0] != len(self._owned[heap[0][1]]):
            heapq.heappop(heap)
        return heap[0]

    def _lighter(self, member_id: str) -> tuple[Partition, str] | None:
        """A partition of a member, and the lightest one that may have it; None if none is better
        off."""
        owned = self._owned[member_id]
        best: tuple[int, UUID, str] | None = None
        for topic_id in {topic_id for topic_id, _ in owned}:
            size, lightest = self._lightest_of(topic_id)
            found = (size, topic_id, lightest)
            if best is None or found < best:
                best = found
        if best is None or best[0] + 1 >= len(owned):
            return None
        topic_id, receiver = best[1], best[2]
        of_topic = sorted(each for each in owned if each[0] == topic_id)
        member = self._members[receiver]
        near = [each for each in of_topic if self._has_racks and self._is_near(member, each)]
        return (near or of_topic)[-1], receiver


def _by_topic(owned: Iterable[Partition]) -> Partitions:
    topics: dict[UUID, set[int]] = defaultdict(set)
    for topic_id, number in owned:
        topics[topic_id].add(number)
    return {topic_id: frozenset(numbers) for topic_id, numbers in topics.items()}
