"""The partition's core: roles, ISR, high watermark, epochs, acks. Scenarios, then random walks."""

from __future__ import annotations

from copy import deepcopy

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from node.partition.core import AlterResult, BrokerView, IsrProposal, Partition, Registration, Role
from tidemark.errors import (
    ErrorCode,
    FencedLeaderEpochError,
    NotEnoughReplicasError,
    NotLeaderOrFollowerError,
    UnknownLeaderEpochError,
)
from tidemark.types import TopicIdPartition, random_uuid

IDENTITY = TopicIdPartition(random_uuid(), "flights", 0)
LAG_MS = 10_000


class Leader:
    """A partition led by node 1, with followers 2 and 3, in verbs."""

    def __init__(self, isr: tuple[int, ...] = (1, 2, 3), min_isr: int = 1, end: int = 0) -> None:
        self.brokers = {n: BrokerView(100 + n, True) for n in (1, 2, 3)}
        self.now_ms = 1_000_000
        self.core = Partition(
            IDENTITY, 1, lambda: self.brokers, min_insync_replicas=min_isr, lag_max_ms=LAG_MS
        )
        self.core.apply(Registration((1, 2, 3), isr, 1, 5, 7), end, self.now_ms)

    def append(self, end: int) -> bool:
        return self.core.on_append(end, self.now_ms)

    def fetch(self, replica: int, offset: int, epoch: int | None = None) -> bool:
        known = 100 + replica if epoch is None else epoch
        return self.core.on_follower_fetch(replica, known, offset, 0, self.now_ms)

    def answer(self, proposal: IsrProposal | None, **changes: object) -> bool:
        assert proposal is not None
        isr = tuple(member.broker_id for member in proposal.new_isr)
        result = AlterResult(1, proposal.leader_epoch, isr, proposal.partition_epoch + 1)
        return self.core.on_alter_result(result._replace(**changes), self.now_ms)


def test_the_high_watermark_is_the_least_end_of_the_isr() -> None:
    leader = Leader()
    leader.append(10)
    assert not leader.fetch(2, 10)
    assert leader.core.high_watermark == 0
    assert leader.fetch(3, 4)
    assert leader.core.high_watermark == 4
    assert leader.fetch(3, 10)
    assert leader.core.high_watermark == 10


def test_a_sole_replica_commits_at_once() -> None:
    core = Partition(IDENTITY, 1, dict)
    core.apply(Registration((1,), (1,), 1, 0, 0), 0, 0)
    assert core.on_append(3, 0)
    assert core.high_watermark == 3


def test_an_unknown_follower_end_holds_the_watermark() -> None:
    """A new leader has no end of a follower until the follower fetches in its epoch."""
    leader = Leader(end=8)
    assert leader.core.high_watermark == 0
    leader.fetch(2, 8)
    assert leader.core.high_watermark == 0
    leader.fetch(3, 8)
    assert leader.core.high_watermark == 8


def test_nothing_is_committed_while_others_are_eligible_whatever_the_minimum_is_here() -> None:
    """The controller counts on them; it knows a larger minimum before this node does."""
    leader = Leader(min_isr=1)
    leader.append(10)
    for replica in (2, 3):
        leader.fetch(replica, 10)
    leader.now_ms += 2 * LAG_MS
    leader.append(12)
    leader.fetch(2, 12)
    proposal = leader.core.maybe_shrink_isr(leader.now_ms)
    assert not leader.answer(proposal, isr=(1, 2), elr=(3,))
    assert leader.core.high_watermark == 10
    with pytest.raises(NotEnoughReplicasError, match=r"2 in-sync replicas, \[3\] are eligible"):
        leader.core.check_enough_replicas()
    cleared = Registration((1, 2, 3), (1, 2), 1, 5, 9)
    leader.core.apply(cleared._replace(elr=(3,)), 12, leader.now_ms)
    assert not leader.core.maybe_advance_high_watermark(leader.now_ms)
    leader.core.apply(cleared._replace(partition_epoch=10), 12, leader.now_ms)
    assert leader.core.maybe_advance_high_watermark(leader.now_ms)
    assert leader.core.high_watermark == 12
    leader.core.check_enough_replicas()


