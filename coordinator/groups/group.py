"""A consumer group: its members, epochs and target assignment, as its records tell them.

    Empty           no members
    Assigning       the target assignment is older than the group
    Reconciling     members are on their way to the target assignment
    Stable          all have what they are to have

State changes by `put_...` and `remove_...` alone, which replay records.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from uuid import UUID

from coordinator.groups.members import NO_PARTITIONS, Assignment, Member

EMPTY, ASSIGNING, RECONCILING, STABLE, DEAD = "Empty", "Assigning", "Reconciling", "Stable", "Dead"
CONSUMER, CLASSIC = "consumer", "classic"


@dataclass(slots=True)
class ConsumerGroup:
    """One group; `epoch` rises with each change of members, subscriptions or topics.

    `metadata_hash` is that of the topics at the last such change. `resolved` has the topics that
    each pattern matched. `is_outdated` asks for a look at the topics at the next heartbeat.
    """

    group_id: str
    epoch: int = 0
    metadata_hash: int = 0
    assignment_epoch: int = 0
    members: dict[str, Member] = field(default_factory=dict)
    static_members: dict[str, str] = field(default_factory=dict)
    target: dict[str, Assignment] = field(default_factory=dict)
    resolved: dict[str, frozenset[str]] = field(default_factory=dict)
    is_outdated: bool = True
    _owners: dict[UUID, dict[int, str]] = field(default_factory=dict)
    _names: Counter[str] = field(default_factory=Counter)
    _patterns: Counter[str] = field(default_factory=Counter)
    _assignors: Counter[str] = field(default_factory=Counter)
    _unreconciled: set[str] = field(default_factory=set)

    # --- replay

    def put_member(self, member: Member) -> None:
        """Adds a member, or replaces its state."""
        before = self.members.get(member.member_id)
        if before is not None:
            self._count(before, -1)
        self.members[member.member_id] = member
        self._count(member, 1)
        if member.instance_id is not None:
            self.static_members[member.instance_id] = member.member_id
        self._follow(member)

    def remove_member(self, member_id: str) -> None:
        member = self.members.pop(member_id, None)
        if member is None:
            return
        self._count(member, -1)
        self._unreconciled.discard(member_id)
        if member.instance_id and self.static_members.get(member.instance_id) == member_id:
            del self.static_members[member.instance_id]

    def put_target(self, member_id: str, target: Assignment) -> None:
        self.target[member_id] = target

    def remove_target(self, member_id: str) -> None:
        self.target.pop(member_id, None)

    def put_assignment_epoch(self, epoch: int) -> None:
        self.assignment_epoch = epoch
        for member in self.members.values():
            self._follow(member)

    def _follow(self, member: Member) -> None:
        if member.is_reconciled_to(self.assignment_epoch):
            self._unreconciled.discard(member.member_id)
        else:
            self._unreconciled.add(member.member_id)

    def _count(self, member: Member, by: int) -> None:
        """Counts a member's subscription and partitions, or takes them back."""
        for counts, names in (
            (self._names, member.subscribed_topic_names),
            (self._patterns, (member.subscribed_topic_regex,)),
            (self._assignors, (member.server_assignor or "",)),
        ):
            for name in names:
                counts[name] += by
                if not counts[name]:
                    del counts[name]
        for assigned in (member.assigned, member.revoking):
            for topic_id, numbers in assigned.items():
                owners = self._owners.setdefault(topic_id, {})
                for number in numbers:
                    if by > 0:
                        owners[number] = member.member_id
                    elif owners.get(number) == member.member_id:
                        del owners[number]
                if not owners:
                    del self._owners[topic_id]

    # --- views

    @property
    def state(self) -> str:
        if not self.members:
            return EMPTY
        if self.epoch > self.assignment_epoch:
            return ASSIGNING
        return RECONCILING if self._unreconciled else STABLE

    def owner_of(self, topic_id: UUID, partition: int) -> str | None:
        """The member that has a partition, or has not yet given it up."""
        return self._owners.get(topic_id, {}).get(partition)

    def target_of(self, member: Member) -> Assignment:
        """The target of a member; a static one takes over that of its predecessor."""
        if member.instance_id is not None and member.member_id not in self.target:
            before = self.static_members.get(member.instance_id, "")
            return self.target.get(before, NO_PARTITIONS)
        return self.target.get(member.member_id, NO_PARTITIONS)

    def static_member(self, instance_id: str) -> Member | None:
        member_id = self.static_members.get(instance_id)
        return None if member_id is None else self.members[member_id]

    def patterns(self) -> set[str]:
        """The patterns that members subscribe to."""
        return {pattern for pattern in self._patterns if pattern}

    def topic_names(self) -> set[str]:
        """All topics that members subscribe to, by name or by pattern."""
        names = set(self._names)
        for pattern in self.patterns():
            names |= self.resolved.get(pattern, frozenset())
        return names

    def is_subscribed_to(self, topic: str) -> bool:
        return topic in self._names or any(
            topic in self.resolved.get(pattern, ()) for pattern in self.patterns()
        )

    def preferred_assignor(self, changes: Mapping[str, Member | None]) -> str | None:
        """The assignor that most members name, once the members of `changes` replace their former
        selves (None: they leave)."""
        counts = Counter(self._assignors)
        for member_id, member in changes.items():
            if member_id in self.members:
                counts[self.members[member_id].server_assignor or ""] -= 1
            if member is not None:
                counts[member.server_assignor or ""] += 1
        named = [(count, name) for name, count in counts.items() if name and count > 0]
        return max(named)[1] if named else None

    def members_with(self, changes: Mapping[str, Member | None]) -> Iterator[Member]:
        """The members once those of `changes` replace their former selves."""
        for member_id, member in self.members.items():
            changed = changes.get(member_id, member)
            if changed is not None:
                yield changed
        for member_id, joined in changes.items():
            if joined is not None and member_id not in self.members:
                yield joined
