"""Bugs planted in the tier; a seed of `tests.sim.tier.world` must catch each of them."""

from __future__ import annotations

from typing import Any

from commitlog.log import retention
from tests.sim.cluster.planting import ClusterCanary
from tiering.tasks import copier, expirer, planner
from tiering.tasks.partition import TieredPartition


class DeletesBeforeCopied(ClusterCanary):
    """Local retention deletes what the tier does not have (rule 10)."""

    fault_ms = 4_000
    patches = ((retention, "_is_removable", lambda log, segment: True),)


async def _nothing_uploaded(self: Any, metadata: Any, files: Any) -> None:
    self._metrics.remote_copy_requests += 1


class FinishesWithoutUpload(ClusterCanary):
    """A copy is recorded as finished, and nothing was uploaded."""

    fault_ms = 4_000
    patches = ((copier.Copier, "_upload", _nothing_uploaded),)


class KeepsDanglingCopies(ClusterCanary):
    """Copies that nobody will finish are never deleted."""

    patches = ((planner, "dangling_copies", lambda *arguments: []),)


_dangling = planner.dangling_copies


class DeletesCopiesUnderWay(ClusterCanary):
    """A leader takes any unfinished copy for a dangling one."""

    patches = (
        (
            planner,
            "dangling_copies",
            lambda segments, broker_id, now_ms, grace_ms, in_flight: _dangling(
                segments, broker_id, now_ms, -1, ()
            ),
        ),
    )


def _local_start(self: Any, hosted: TieredPartition) -> int:
    return hosted.log.local_log_start_offset


class TakesTheLocalStart(ClusterCanary):
    """A new leader does not look into the tier before it raises its log start."""

    patches = ((expirer.Expirer, "_first_available", _local_start),)


CANARIES: dict[str, type[ClusterCanary]] = {
    "deletes-before-copied": DeletesBeforeCopied,
    "finishes-without-upload": FinishesWithoutUpload,
    "keeps-dangling-copies": KeepsDanglingCopies,
    "deletes-copies-under-way": DeletesCopiesUnderWay,
    "takes-the-local-start": TakesTheLocalStart,
}

CAUGHT_BY = {
    "deletes-before-copied": "I10",
    "finishes-without-upload": "I10",
    "keeps-dangling-copies": "bucket and metadata",
    "deletes-copies-under-way": "bucket and metadata|I10",
    "takes-the-local-start": "I10",
}
"""Words of the finding that a bug has to cause."""