def test_a_replica_that_never_was_caught_up_holds_back_nothing_after_a_boot() -> None:
    """The monotonic clock begins at 0 there: "never" is not a time shortly before."""
    leader = Leader(isr=(1, 2), end=10)
    core = leader.core
    leader.now_ms = 1_000
    core.apply(Registration((1, 2, 3), (1, 2), 1, 6, 8), 10, leader.now_ms)
    leader.fetch(3, 4)  # far behind
    assert not core.remotes[3].is_caught_up(10, leader.now_ms, LAG_MS)
    assert leader.fetch(2, 10)
    assert core.high_watermark == 10


def test_a_replica_that_left_the_isr_is_not_caught_up_after_a_boot() -> None:
    leader = Leader(end=10)
    leader.now_ms = 1_000
    leader.core.apply(Registration((1, 2, 3), (1, 2), 1, 5, 8), 10, leader.now_ms)
    assert not leader.core.remotes[3].is_caught_up(10, leader.now_ms, LAG_MS)
    leader.fetch(3, 4)
    leader.fetch(3, 5)
    assert not leader.core.remotes[3].is_caught_up(10, leader.now_ms, LAG_MS)
    leader.append(12)
    leader.fetch(3, 10)  # the end at its last fetch
    assert leader.core.remotes[3].is_caught_up(12, leader.now_ms, LAG_MS)


def test_the_watermark_never_goes_back() -> None:
    leader = Leader()
    leader.append(10)
    leader.fetch(2, 10)
    leader.fetch(3, 10)
    assert not leader.fetch(3, 2)  # it truncated, or fetches again what it lost
    assert leader.core.high_watermark == 10


def test_the_watermark_stands_still_below_min_insync_replicas() -> None:
    leader = Leader(isr=(1,), min_isr=2)
    assert not leader.append(5)
    assert leader.core.high_watermark == 0
    with pytest.raises(NotEnoughReplicasError):
        leader.core.check_enough_replicas()


def test_min_insync_replicas_above_the_replication_factor_counts_as_the_factor() -> None:
    core = Partition(IDENTITY, 1, dict, min_insync_replicas=3)
    core.apply(Registration((1,), (1,), 1, 0, 0), 0, 0)
    core.check_enough_replicas()
    assert core.on_append(1, 0)


def test_a_follower_that_reached_the_watermark_is_proposed_for_the_isr() -> None:
    leader = Leader(isr=(1, 2))
    leader.append(10)
    leader.fetch(2, 10)
    leader.fetch(3, 9)
    assert leader.core.maybe_expand_isr(3) is None
    leader.fetch(3, 10)
    proposal = leader.core.maybe_expand_isr(3)
    assert proposal is not None
    assert [tuple(member) for member in proposal.new_isr] == [(1, 101), (2, 102), (3, 103)]
    assert (proposal.leader_epoch, proposal.partition_epoch) == (5, 7)


def test_a_follower_below_the_start_of_the_leader_epoch_may_not_join() -> None:
    """Below that start its log may still differ from the leader's."""
    leader = Leader(isr=(1,), end=20)
    leader.core.high_watermark = 5
    leader.core.min_insync_replicas = 2
    leader.fetch(3, 19)
    assert leader.core.maybe_expand_isr(3) is None
    leader.fetch(3, 20)
    assert leader.core.maybe_expand_isr(3) is not None


@pytest.mark.parametrize(
    "view",
    [BrokerView(103, False), BrokerView(999, True), None],
    ids=["fenced", "another process", "gone"],
)
def test_only_the_live_process_that_fetched_may_join(view: BrokerView | None) -> None:
    leader = Leader(isr=(1, 2))
    leader.fetch(3, 0)
    if view is None:
        del leader.brokers[3]
    else:
        leader.brokers[3] = view
    assert leader.core.maybe_expand_isr(3) is None


