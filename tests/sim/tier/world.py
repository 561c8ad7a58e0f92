"""One seed of the cluster with a tier; see `tests.sim.cluster.world`.

All topics are tiered and keep nothing locally that the tier has, so readers that seek back read the
store. Besides the cluster's faults the store is away, slow, or loses its answers. When all is quiet
again, the bucket has the objects of the metadata and no other.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Coroutine
from typing import Any, ClassVar
from unittest.mock import patch

from tests.sim.checks import Violation
from tests.sim.cluster.faults import Faults
from tests.sim.cluster.planting import ClusterCanary
from tests.sim.cluster.world import ClusterOutcome, ClusterWorld
from tests.sim.tier.checks import TierChecks, finished, log_of, remote_segments
from tests.sim.tier.store import BUCKETS, PLUG_IN, Bucket
from tidemark.client import NewTopic
from tidemark.types import TopicIdPartition
from tiering.metadata.segments import RemoteLogSegmentMetadata
from tiering.tasks import expirer

SETTLE_TIME_MS = 90_000
_GRACE_MS = 15_000
_TIERED = {
    "remote.storage.enable": "true",
    "segment.bytes": "16384",
    "local.retention.bytes": "1",
    "retention.ms": "-1",
}
_SETTINGS = {
    **ClusterWorld.settings,
    "remote.log.storage.system.enable": "true",
    "remote.log.storage.manager.class.name": PLUG_IN,
    "remote.log.metadata.topic.num.partitions": "2",
    "remote.log.manager.task.interval.ms": "400",
    "remote.log.manager.task.retry.backoff.ms": "100",
    "remote.log.manager.task.retry.backoff.max.ms": "2000",
    "log.retention.check.interval.ms": "700",
}


class TierFaults(Faults):
    """The faults of the cluster, and those of the store."""

    empty_rate: ClassVar[float] = 0.6
    late_rates: ClassVar[tuple[float, ...]] = (0.0,)
    clocks_differ: ClassVar[bool] = True

    def __init__(self, world: TierWorld) -> None:
        super().__init__(world)
        self._bucket = world.bucket

    def storms(self) -> list[Coroutine[Any, Any, None]]:
        rng, bucket = self._rng, self._bucket
        bucket.error_rate = rng.choice([0.0, 0.02, 0.2])
        bucket.lost_answer_rate = rng.choice([0.0, 0.05, 0.3])
        bucket.half_upload_rate = rng.choice([0.0, 0.05, 0.2])
        bucket.late_rate = rng.choice(self.late_rates)
        storms = super().storms()
        for node in self._world.cluster.nodes.values():
            node.store_ms_max = rng.choice([5.0, 50.0, 2_000.0])
            if not self.clocks_differ:
                node.skew_ms = 0
        return [*storms, self._storm(rng.choice([2_000, 6_000]), self._take_away)]

    async def _jump_clock(self) -> None:
        if self.clocks_differ:
            await super()._jump_clock()

    async def _take_away(self) -> None:
        self._bucket.is_away = True
        self._world.note("the store is away")
        try:
            await asyncio.sleep(self._rng.randrange(100, 6_000) / 1000)
        finally:
            self._bucket.is_away = False
            self._world.note("the store is back")

    def heal(self) -> None:
        self._bucket.calm()
        for node in self._world.cluster.nodes.values():
            node.store_ms_max = 1.0
        super().heal()


class TierWorld(ClusterWorld):
    """Cluster, store, faults and observations of one seed."""

    topics: ClassVar[tuple[NewTopic, ...]] = (
        NewTopic("orders", 2, 3, configs={"min.insync.replicas": "2", **_TIERED}),
        NewTopic("plain", 1, 3, configs={"min.insync.replicas": "1", **_TIERED}),
    )
    controllers: ClassVar[tuple[int, ...]] = (0, 1, 3)
    topics_change: ClassVar[bool] = False

    def __init__(self, seed: int, **options: Any) -> None:
        name = f"bucket-{seed}"
        self.settings = {**_SETTINGS, "rsm.config.bucket": name}  # type: ignore[misc]
        super().__init__(seed, **options)
        self.bucket.later = lambda delay_s, work: self.loop.call_later(delay_s, work)
        self._tier_checks = TierChecks(self.bucket)

    def make_faults(self) -> Faults:
        seed = random.Random(self.seed).getrandbits(32)
        self.bucket = Bucket(f"bucket-{self.seed}", seed, self.seen)
        return TierFaults(self)

    def look(self) -> None:
        super().look()
        self._tier_checks.look(self.cluster.brokers)

    def run(self) -> ClusterOutcome:
        try:
            with patch.object(expirer, "DANGLING_GRACE_MS", _GRACE_MS):
                return super().run()
        finally:
            BUCKETS.pop(self.bucket.name, None)

    async def settle(self) -> None:
        """Waits until the bucket has what the metadata names, and nothing besides."""
        end_ms = self.now_ms() + SETTLE_TIME_MS
        while (difference := self._difference()) is not None:
            await asyncio.sleep(1)
            if self.now_ms() > end_ms:
                raise Violation(f"bucket and metadata agree when all is quiet: {difference}")
        self.seen["remote segments"] += len(
            [file for file in self.bucket.files() if file.endswith(".log")]
        )

    def _difference(self) -> str | None:
        known: set[str] = set()
        for partition in self._tiered():
            lists = {
                node.node_id: remote_segments(node, partition) for node in self.cluster.brokers
            }
            if None in lists.values():
                return f"a broker does not know its metadata of {partition}"
            briefs = {n: sorted(map(_brief, found or ())) for n, found in lists.items()}
            if len({tuple(brief) for brief in briefs.values()}) > 1:
                return f"the brokers know {partition} differently: {briefs}"
            segments = next(iter(lists.values())) or []
            done = finished(segments)
            if len(done) != len(segments):
                return f"{partition} has unfinished segments: {sorted(map(_brief, segments))}"
            known |= {log_of(segment) for segment in done}
        names = self.bucket.files()
        stems = {name.removesuffix(".log") for name in known}
        strange = sorted(name for name in names if name.rsplit(".", 1)[0] not in stems)
        if strange:
            return f"objects that no metadata names: {strange}"
        if not known <= names:
            return f"objects that are gone: {sorted(known - names)}"
        return None

    def _tiered(self) -> list[TopicIdPartition]:
        image = self.newest_image()
        assert image is not None
        return [
            TopicIdPartition(topic.topic_id, topic.name, index)
            for topic in image.topics
            if topic.name in {each.name for each in self.topics}
            for index in topic.partitions
        ]


def _brief(segment: RemoteLogSegmentMetadata) -> tuple[int, int, str, str]:
    return segment.start_offset, segment.end_offset, segment.state.name, str(segment.id)


def run_tier(
    seed: int, canary: ClusterCanary | None = None, *, verbose: bool = False
) -> ClusterOutcome:
    """Runs one seed to its end. Any exception is its finding."""
    planted = canary or ClusterCanary()
    with planted.planted():
        return TierWorld(seed, verbose=verbose, fault_ms=planted.fault_ms).run()
