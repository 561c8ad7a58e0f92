"""One seed of the cluster with a tier; see `tests.sim.cluster.world`.

All topics are tiered and keep nothing locally that the tier has, so readers that seek back read the
store. Besides the cluster's faults the store is away, slow, or loses its answers. A third of the
seeds has a topic that expires besides, and another third topics that are elected uncleanly. When
all is quiet again, the bucket has the objects of the metadata and no other.
"""

from __future__ import annotations

import asyncio
import random
from dataclasses import replace
from typing import Any, ClassVar
from unittest.mock import patch

from tests.sim.checks import Violation
from tests.sim.cluster.faults import Faults
from tests.sim.cluster.planting import ClusterCanary
from tests.sim.cluster.world import ClusterOutcome, ClusterWorld
from tests.sim.tier.checks import TierChecks, finished, hosts, log_of, remote_segments
from tests.sim.tier.faults import TierFaults
from tests.sim.tier.programs import EXPIRING, LOSSY, SINGLE, Expiring, Lossy, Operator
from tests.sim.tier.rest import check_contents, strange_objects
from tests.sim.tier.store import BUCKETS, LATE_S, PLUG_IN, Bucket, stem_of
from tests.sim.tier.watching import Watch
from tidemark.client import NewTopic
from tidemark.testing.workload import WorkloadPace
from tidemark.types import TopicIdPartition
from tiering.metadata.segments import RemoteLogSegmentMetadata
from tiering.tasks import deleter, expirer

SETTLE_TIME_MS = 90_000
_GRACE_MS = 15_000
_LATE_MS = int(max(LATE_S) * 1000) + 1_000
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


class TierWorld(ClusterWorld):
    """Cluster, store, faults and observations of one seed."""

    pace: ClassVar[WorkloadPace] = replace(ClusterWorld.pace, tier_rots=True)
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
        self.tier_checks = TierChecks(self.bucket, self.partitions)
        self.finished: dict[TopicIdPartition, list[RemoteLogSegmentMetadata]] = {}
        """The remote segments when all is quiet."""
        self.unlimited = {topic.name for topic in self.topics}
        self.extra: list[NewTopic] = [[EXPIRING], [LOSSY, SINGLE], []][seed % 3]
        self.partitions.lossy_topics |= {LOSSY.name, SINGLE.name}
        self._watch = Watch(self, _GRACE_MS)

    def make_faults(self) -> Faults:
        seed = random.Random(self.seed).getrandbits(32)
        self.bucket = Bucket(f"bucket-{self.seed}", seed, self.seen)
        self.tier_faults = TierFaults(self)
        return self.tier_faults

    def epochs_lost(self, node_id: int, topic: str, partition: str) -> None:
        """Takes note that a stopped replica has lost its leader epochs."""
        topic_id = self.tier_checks.topic_ids.get(topic)
        if topic_id is not None:
            self.tier_checks.short.add((node_id, (topic_id, int(partition))))

    async def _make_topics(self) -> None:
        await super()._make_topics()
        if self.extra:
            async with self.cluster.asyncio.admin() as admin:
                await admin.create_topics(self.extra)

    async def _work(self, begin: asyncio.Event, calm: asyncio.Event) -> None:
        rng = random.Random(self.rng.getrandbits(64))
        lossy = [topic for topic in self.extra if topic is not EXPIRING]
        programs: list[Any] = [Lossy(self, topic, rng).run(calm) for topic in lossy]
        if EXPIRING in self.extra:
            expiring = Expiring(self, rng)
            self.tier_checks.allow[EXPIRING.name] = expiring.allowed_start
            programs.append(expiring.run(calm))
        operator = asyncio.create_task(Operator(self, [topic.name for topic in lossy]).run())
        try:
            await asyncio.gather(super()._work(begin, calm), *programs)
        finally:
            operator.cancel()

    def look(self) -> None:
        super().look()
        self.tier_checks.look(self.cluster.brokers)

    def run(self) -> ClusterOutcome:
        try:
            with (
                patch.object(expirer, "DANGLING_GRACE_MS", _GRACE_MS),
                patch.object(deleter, "LATE_WRITE_MS", _LATE_MS),
                self._watch.on(),
            ):
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
        for partition, segments in self.finished.items():
            identity = (partition.topic_id, partition.partition)
            check_contents(self.bucket, segments, self.partitions.committed.get(identity, ()))
        self.seen["remote segments"] += len(
            [file for file in self.bucket.files() if file.endswith(".log")]
        )

    def _difference(self) -> str | None:
        known: set[str] = set()
        for partition in self._tiered():
            lists = {
                node.node_id: remote_segments(node, partition)
                for node in self.cluster.brokers
                if hosts(node, partition)
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
            self.finished[partition] = done
            known |= {stem_of(segment) for segment in done}
            missing = {log_of(segment) for segment in done} - self.bucket.files()
            if missing:
                return f"objects that are gone: {sorted(missing)}"
        strange, for_gc = strange_objects(self.bucket, known)
        if strange:
            return f"objects that no metadata names: {strange}"
        self.seen["objects left to gc"] += len(for_gc)
        return None

    def _tiered(self) -> list[TopicIdPartition]:
        image = self.newest_image()
        assert image is not None
        return [
            TopicIdPartition(topic.topic_id, topic.name, index)
            for topic in image.topics
            if topic.name in {each.name for each in (*self.topics, *self.extra)}
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