def test_a_follower_being_added_holds_the_watermark_already() -> None:
    """The controller may have committed the larger ISR before its answer arrives (KIP-497)."""
    leader = Leader(isr=(1, 2))
    leader.append(10)
    leader.fetch(2, 10)
    leader.fetch(3, 10)
    proposal = leader.core.maybe_expand_isr(3)
    leader.append(20)
    leader.fetch(2, 20)
    assert leader.core.high_watermark == 10
    leader.answer(proposal)
    assert leader.core.isr == {1, 2, 3}
    assert leader.core.high_watermark == 10
    leader.fetch(3, 20)
    assert leader.core.high_watermark == 20


def test_a_follower_being_added_holds_the_watermark_even_when_it_falls_silent() -> None:
    """Only the controller's answer can say whether it was added."""
    leader = Leader(isr=(1, 2))
    leader.fetch(3, 0)
    assert leader.core.maybe_expand_isr(3) is not None
    leader.brokers[3] = BrokerView(103, False)
    leader.now_ms += LAG_MS + 1
    leader.append(20)
    leader.fetch(2, 20)
    assert leader.core.high_watermark == 0


def test_a_replica_being_removed_holds_the_watermark_until_the_answer() -> None:
    leader = Leader()
    leader.append(10)
    leader.fetch(2, 10)
    leader.now_ms += LAG_MS + 1
    leader.fetch(2, 10)
    proposal = leader.core.maybe_shrink_isr(leader.now_ms)
    assert proposal is not None
    assert [member.broker_id for member in proposal.new_isr] == [1, 2]
    assert leader.core.high_watermark == 0
    assert leader.answer(proposal)
    assert leader.core.high_watermark == 10


def test_a_follower_that_keeps_pace_is_not_dropped() -> None:
    """It is never exactly at the end, but each time at the end of the fetch before."""
    leader = Leader()
    for step in range(1, 40):
        leader.now_ms += LAG_MS // 2
        leader.append(step * 10)
        leader.fetch(2, (step - 1) * 10)
        leader.fetch(3, (step - 1) * 10)
        assert leader.core.maybe_shrink_isr(leader.now_ms) is None


def test_a_replica_the_controller_took_out_of_the_isr_holds_the_watermark_no_more() -> None:
    """Its disk failed while its broker lives: it kept pace until then, and never fetches again."""
    leader = Leader()
    for end in (10, 20):
        leader.fetch(2, end - 10)
        leader.fetch(3, end - 10)
        leader.append(end)
    leader.fetch(2, 20)
    assert leader.core.high_watermark == 10
    leader.core.apply(Registration((1, 2, 3), (1, 2), 1, 5, 8), 20, leader.now_ms)
    assert leader.core.maybe_advance_high_watermark(leader.now_ms)
    assert leader.core.high_watermark == 20
    leader.append(30)
    assert leader.fetch(2, 30)


def test_one_proposal_is_under_way_at_a_time() -> None:
    leader = Leader(isr=(1,))
    leader.fetch(2, 0)
    leader.fetch(3, 0)
    assert leader.core.maybe_expand_isr(2) is not None
    assert leader.core.maybe_expand_isr(3) is None
    leader.now_ms += 10 * LAG_MS
    assert leader.core.maybe_shrink_isr(leader.now_ms) is None


def test_a_refused_proposal_is_taken_back() -> None:
    leader = Leader(isr=(1, 2))
    leader.fetch(3, 0)
    proposal = leader.core.maybe_expand_isr(3)
    assert proposal is not None
    assert leader.core.on_alter_error(proposal, ErrorCode.INELIGIBLE_REPLICA) is None
    assert leader.core.pending is None
    assert leader.core.maximal_isr == {1, 2}


def test_a_proposal_on_old_ground_waits_for_the_metadata() -> None:
    leader = Leader(isr=(1, 2))
    leader.fetch(3, 0)
    proposal = leader.core.maybe_expand_isr(3)
    assert proposal is not None
    assert leader.core.on_alter_error(proposal, ErrorCode.INVALID_UPDATE_VERSION) is None
    assert leader.core.maximal_isr == {1, 2, 3}
    leader.core.apply(Registration((1, 2, 3), (1, 2), 1, 5, 8), 0, leader.now_ms)
    assert leader.core.pending is None
    assert leader.core.maybe_expand_isr(3) is not None


