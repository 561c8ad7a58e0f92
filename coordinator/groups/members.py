"""A member of a consumer group, and how it comes to its partitions step by step (KIP-848).

    STABLE                  it has what the target assignment of its epoch gives it
    UNREVOKED_PARTITIONS    it was told to give up partitions, and has not said that it did
    UNRELEASED_PARTITIONS   it waits for partitions that another member still has

A partition is given to a member only after its last owner let go. So no partition has two owners,
and a member that keeps its partitions never stops.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from enum import IntEnum
from uuid import UUID

from coordinator.records.groups import (
    ConsumerGroupCurrentMemberAssignmentValue,
    ConsumerGroupMemberMetadataValue,
    CurrentPartitions,
    TargetPartitions,
)

Assignment = Mapping[UUID, frozenset[int]]
"""Partitions by topic id."""
Assigned = Mapping[UUID, Mapping[int, int]]
"""Partitions by topic id, each with the member epoch at which the member got it."""

NO_PARTITIONS: Assignment = {}
LEAVE_EPOCH = -1
LEAVE_STATIC_EPOCH = -2
"""The epoch of a static member that left and will be back (KIP-345)."""


class MemberState(IntEnum):
    """As Kafka numbers them in CurrentMemberAssignment."""

    STABLE = 0
    UNREVOKED_PARTITIONS = 1
    UNRELEASED_PARTITIONS = 2
    UNKNOWN = 127


@dataclass(frozen=True, slots=True)
class Member:
    """A member; an empty `subscribed_topic_regex` is none. Times are in ms."""

    member_id: str
    instance_id: str | None = None
    rack_id: str | None = None
    client_id: str = ""
    client_host: str = ""
    subscribed_topic_names: tuple[str, ...] = ()
    subscribed_topic_regex: str = ""
    rebalance_timeout_ms: int = -1
    server_assignor: str | None = None
    member_epoch: int = 0
    previous_member_epoch: int = -1
    state: MemberState = MemberState.STABLE
    assigned: Assigned = field(default_factory=dict)
    revoking: Assigned = field(default_factory=dict)

    def subscribed_as(self, value: ConsumerGroupMemberMetadataValue) -> Member:
        """The member with the subscription of a record."""
        return replace(
            self,
            instance_id=value.instance_id,
            rack_id=value.rack_id,
            client_id=value.client_id,
            client_host=value.client_host,
            subscribed_topic_names=tuple(value.subscribed_topic_names),
            subscribed_topic_regex=value.subscribed_topic_regex or "",
            rebalance_timeout_ms=value.rebalance_timeout_ms,
            server_assignor=value.server_assignor,
        )

    def assigned_as(self, value: ConsumerGroupCurrentMemberAssignmentValue) -> Member:
        """The member with the current assignment of a record."""
        known = {state.value for state in MemberState}
        return replace(
            self,
            member_epoch=value.member_epoch,
            previous_member_epoch=value.previous_member_epoch,
            state=MemberState(value.state) if value.state in known else MemberState.UNKNOWN,
            assigned=_with_epochs(value.assigned_partitions, value.member_epoch),
            revoking=_with_epochs(value.partitions_pending_revocation, value.member_epoch),
        )

    def subscription(self) -> ConsumerGroupMemberMetadataValue:
        """The record of the subscription."""
        return ConsumerGroupMemberMetadataValue(
            self.instance_id,
            self.rack_id,
            self.client_id,
            self.client_host,
            self.subscribed_topic_names,
            self.subscribed_topic_regex,
            self.rebalance_timeout_ms,
            self.server_assignor,
        )

    def current_assignment(self) -> ConsumerGroupCurrentMemberAssignmentValue:
        """The record of the current assignment."""
        return ConsumerGroupCurrentMemberAssignmentValue(
            self.member_epoch,
            self.previous_member_epoch,
            int(self.state),
            _current(self.assigned),
            _current(self.revoking),
        )

    def is_reconciled_to(self, target_epoch: int) -> bool:
        return self.state is MemberState.STABLE and self.member_epoch == target_epoch

    def has_all_of(self, owned: Assignment | None) -> bool:
        """Whether the member says that it owns partitions of its assignment only."""
        if owned is None:
            return False
        return all(
            number in self.assigned.get(topic_id, ())
            for topic_id, numbers in owned.items()
            for number in numbers
        )


def _with_epochs(found: Iterable[CurrentPartitions], epoch: int) -> Assigned:
    assigned: dict[UUID, Mapping[int, int]] = {}
    for topic in found:
        epochs = topic.assignment_epochs or (epoch,) * len(topic.partitions)
        assigned[topic.topic_id] = dict(zip(topic.partitions, epochs, strict=True))
    return assigned


def _current(assigned: Assigned) -> tuple[CurrentPartitions, ...]:
    return tuple(
        CurrentPartitions(topic_id, tuple(numbers), tuple(numbers.values()))
        for topic_id, numbers in assigned.items()
    )


def target_partitions(target: Assignment) -> tuple[TargetPartitions, ...]:
    """A target assignment as its record has it."""
    return tuple(
        TargetPartitions(topic_id, tuple(sorted(numbers))) for topic_id, numbers in target.items()
    )


def plain(assigned: Assigned) -> Assignment:
    """The partitions without epochs."""
    return {topic_id: frozenset(numbers) for topic_id, numbers in assigned.items()}


def reconcile(
    member: Member,
    target_epoch: int,
    target: Assignment,
    owner_of: Callable[[UUID, int], str | None],
    owned: Assignment | None,
) -> Member:
    """The next step of a member towards its target assignment.

    `owned` are the partitions that it says it has, None if it says nothing of them. `owner_of`
    tells the member that has a partition, or was told to give it up and has not done so.
    """
    step = _Step(member, target_epoch, target, owner_of, owned)
    match member.state:
        case MemberState.STABLE:
            return member if member.member_epoch == target_epoch else step.next(member.member_epoch)
        case MemberState.UNREVOKED_PARTITIONS:
            if step.owns_any(member.revoking):
                return member
            return step.next(member.member_epoch + 1)
        case MemberState.UNRELEASED_PARTITIONS:
            return step.next(member.member_epoch)
        case MemberState.UNKNOWN:
            return step.next(target_epoch)


@dataclass(frozen=True, slots=True)
class _Step:
    member: Member
    target_epoch: int
    target: Assignment
    owner_of: Callable[[UUID, int], str | None]
    owned: Assignment | None

    def owns_any(self, assigned: Assigned) -> bool:
        """Whether the member may still have one of the partitions."""
        owned = self.owned
        return owned is None or any(
            number in owned.get(topic_id, ())
            for topic_id, numbers in assigned.items()
            for number in numbers
        )

    def next(self, member_epoch: int) -> Member:
        kept: dict[UUID, Mapping[int, int]] = {}
        revoking: dict[UUID, Mapping[int, int]] = {}
        for topic_id, numbers in self.member.assigned.items():
            wanted = self.target.get(topic_id, frozenset())
            keeps = {number: epoch for number, epoch in numbers.items() if number in wanted}
            if keeps:
                kept[topic_id] = keeps
            if len(keeps) < len(numbers):
                gone = {number: epoch for number, epoch in numbers.items() if number not in keeps}
                revoking[topic_id] = gone
        if revoking and self.owns_any(revoking):
            return self._moved(member_epoch, MemberState.UNREVOKED_PARTITIONS, kept, revoking)
        waits = self._add_free(kept)
        state = MemberState.UNRELEASED_PARTITIONS if waits else MemberState.STABLE
        return self._moved(self.target_epoch, state, kept, {})

    def _add_free(self, kept: dict[UUID, Mapping[int, int]]) -> bool:
        """Adds the partitions of the target that nobody else has; whether there are others."""
        waits = False
        for topic_id, wanted in self.target.items():
            known = kept.get(topic_id, {})
            added: dict[int, int] = {}
            for number in sorted(wanted):
                if number in known:
                    continue
                if self.owner_of(topic_id, number) in (None, self.member.member_id):
                    added[number] = self.target_epoch
                else:
                    waits = True
            if added:
                kept[topic_id] = {**known, **added}
        return waits

    def _moved(
        self, member_epoch: int, state: MemberState, assigned: Assigned, revoking: Assigned
    ) -> Member:
        """The member in an epoch; the one before is kept for a request whose answer was lost."""
        member = self.member
        previous = member.previous_member_epoch
        if member_epoch != member.member_epoch:
            previous = member.member_epoch
        return replace(
            member,
            member_epoch=member_epoch,
            previous_member_epoch=previous,
            state=state,
            assigned=assigned,
            revoking=revoking,
        )
