"""The state of one partition on one node: role, ISR, high watermark. Pure: no IO, clock or task.

Transitions (everything else raises or is ignored as stale):

    from      | to        | cause
    ----------+-----------+------------------------------------------------------------------
    any       | LEADER    | registration names this node (`apply`); a new epoch resets replicas
    any       | FOLLOWER  | registration names another node, or none
    COMMITTED | PENDING   | leader proposes an ISR (`maybe_expand_isr`, `maybe_shrink_isr`)
    PENDING   | COMMITTED | the controller's answer, or a registration with a higher partition epoch

While an AlterPartition is in flight the *maximal* ISR counts: the committed members and the
proposed ones. So the high watermark never passes a replica that the controller may already count as
a member (KIP-497).

The high watermark is the least end offset over the maximal ISR and over caught-up replicas that are
about to join. It never moves back, and it does not move while the committed ISR is below
min.insync.replicas, or while the partition has eligible leader replicas (KIP-966). The controller
counts on their having everything committed, whatever this node knows of the setting by then.
Source: Kafka's Partition and PartitionState, restated.
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from node.partition.replica_state import ReplicaState
from tidemark.errors import (
    ErrorCode,
    FencedLeaderEpochError,
    NotEnoughReplicasError,
    NotLeaderOrFollowerError,
    UnknownLeaderEpochError,
)
from tidemark.types import TopicIdPartition

# Errors that end a proposal without effect: a newer registration is on its way, or the proposal was
# refused.
_NOT_RETRIED = frozenset(
    {
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        ErrorCode.UNKNOWN_TOPIC_ID,
        ErrorCode.INVALID_UPDATE_VERSION,
        ErrorCode.FENCED_LEADER_EPOCH,
        ErrorCode.INVALID_REQUEST,
        ErrorCode.NEW_LEADER_ELECTED,
        ErrorCode.NOT_LEADER_OR_FOLLOWER,
    }
)
# Refused without a change: the committed state holds, and a new proposal can follow at once.
_REVERTED = frozenset({ErrorCode.INELIGIBLE_REPLICA})


class Role(enum.Enum):
    LEADER = "leader"
    FOLLOWER = "follower"


class BrokerView(NamedTuple):
    """State of a broker in the metadata image, as far as an ISR depends on it."""

    epoch: int
    in_service: bool  # neither fenced nor in controlled shutdown
    rack: str = ""


class Registration(NamedTuple):
    """State of the partition at the controller: the used part of an image's
    PartitionRegistration."""

    replicas: tuple[int, ...]
    isr: tuple[int, ...]
    leader: int | None
    leader_epoch: int
    partition_epoch: int
    adding: tuple[int, ...] = ()
    recovering: bool = False
    elr: tuple[int, ...] = ()


class IsrMember(NamedTuple):
    """A proposed member, and the broker epoch that its last fetch carried."""

    broker_id: int
    broker_epoch: int


class IsrProposal(NamedTuple):
    """One partition of an AlterPartition request."""

    partition: TopicIdPartition
    leader_epoch: int
    partition_epoch: int
    new_isr: tuple[IsrMember, ...]
    recovering: bool = False


class AlterResult(NamedTuple):
    """A successful answer to a proposal: the committed state after the change."""

    leader: int | None
    leader_epoch: int
    isr: tuple[int, ...]
    partition_epoch: int
    recovering: bool = False
    elr: tuple[int, ...] = ()


class AckState(NamedTuple):
    """Whether a produce with acks=all can be answered, and its error."""

    done: bool
    error: ErrorCode


_DONE = AckState(True, ErrorCode.NONE)
_WAIT = AckState(False, ErrorCode.NONE)


@dataclass(slots=True)
class Partition:
    """The core of one partition. Its edge passes in end offsets and fetches, and sends its
    proposals."""

    identity: TopicIdPartition
    node_id: int
    brokers: Callable[[], Mapping[int, BrokerView]]
    min_insync_replicas: int = 1
    lag_max_ms: int = 30_000
    role: Role = Role.FOLLOWER
    leader: int | None = None
    leader_epoch: int = -1
    partition_epoch: int = -1
    leading_since_epoch: int = -1  # the first epoch of this leadership, which may last over several
    leader_epoch_start_offset: int | None = None
    recovering: bool = False
    restoring: str = ""  # of a leader whose log comes from the tier: why it is not there yet
    replicas: tuple[int, ...] = ()
    isr: frozenset[int] = frozenset()
    elr: tuple[int, ...] = ()
    pending: IsrProposal | None = None
    log_end_offset: int = 0
    high_watermark: int = 0
    remotes: dict[int, ReplicaState] = field(default_factory=dict)

    # --- registrations -------------------------------------------------------------------------

    def apply(self, registration: Registration, log_end_offset: int, now_ms: int) -> bool:
        """Applies a registration; True if a new leader epoch began. Older registrations are
        ignored."""
        if registration.partition_epoch < self.partition_epoch:
            return False
        if registration.partition_epoch == self.partition_epoch and self.pending is not None:
            return False  # nothing new: the proposal in flight stays
        new_epoch = registration.leader_epoch > self.leader_epoch
        self.log_end_offset = log_end_offset
        if new_epoch:
            self.restoring = ""
        removed = self.isr - frozenset(registration.isr)
        self._take(registration)
        if registration.leader == self.node_id:
            self._lead(new_epoch, removed, now_ms)
        else:
            self.role = Role.FOLLOWER
            self.remotes = {}
            self.leader_epoch_start_offset = None
        self.validate()
        return new_epoch

    def _take(self, registration: Registration) -> None:
        self.replicas = registration.replicas
        self.isr = frozenset(registration.isr)
        self.elr = registration.elr
        self.leader = registration.leader
        self.leader_epoch = registration.leader_epoch
        self.partition_epoch = registration.partition_epoch
        self.recovering = registration.recovering
        self.pending = None

    def _lead(self, new_epoch: bool, removed: frozenset[int], now_ms: int) -> None:
        fresh = new_epoch or self.role is not Role.LEADER
        if self.role is not Role.LEADER:
            self.leading_since_epoch = self.leader_epoch
        self.role = Role.LEADER
        if fresh or self.leader_epoch_start_offset is None:
            self.leader_epoch_start_offset = self.log_end_offset
        others = [r for r in self.replicas if r != self.node_id]
        self.remotes = {r: self.remotes.get(r) or ReplicaState() for r in others}
        for replica_id, state in self.remotes.items():
            state.restart(replica_id in self.isr, now_ms, fresh)
            if replica_id in removed:  # its disk may be dead: do not wait for it
                state.reset_pace()

    # --- changes of the log --------------------------------------------------------------------

    def on_append(self, log_end_offset: int, now_ms: int) -> bool:
        """Updates the end of the local log, after an append or a follower's truncation; True if the
        high watermark moved."""
        for state in self.remotes.values():
            state.look_up_pulse(self.log_end_offset)
        self.log_end_offset = log_end_offset
        return self.role is Role.LEADER and self.maybe_advance_high_watermark(now_ms)

    def on_leader_high_watermark(self, leader_high_watermark: int) -> bool:
        """Applies the leader's high watermark on a follower; True if its own moved.

        The watermark never moves back and never passes the end of the local log.
        """
        candidate = min(leader_high_watermark, self.log_end_offset)
        if candidate <= self.high_watermark:
            return False
        self.high_watermark = candidate
        return True

    def on_truncate(self, log_end_offset: int, high_watermark: int) -> None:
        """Resets the offsets after a follower's log was truncated, rebuilt or opened.

        Nothing else lowers the high watermark.
        """
        self.log_end_offset = log_end_offset
        self.high_watermark = max(0, min(high_watermark, log_end_offset))

    def on_restored(self, log_end_offset: int) -> None:
        """Begins the leader's epoch at the end of the log that came from the tier."""
        self.restoring = ""
        self.log_end_offset = self.high_watermark = log_end_offset
        self.leader_epoch_start_offset = log_end_offset

    def on_follower_fetch(
        self, replica_id: int, broker_epoch: int, offset: int, log_start_offset: int, now_ms: int
    ) -> bool:
        """Takes a follower's fetch as an acknowledgement of everything below `offset`; True if the
        high watermark moved."""
        state = self.remotes[replica_id]
        state.on_fetch(offset, log_start_offset, broker_epoch, self.log_end_offset, now_ms)
        return self.maybe_advance_high_watermark(now_ms)

    def maybe_advance_high_watermark(self, now_ms: int) -> bool:
        """Advances the high watermark if the rule allows it; True if it moved."""
        if self.role is not Role.LEADER or not self._may_commit:
            return False
        lowest = self.log_end_offset
        maximal = self.maximal_isr
        for replica_id, state in self.remotes.items():
            known = -1 if state.log_end_offset is None else state.log_end_offset
            if known < lowest and (
                replica_id in maximal
                or (
                    state.is_caught_up(self.log_end_offset, now_ms, self.lag_max_ms)
                    and self._is_eligible(replica_id)
                )
            ):
                lowest = known
        if lowest <= self.high_watermark:
            return False
        self.high_watermark = lowest
        return True

    # --- the in-sync replicas ------------------------------------------------------------------

    @property
    def maximal_isr(self) -> frozenset[int]:
        """Every replica that the controller may count as in sync."""
        if self.pending is None:
            return self.isr
        return self.isr | {member.broker_id for member in self.pending.new_isr}

    @property
    def effective_min_isr(self) -> int:
        return min(self.min_insync_replicas, max(1, len(self.replicas)))

    @property
    def _may_commit(self) -> bool:
        return len(self.isr) >= self.effective_min_isr and not self.elr

    def maybe_expand_isr(self, replica_id: int) -> IsrProposal | None:
        """Proposes to add the replica; None if it may not join, or a proposal is in flight."""
        if self.role is not Role.LEADER or self.pending is not None or replica_id in self.isr:
            return None
        state = self.remotes.get(replica_id)
        if state is None or state.log_end_offset is None or self.recovering:
            return None
        start = self.leader_epoch_start_offset
        if start is None or state.log_end_offset < max(self.high_watermark, start):
            return None
        if not self._is_eligible(replica_id):
            return None
        return self._propose(self.isr | {replica_id})

    def maybe_recover(self) -> IsrProposal | None:
        """Proposes the end of the recovery after an unclean election (KIP-704).

        Opening the log is all the recovery it needs, so a new leader proposes this at once. A
        refused proposal is made again: until it is accepted, no replica joins the ISR.
        """
        if self.role is not Role.LEADER or self.pending is not None or not self.recovering:
            return None
        return self._propose(self.isr, recovering=False)

    def maybe_shrink_isr(self, now_ms: int) -> IsrProposal | None:
        """Proposes an ISR without lagging replicas; None if there are none, or a proposal is in
        flight."""
        if self.role is not Role.LEADER or self.pending is not None:
            return None
        lagging = {
            replica_id
            for replica_id in self.isr
            if replica_id != self.node_id
            and (
                replica_id not in self.remotes
                or not self.remotes[replica_id].is_caught_up(
                    self.log_end_offset, now_ms, self.lag_max_ms
                )
            )
        }
        return self._propose(self.isr - lagging) if lagging else None

    @property
    def is_settled(self) -> bool:
        """Whether the passing of time can change nothing here.

        While every replica is at the leader's end, none can lag, and none holds back the high
        watermark. The end of a recovery may have to be proposed again.
        """
        return self.role is not Role.LEADER or (
            self.pending is None
            and not self.recovering
            and all(s.log_end_offset == self.log_end_offset for s in self.remotes.values())
        )

    def on_alter_result(self, result: AlterResult, now_ms: int) -> bool:
        """Applies the answer to the proposal in flight, unless it is stale; True if the high
        watermark moved."""
        if self.role is not Role.LEADER or result.leader_epoch != self.leader_epoch:
            return False
        if result.partition_epoch < self.partition_epoch:
            return False
        self.isr = frozenset(result.isr)
        self.elr = result.elr
        self.partition_epoch = result.partition_epoch
        self.recovering = result.recovering
        self.pending = None
        self.validate()
        return self.maybe_advance_high_watermark(now_ms)

    def on_alter_error(self, proposal: IsrProposal, code: ErrorCode) -> IsrProposal | None:
        """Returns the proposal to send again; None if it is given up or no longer in flight.

        A proposal given up because this view is old stays pending until the newer registration
        arrives, and its members keep counting. One that the controller refused is reverted.
        """
        if self.pending is not proposal:
            return None
        if code in _REVERTED:
            self.pending = None
            return None
        return None if code in _NOT_RETRIED else proposal

    def _propose(self, members: frozenset[int], *, recovering: bool | None = None) -> IsrProposal:
        brokers = self.brokers()
        new_isr = tuple(IsrMember(m, self._epoch_of(m, brokers)) for m in sorted(members))
        self.pending = IsrProposal(
            self.identity,
            self.leader_epoch,
            self.partition_epoch,
            new_isr,
            self.recovering if recovering is None else recovering,
        )
        self.validate()
        return self.pending

    def _epoch_of(self, replica_id: int, brokers: Mapping[int, BrokerView]) -> int:
        state = self.remotes.get(replica_id)
        if state is not None and state.broker_epoch is not None:
            return state.broker_epoch
        view = brokers.get(replica_id)
        return -1 if view is None else view.epoch

    def _is_eligible(self, replica_id: int) -> bool:
        """Whether the replica is unfenced, not shutting down, and the process that fetched last
        (KIP-841, KIP-903)."""
        view = self.brokers().get(replica_id)
        if view is None or not view.in_service:
            return False
        return self.remotes[replica_id].broker_epoch == view.epoch

    # --- questions -----------------------------------------------------------------------------

    def check_leader_epoch(self, current_leader_epoch: int | None) -> None:
        """Raises FencedLeaderEpochError if the caller's epoch is older, UnknownLeaderEpochError if
        it is newer (KIP-320)."""
        if current_leader_epoch is None or current_leader_epoch == self.leader_epoch:
            return
        if current_leader_epoch < self.leader_epoch:
            raise FencedLeaderEpochError(
                f"{self.identity.topic_partition}: leader epoch {current_leader_epoch} is older "
                f"than {self.leader_epoch}; refresh the metadata"
            )
        raise UnknownLeaderEpochError(
            f"{self.identity.topic_partition}: leader epoch {current_leader_epoch} is newer than "
            f"{self.leader_epoch} here; try again"
        )

    def check_leader(self) -> None:
        """Raises NotLeaderOrFollowerError unless this node leads."""
        if self.role is not Role.LEADER:
            raise NotLeaderOrFollowerError(
                f"node {self.node_id} does not lead {self.identity.topic_partition}; "
                "refresh the metadata"
            )
        if self.restoring:
            raise NotLeaderOrFollowerError(
                f"{self.identity.topic_partition} is being restored from the tier, try again:"
                f" {self.restoring}"
            )

    def check_follower(self, replica_id: int, broker_epoch: int) -> None:
        """Checks the sender of a fetch (KIP-903).

        Raises UnknownLeaderEpochError if it is no replica, NotLeaderOrFollowerError if an earlier
        process of it sent the fetch.
        """
        state = self.remotes.get(replica_id)
        if state is None:
            raise UnknownLeaderEpochError(
                f"node {replica_id} is no replica of {self.identity.topic_partition} here (yet)"
            )
        if state.broker_epoch is not None and broker_epoch < state.broker_epoch:
            raise NotLeaderOrFollowerError(
                f"node {replica_id} fetched with broker epoch {broker_epoch}, "
                f"older than {state.broker_epoch}"
            )

    def check_enough_replicas(self) -> None:
        """Raises NotEnoughReplicasError if the ISR is too small for an append with acks=all."""
        if not self._may_commit:
            eligible = f", {list(self.elr)} are eligible leaders" if self.elr else ""
            raise NotEnoughReplicasError(
                f"{self.identity.topic_partition}: {len(self.isr)} in-sync replicas{eligible}, "
                f"min.insync.replicas is {self.min_insync_replicas}"
            )

    def ack_state(self, required_offset: int, leader_epoch: int) -> AckState:
        """Whether a produce appended in `leader_epoch`, whose records end at `required_offset`, can
        be answered.

        A higher epoch of the same leader keeps the records where they are, so it waits on. Between
        two leaderships the log may have been truncated, and the offset may be another record's.
        """
        if self.role is not Role.LEADER or leader_epoch < self.leading_since_epoch:
            return AckState(True, ErrorCode.NOT_LEADER_OR_FOLLOWER)
        if self.high_watermark < required_offset:
            return _WAIT
        if len(self.isr) < self.effective_min_isr:
            return AckState(True, ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND)
        return _DONE

    def validate(self) -> None:
        """Asserts the invariants of one partition (RULES.md I9, KIP-497)."""
        assert self.high_watermark <= max(self.log_end_offset, 0), "high watermark beyond the log"
        assert self.isr <= set(self.replicas) | {self.node_id}, "ISR outside the replicas"
        if self.role is Role.LEADER:
            assert self.leader == self.node_id, "leads under another's name"
            assert self.node_id not in self.remotes, "the leader is no remote replica"
            assert set(self.remotes) == set(self.replicas) - {self.node_id}, "remotes and replicas"
            assert self.leader_epoch_start_offset is not None, "a leader knows where it began"
            assert self.leading_since_epoch <= self.leader_epoch, "leads since a later epoch"
        else:
            assert self.pending is None, "only a leader proposes"
            assert not self.remotes, "only a leader tracks replicas"
        if self.pending is not None:
            assert self.pending.leader_epoch == self.leader_epoch, "proposal of another epoch"
            assert self.isr <= self.maximal_isr, "the maximal ISR holds the committed one"