def test_an_unanswered_proposal_is_sent_again() -> None:
    leader = Leader(isr=(1, 2))
    leader.fetch(3, 0)
    proposal = leader.core.maybe_expand_isr(3)
    assert proposal is not None
    assert leader.core.on_alter_error(proposal, ErrorCode.REQUEST_TIMED_OUT) is proposal
    leader.core.apply(Registration((1, 2, 3), (1, 2, 3), 1, 5, 8), 0, leader.now_ms)
    assert leader.core.on_alter_error(proposal, ErrorCode.REQUEST_TIMED_OUT) is None


def test_an_answer_of_an_older_epoch_changes_nothing() -> None:
    leader = Leader(isr=(1, 2))
    leader.fetch(3, 0)
    proposal = leader.core.maybe_expand_isr(3)
    leader.core.apply(Registration((1, 2, 3), (1, 2), 1, 6, 9), 0, leader.now_ms)
    assert not leader.answer(proposal)
    assert leader.core.isr == {1, 2}
    assert leader.core.partition_epoch == 9


def test_old_metadata_is_ignored() -> None:
    leader = Leader()
    assert not leader.core.apply(Registration((1, 2, 3), (2,), 2, 4, 6), 0, leader.now_ms)
    assert leader.core.role is Role.LEADER


def test_becoming_a_follower_forgets_replicas_and_proposals() -> None:
    leader = Leader(isr=(1, 2))
    leader.fetch(3, 0)
    leader.core.maybe_expand_isr(3)
    assert leader.core.apply(Registration((1, 2, 3), (1, 2), 2, 6, 8), 0, leader.now_ms)
    assert leader.core.role is Role.FOLLOWER
    assert leader.core.pending is None
    with pytest.raises(NotLeaderOrFollowerError):
        leader.core.check_leader()


def test_a_change_within_the_epoch_keeps_what_replicas_fetched() -> None:
    leader = Leader()
    leader.append(10)
    leader.fetch(2, 7)
    assert not leader.core.apply(Registration((1, 2, 3), (1, 2), 1, 5, 8), 10, leader.now_ms)
    assert leader.core.remotes[2].log_end_offset == 7
    assert leader.core.leader_epoch_start_offset == 0


def test_epochs_are_checked_both_ways() -> None:
    leader = Leader()
    leader.core.check_leader_epoch(None)
    leader.core.check_leader_epoch(5)
    with pytest.raises(FencedLeaderEpochError):
        leader.core.check_leader_epoch(4)
    with pytest.raises(UnknownLeaderEpochError):
        leader.core.check_leader_epoch(6)


def test_a_stranger_and_an_earlier_process_may_not_fetch_as_followers() -> None:
    leader = Leader()
    leader.core.check_follower(2, 102)
    with pytest.raises(UnknownLeaderEpochError):
        leader.core.check_follower(9, 109)
    leader.fetch(2, 0)
    with pytest.raises(NotLeaderOrFollowerError):
        leader.core.check_follower(2, 101)


def test_acks_wait_for_the_watermark_and_fail_with_the_leadership() -> None:
    leader = Leader(min_isr=2)
    leader.append(10)
    assert not leader.core.ack_state(10, 5).done
    leader.fetch(2, 10)
    leader.fetch(3, 10)
    assert leader.core.ack_state(10, 5) == (True, ErrorCode.NONE)
    leader.core.apply(Registration((1, 2, 3), (1,), 1, 5, 8), 10, leader.now_ms)
    assert leader.core.ack_state(10, 5) == (True, ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND)
    leader.core.apply(Registration((1, 2, 3), (1, 2), 2, 6, 9), 10, leader.now_ms)
    assert leader.core.ack_state(10, 5) == (True, ErrorCode.NOT_LEADER_OR_FOLLOWER)


