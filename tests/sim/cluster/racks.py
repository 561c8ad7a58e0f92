"""The whole cluster with brokers in racks and consumers that read from the closest one (KIP-392).

The history is judged as in `tests.sim.cluster.world`. A follower must show no record
that is lost later, none out of order, and skip none.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, ClassVar
from unittest.mock import patch

from node.serving.fetching import FetchHandler
from tests.sim.cluster.planting import ClusterCanary
from tests.sim.cluster.world import ClusterOutcome, ClusterWorld
from tidemark.testing.workload import WorkloadPace

_read_one = FetchHandler._read_one


class RackedWorld(ClusterWorld):
    """Counts the answers with records that followers gave."""

    settings: ClassVar[Mapping[str, str]] = {
        **ClusterWorld.settings,
        "replica.selector.class": "RackAwareReplicaSelector",
    }
    pace: ClassVar[WorkloadPace] = replace(ClusterWorld.pace, racks=("a", "b", "c"))

    def _run(self) -> ClusterOutcome:
        def counted(
            handler: Any, params: Any, context: Any, item: Any, answer: Any, *more: Any
        ) -> None:
            _read_one(handler, params, context, item, answer, *more)
            hosted = handler._partitions.get(item.topic, item.partition, item.topic_id)
            if params.rack and answer.records and not hosted.is_leader:
                self.seen["read at a follower"] += 1

        with patch.object(FetchHandler, "_read_one", counted):
            return super()._run()


def run_racked(
    seed: int, canary: ClusterCanary | None = None, *, verbose: bool = False
) -> ClusterOutcome:
    """Runs one seed to its end. Any exception is its finding."""
    planted = canary or ClusterCanary()
    with planted.planted():
        return RackedWorld(seed, verbose=verbose, fault_ms=planted.fault_ms).run()
