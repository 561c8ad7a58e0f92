"""Bugs planted in transactions; the world of transactions under some seed must catch each."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from commitlog.log.log import Log
from coordinator.groups import commits
from coordinator.groups.offsets import OffsetStore
from coordinator.groups.shard import GroupShard
from coordinator.records.transactions import TransactionState
from coordinator.runtime.result import CoordinatorResult
from coordinator.runtime.runtime import CoordinatorRuntime
from coordinator.transactions import shard, transaction
from coordinator.transactions.shard import TransactionShard
from node.coordination import marker_writer
from node.coordination.verification import TransactionVerifier
from tests.sim.cluster.planting import ClusterCanary


class AppendsWithoutVerification(ClusterCanary):
    """A leader appends the first batch of a transaction without its coordinator's consent."""

    patches = ((TransactionVerifier, "is_open", lambda *_: True),)


async def _at_once(self: Any, context: Any) -> None:
    return None


class SendsMarkersBeforeTheOutcomeStands(ClusterCanary):
    """A transaction coordinator answers and sends markers before its decision is committed."""

    patches = ((CoordinatorRuntime, "_committed", _at_once),)


_loaded = TransactionShard.loaded


def _forgetful(self: Any, epoch: int, now: Any) -> None:
    self._unwritten.clear()
    _loaded(self, epoch, now)


class ForgetsPendingMarkers(ClusterCanary):
    """A coordinator that loads forgets the outcomes that partitions have not been told."""

    patches = ((TransactionShard, "loaded", _forgetful),)


class EndsTheNextTransaction(ClusterCanary):
    """A marker that comes twice is written again: epochs are not compared."""

    patches = ((marker_writer, "_is_missing", lambda *_: True),)


def _timeout_without_fence(self: Any, transactional_id: str, now: Any) -> Sequence[Any]:
    state = self.transactions.get(transactional_id)
    if state is None or state.transaction_status != TransactionState.ONGOING:
        return []
    ended = transaction.initialized(
        state, transaction.producer_of(state), state.transaction_timeout_ms, now.wall_ms
    )
    return [shard._result(transactional_id, ended, None)]


class TimesOutWithoutMarkers(ClusterCanary):
    """A transaction that takes too long is forgotten by its coordinator, not aborted."""

    patches = ((TransactionShard, "_time_out", _timeout_without_fence),)


_replay = OffsetStore.replay


def _at_commit(self: Any, key: Any, value: Any, record_offset: int, producer_id: int = -1) -> None:
    _replay(self, key, value, record_offset)


class CountsOffsetsBeforeTheCommit(ClusterCanary):
    """Offsets in a transaction count when they are written, not when it is committed."""

    patches = ((OffsetStore, "replay", _at_commit),)


class ServesUnstableRecords(ClusterCanary):
    """The last stable offset is the high watermark, whatever transactions are open."""

    patches = (
        (Log, "last_stable_offset", property(lambda self: self._high_watermark)),
        (Log, "first_unstable_offset", property(lambda self: None)),
    )


def _no_aborted(*_: Any, **__: Any) -> list[Any]:
    return []


class NamesNoAbortedTransactions(ClusterCanary):
    """A leader does not tell consumers which transactions are aborted."""

    patches = ((Log, "aborted_transactions", _no_aborted),)


def _decided_twice(self: Any, transactional_id: str, state: Any, committed: bool) -> Any:
    return CoordinatorResult(transaction.producer_of(state))


class AcceptsASecondOutcome(ClusterCanary):
    """An end of a transaction is answered as done, though it had the other outcome."""

    patches = ((TransactionShard, "_ended_before", _decided_twice),)


def _writable(self: Any, transactional_id: str, producer: Any) -> Any:
    return self._state(transactional_id)


class TakesAnyEpoch(ClusterCanary):
    """A coordinator adds partitions for producers that it fenced, and in any state."""

    patches = ((TransactionShard, "_writable", _writable),)


_prepared = transaction.prepared


def _same_epoch(state: Any, committed: bool, next_producer_id: int, now_ms: int) -> Any:
    bumped = _prepared(state, committed, next_producer_id, now_ms)
    return replace(bumped, producer_epoch=state.producer_epoch)


class KeepsTheEpoch(ClusterCanary):
    """The end of a transaction does not raise the epoch (KIP-890)."""

    patches = ((transaction, "prepared", _same_epoch),)


_fetch = GroupShard.fetch


def _unstable(self: Any, request: Any, require_stable: bool) -> Any:
    return _fetch(self, request, False)


class TellsUnstableOffsets(ClusterCanary):
    """A member begins at a group's offsets though an open transaction moves them (KIP-447)."""

    patches = ((GroupShard, "fetch", _unstable),)


class TakesOffsetsOfFencedMembers(ClusterCanary):
    """Offsets in a transaction are stored whoever commits them (KIP-447)."""

    patches = ((commits, "_check_member", lambda request, group: None),)


CANARIES: dict[str, type[ClusterCanary]] = {
    "appends-without-verification": AppendsWithoutVerification,
    "sends-markers-too-early": SendsMarkersBeforeTheOutcomeStands,
    "forgets-pending-markers": ForgetsPendingMarkers,
    "ends-the-next-transaction": EndsTheNextTransaction,
    "times-out-without-markers": TimesOutWithoutMarkers,
    "counts-offsets-before-the-commit": CountsOffsetsBeforeTheCommit,
    "serves-unstable-records": ServesUnstableRecords,
    "names-no-aborted-transactions": NamesNoAbortedTransactions,
    "accepts-a-second-outcome": AcceptsASecondOutcome,
    "takes-any-epoch": TakesAnyEpoch,
    "keeps-the-epoch": KeepsTheEpoch,
    "tells-unstable-offsets": TellsUnstableOffsets,
    "takes-offsets-of-fenced-members": TakesOffsetsOfFencedMembers,
}

CAUGHT_BY = dict.fromkeys(CANARIES, "TransactionViolation")
"""Words of the finding that a bug has to cause."""