def test_acks_wait_on_over_epochs_of_the_same_leader_until_replicas_have_the_records() -> None:
    leader = Leader(min_isr=2)
    leader.append(10)
    leader.fetch(2, 10)
    for epoch in (6, 7):
        leader.core.apply(Registration((1, 2, 3), (1, 2, 3), 1, epoch, 2 + epoch), 10, 0)
        assert not leader.core.ack_state(10, 5).done
    leader.fetch(2, 10)
    assert not leader.core.ack_state(10, 5).done, "3 has not fetched in the new epoch"
    leader.fetch(3, 10)
    assert leader.core.ack_state(10, 5) == (True, ErrorCode.NONE)


def test_acks_of_an_earlier_leadership_fail_whatever_is_committed_at_their_offset() -> None:
    leader = Leader()
    leader.append(10)
    leader.core.apply(Registration((1, 2, 3), (1, 2, 3), 2, 6, 8), 10, 0)
    leader.core.on_truncate(4, 0)
    leader.core.on_append(12, 0)  # other records, of node 2
    leader.core.apply(Registration((1, 2, 3), (1,), 1, 7, 9), 12, 0)
    leader.core.maybe_advance_high_watermark(0)
    assert leader.core.high_watermark == 12
    assert leader.core.ack_state(10, 5) == (True, ErrorCode.NOT_LEADER_OR_FOLLOWER)
    assert leader.core.ack_state(12, 7) == (True, ErrorCode.NONE)


def test_a_followers_watermark_stays_within_its_log() -> None:
    core = Partition(IDENTITY, 2, dict)
    core.apply(Registration((1, 2), (1, 2), 1, 0, 0), 4, 0)
    assert core.on_leader_high_watermark(9)
    assert core.high_watermark == 4
    assert not core.on_leader_high_watermark(3)
    core.on_truncate(2, core.high_watermark)
    assert core.high_watermark == 2


STEPS = st.lists(
    st.tuples(
        st.sampled_from(
            ["append", "fetch", "expand", "shrink", "answer", "refuse", "lost", "meta", "fence"]
        ),
        st.sampled_from([2, 3]),
        st.integers(0, 12),
    ),
    max_size=60,
)


@settings(max_examples=300, deadline=None)
@given(STEPS, st.integers(1, 3))
def test_random_walks_keep_the_invariants(steps: list[tuple[str, int, int]], min_isr: int) -> None:
    """The high watermark never moves back, and never passes a member of the controller's ISR."""
    leader = Leader(min_isr=min_isr)
    core = leader.core
    controller = Registration((1, 2, 3), (1, 2, 3), 1, 5, 7)
    for action, replica, amount in steps:
        leader.now_ms += amount * 2_500
        before, proposal = core.high_watermark, core.pending
        if action == "append":
            leader.append(core.log_end_offset + amount)
        elif action == "fetch":
            known = core.remotes[replica].log_end_offset or 0
            leader.fetch(replica, min(core.log_end_offset, known + amount))
        elif action == "expand":
            core.maybe_expand_isr(replica)
        elif action == "shrink":
            core.maybe_shrink_isr(leader.now_ms)
        elif action == "fence":
            leader.brokers[replica] = BrokerView(100 + replica, amount % 2 == 0)
        elif action == "meta":
            core.apply(controller, core.log_end_offset, leader.now_ms)
        elif proposal is not None and proposal.partition_epoch == controller.partition_epoch:
            isr = tuple(member.broker_id for member in proposal.new_isr)
            if action == "refuse":
                core.on_alter_error(proposal, ErrorCode.INELIGIBLE_REPLICA)
            else:
                controller = controller._replace(
                    isr=isr, partition_epoch=controller.partition_epoch + 1
                )
                if action == "answer":
                    leader.answer(proposal)
        core.validate()
        if core.is_settled:  # so no check is needed: the passing of time changes nothing
            later, copy = leader.now_ms + 10**9, deepcopy(core)
            assert copy.maybe_shrink_isr(later) is None
            assert not copy.maybe_advance_high_watermark(later)
        assert core.high_watermark >= before
        if core.high_watermark > before:
            for member in set(controller.isr) - {1}:
                end = core.remotes[member].log_end_offset
                assert end is not None and end >= core.high_watermark
