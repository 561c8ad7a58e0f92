"""Bugs planted in production code; the whole cluster under some seed must catch each of them.

A canary is a class with `patches`: rows of (owner, name of its attribute, broken attribute), which
are in place while a world runs. Production builds all objects itself, so a bug is planted where the
class or module keeps its code. `python -m tests.sim --cluster --canary NAME --seeds 60` finds the
seeds that catch it. Those of the clients are in `client_canaries`.
"""

from __future__ import annotations

from typing import Any

from commitlog.log import log as commit_log
from commitlog.log import opening
from commitlog.segment.epochs import LeaderEpochCache
from commitlog.types import AppendInfo
from node.partition.core import _DONE, _WAIT, IsrProposal, Partition, Role
from node.replication import follower_log
from node.replication.fetcher_core import FetcherCore
from node.replication.replica_fetcher import ReplicaFetcher
from node.serving import fetching
from node.serving.fetching import FetchHandler
from quorum.controller import alter_partition
from tests.sim.cluster import client_canaries
from tests.sim.cluster.planting import ClusterCanary
from tests.sim.cluster.world import ClusterWorld
from tests.sim.partitions import canaries as partitions

_TOPICS_STAY = (ClusterWorld, "topics_change", False)
"""For bugs that few seeds meet: more of the other faults happen in the same time."""


def _of_the_isr_alone(self: Partition, now_ms: int) -> bool:
    if self.role is not Role.LEADER or not self._may_commit:
        return False
    others = [state for replica_id, state in self.remotes.items() if replica_id in self.isr]
    ends = [-1 if state.log_end_offset is None else state.log_end_offset for state in others]
    lowest = min(self.log_end_offset, *ends) if ends else self.log_end_offset
    moved, self.high_watermark = lowest > self.high_watermark, max(lowest, self.high_watermark)
    return moved


class CountsCommittedIsrAlone(ClusterCanary):
    """A high watermark passes replicas of a proposal that the controller may count (KIP-497)."""

    patches = ((Partition, "maybe_advance_high_watermark", _of_the_isr_alone),)


class CommitsWithAnyIsr(ClusterCanary):
    """A high watermark moves while the ISR is below min.insync.replicas (rule 9)."""

    patches = partitions.CommitsWithAnyIsr.patches


class ElectsAnyReplica(ClusterCanary):
    """A replica outside of ISR and ELR is elected as if it had been in sync (I4)."""

    patches = partitions.ElectsAnyReplica.patches


def _joins_anywhere(self: Partition, replica_id: int) -> IsrProposal | None:
    if self.role is not Role.LEADER or self.pending is not None or replica_id in self.isr:
        return None
    return self._propose(self.isr | {replica_id}) if self._is_eligible(replica_id) else None


class JoinsWithoutCatchingUp(ClusterCanary):
    """A follower joins the ISR with its first fetch, wherever its log ends."""

    patches = ((Partition, "maybe_expand_isr", _joins_anywhere),)


class JoinsTooEarly(ClusterCanary):
    """A follower joins the ISR at the high watermark, below the start of the leader's epoch."""

    patches = partitions.JoinsTooEarly.patches


def _is_in_service(self: Partition, replica_id: int) -> bool:
    view = self.brokers().get(replica_id)
    return view is not None and view.in_service


def _any_follower(self: Partition, replica_id: int, broker_epoch: int) -> None:
    state = self.remotes.get(replica_id)
    if state is not None:
        state.broker_epoch = None


class TakesAnyBrokerEpoch(ClusterCanary):
    """Fetches and ISR proposals of an earlier process of a broker count (KIP-903)."""

    patches = (
        (Partition, "check_follower", _any_follower),
        (Partition, "_is_eligible", _is_in_service),
        (Partition, "_epoch_of", lambda self, replica_id, brokers: -1),
        (alter_partition, "check_broker_epoch", lambda image, broker_id, epoch: None),
    )


class TakesLateAnswers(ClusterCanary):
    """A follower applies the answer to a fetch of an earlier leader epoch."""

    patches = (
        (ReplicaFetcher, "_is_current", lambda self, item: not item.hosted.is_leader),
        (FetcherCore, "_counts", lambda self, item, number: True),
        (FetcherCore, "unfollow", lambda self, key: None),
        _TOPICS_STAY,
    )


class RemembersTruncatedEpochs(ClusterCanary):
    """A truncation leaves the epochs of the removed records in the leader epoch cache (KIP-101)."""

    # Left in by `Log._after_truncation` alone it does no harm: the follower's next fetch names an
    # epoch without records, and `Log.truncate_to` drops it though the log ends there already.

    patches = ((LeaderEpochCache, "truncate_from_end", lambda self, end_offset: None),)


class FetchesInAnyEpoch(ClusterCanary):
    """A leader answers fetches whatever leader epoch the fetcher knows (KIP-320)."""

    patches = (
        (Partition, "check_leader_epoch", lambda self, current_leader_epoch: None),
        _TOPICS_STAY,
    )


_follow = ReplicaFetcher.follow


def _cuts_first(self: ReplicaFetcher, hosted: Any) -> None:
    known = self._core._followed.get(hosted.topic_partition)
    if known is None or known.epoch != hosted.core.leader_epoch:
        end = hosted.core.high_watermark
        for work in follower_log.truncate(hosted, end, self._clock.wall_ms()):
            work()
        follower_log.settle(hosted)
    _follow(self, hosted)


class TruncatesToTheWatermark(ClusterCanary):
    """A follower truncates to its high watermark, not to where the logs diverge (KIP-101)."""

    patches = ((ReplicaFetcher, "follow", _cuts_first),)


