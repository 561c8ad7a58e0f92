"""Bugs planted in consumer groups; the group world under some seed must catch each of them."""

from __future__ import annotations

from typing import Any

from coordinator.groups import commits, members
from coordinator.groups.offsets import OffsetStore
from coordinator.runtime.runtime import CoordinatorRuntime
from tests.sim.cluster.planting import ClusterCanary
from tidemark.client.groups.member import GroupMember


def _free(self: Any, kept: dict[Any, Any]) -> bool:
    for topic_id, wanted in self.target.items():
        kept[topic_id] = {**dict.fromkeys(wanted, self.target_epoch), **kept.get(topic_id, {})}
    return False


class GivesAwayWhatOthersHave(ClusterCanary):
    """A partition is assigned while its last owner has not let go."""

    patches = ((members._Step, "_add_free", _free),)


class DoesNotWaitForRevocation(ClusterCanary):
    """A member counts as having let go as soon as it is told to."""

    patches = ((members._Step, "owns_any", lambda *_: False),)


async def _at_once(self: Any, context: Any) -> None:
    return None


class AnswersGroupsBeforeCommit(ClusterCanary):
    """A coordinator answers before its records are committed."""

    patches = ((CoordinatorRuntime, "_committed", _at_once),)


_replay = OffsetStore.replay


def _forgets(self: Any, key: Any, value: Any, record_offset: int, producer_id: int = -1) -> None:
    known = self.get(key.group, key.topic, key.partition)
    if known is None or known.record_offset > record_offset or record_offset % 5:
        _replay(self, key, value, record_offset, producer_id)


class LosesOffsets(ClusterCanary):
    """A coordinator does not apply some of the offsets that it appended."""

    patches = ((OffsetStore, "replay", _forgets),)


class TakesCommitsOfFencedMembers(ClusterCanary):
    """A coordinator stores offsets whoever commits them."""

    patches = ((commits, "_check_member", lambda request, group: None),)


async def _keeps(self: Any) -> None:
    self.core.gave_up(self._fetcher.now_ms())
    self._changed.set()


class KeepsPartitionsWhenFenced(ClusterCanary):
    """A fenced member goes on with the positions that it had."""

    patches = ((GroupMember, "_give_up", _keeps),)


_positions = GroupMember.positions


def _ahead(self: Any) -> Any:
    return {
        partition: found._replace(offset=found.offset + 1)
        for partition, found in _positions(self).items()
    }


class CommitsAhead(ClusterCanary):
    """A consumer commits one record more than it returned."""

    patches = ((GroupMember, "positions", _ahead),)


async def _from_reset(self: Any) -> None:
    self._unplaced.clear()


class IgnoresTheGroupsOffsets(ClusterCanary):
    """A consumer begins where auto.offset.reset says, whatever the group committed."""

    patches = ((GroupMember, "place", _from_reset),)


CANARIES: dict[str, type[ClusterCanary]] = {
    "gives-away-what-others-have": GivesAwayWhatOthersHave,
    "does-not-wait-for-revocation": DoesNotWaitForRevocation,
    "answers-groups-before-commit": AnswersGroupsBeforeCommit,
    "loses-offsets": LosesOffsets,
    "takes-commits-of-fenced-members": TakesCommitsOfFencedMembers,
    "keeps-partitions-when-fenced": KeepsPartitionsWhenFenced,
    "commits-ahead": CommitsAhead,
    "ignores-the-groups-offsets": IgnoresTheGroupsOffsets,
}

CAUGHT_BY = dict.fromkeys(CANARIES, "GroupViolation")
"""Words of the finding that a bug has to cause."""