class AnswersAllAtOnce(ClusterCanary):
    """A produce with acks=all is answered when the leader alone has the records (rule 9)."""

    fault_ms = 4_000
    patches = ((Partition, "ack_state", lambda self, required_offset, leader_epoch: _DONE),)


def _any_leadership(self: Partition, required_offset: int, leader_epoch: int) -> Any:
    if self.role is not Role.LEADER or self.high_watermark < required_offset:
        return _WAIT
    return _DONE


class AnswersForEarlierLeaderships(ClusterCanary):
    """A produce waits over two leaderships, between which its records may be truncated."""

    patches = ((Partition, "ack_state", _any_leadership), _TOPICS_STAY)


class ForgetsSequences(ClusterCanary):
    """A leader appends batches of an idempotent producer without regard to their sequences."""

    fault_ms = 4_000
    patches = (
        (commit_log, "check_producers", lambda *args, **kwargs: None),
        (commit_log, "find_duplicate", lambda *args: None),
    )


_find_duplicate = commit_log.find_duplicate


def _at_the_end(prepared: Any, producers: Any, start: int, origin: Any) -> AppendInfo | None:
    found = _find_duplicate(prepared, producers, start, origin)
    if found is None:
        return None
    count = found.last_offset - found.first_offset
    end = producers.end_offset
    return AppendInfo(
        end - 1 - count, end - 1, found.max_timestamp_ms, found.log_append_time_ms, start, True
    )


class AnswersDuplicatesAtTheEnd(ClusterCanary):
    """A batch sent again is acknowledged at the log's end, not where it was written."""

    fault_ms = 4_000
    patches = ((commit_log, "find_duplicate", _at_the_end),)


_load_segments = opening.load_segments


def _trusting(*args: Any, **kwargs: Any) -> Any:
    return _load_segments(*args, **{**kwargs, "clean": True})


class TrustsTornTails(ClusterCanary):
    """A start after a loss of power takes the files as they are, with a torn tail."""

    patches = ((opening, "load_segments", _trusting), _TOPICS_STAY)


_read_one = FetchHandler._read_one


def _tells_more(
    self: FetchHandler, params: Any, context: Any, item: Any, answer: Any, *others: Any
) -> None:
    _read_one(self, params, context, item, answer, *others)
    if params.replica is None and answer.next_offset:
        answer.high_watermark = max(answer.high_watermark, answer.next_offset)


class ServesBeyondTheWatermark(ClusterCanary):
    """A leader serves consumers records that are not committed (rule 10)."""

    fault_ms = 4_000
    patches = (
        (fetching, "_read_limit", lambda hosted, params: hosted.log.log_end_offset),
        (FetchHandler, "_read_one", _tells_more),
    )


def _to_its_end(self: Partition, leader_high_watermark: int) -> bool:
    moved = self.log_end_offset > self.high_watermark
    self.high_watermark = self.log_end_offset
    return moved


class BelievesItsEnd(ClusterCanary):
    """A follower takes the end of its log for the high watermark."""

    patches = ((Partition, "on_leader_high_watermark", _to_its_end),)


CANARIES: dict[str, type[ClusterCanary]] = {
    "cluster-counts-committed-isr-alone": CountsCommittedIsrAlone,
    "cluster-commits-with-any-isr": CommitsWithAnyIsr,
    "cluster-elects-any-replica": ElectsAnyReplica,
    "joins-without-catching-up": JoinsWithoutCatchingUp,
    "cluster-joins-too-early": JoinsTooEarly,
    "takes-any-broker-epoch": TakesAnyBrokerEpoch,
    "takes-late-answers": TakesLateAnswers,
    "remembers-truncated-epochs": RemembersTruncatedEpochs,
    "answers-for-earlier-leaderships": AnswersForEarlierLeaderships,
    "fetches-in-any-epoch": FetchesInAnyEpoch,
    "truncates-to-the-watermark": TruncatesToTheWatermark,
    "answers-all-at-once": AnswersAllAtOnce,
    "forgets-sequences": ForgetsSequences,
    "answers-duplicates-at-the-end": AnswersDuplicatesAtTheEnd,
    "trusts-torn-tails": TrustsTornTails,
    "serves-beyond-the-watermark": ServesBeyondTheWatermark,
    "believes-its-end": BelievesItsEnd,
    **client_canaries.CANARIES,
}

CAUGHT_BY = {
    "cluster-counts-committed-isr-alone": "I3 every in-sync",
    "cluster-commits-with-any-isr": "I6 commits with",
    "cluster-elects-any-replica": "I[46]|clients: ",
    "joins-without-catching-up": "I3 who joins|I6",
    "cluster-joins-too-early": "I3 who joins|I6",
    "takes-any-broker-epoch": "I3|I6",
    "takes-late-answers": "I6",
    "remembers-truncated-epochs": "liveness|I[56]",
    "answers-for-earlier-leaderships": "clients: .*acknowledged",
    "fetches-in-any-epoch": "I[56]|clients: .*reached",
    "truncates-to-the-watermark": "I6",
    "answers-all-at-once": "clients: .*acknowledged",
    "forgets-sequences": "clients: .*no duplicate",
    "answers-duplicates-at-the-end": "clients: .*acknowledged",
    "trusts-torn-tails": "damaged at byte",
    "serves-beyond-the-watermark": "clients: .*never changes",
    "believes-its-end": "I6",
    **client_canaries.CAUGHT_BY,
}
"""Words of the finding that a bug has to cause."""
