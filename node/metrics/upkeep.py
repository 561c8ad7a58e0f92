"""Families of a broker's background work: in-sync replicas, scrubber, cleaner (pure)."""

from __future__ import annotations

from collections.abc import Iterator

from prometheus_client.core import CounterMetricFamily
from prometheus_client.metrics_core import Metric

from commitlog.cleaner.manager import LogCleaner
from node.metrics.families import PREFIX, gauge
from node.replication.isr import IsrKeeper
from node.upkeep.scrubber import Scrubber

_BEAN = "Kafka's kafka.server:type=ReplicaManager,name="


def _counter(name: str, told: str, value: float) -> Metric:
    return CounterMetricFamily(f"{PREFIX}_{name}", told, value=value)


def of_isr(keeper: IsrKeeper) -> Iterator[Metric]:
    """Changes of in-sync replicas that this leader asked for, and were made."""
    yield _counter("broker_isr_shrinks", f"{_BEAN}IsrShrinksPerSec", keeper.shrinks)
    yield _counter("broker_isr_expands", f"{_BEAN}IsrExpandsPerSec", keeper.expands)


def of_upkeep(scrubber: Scrubber, cleaner: LogCleaner) -> Iterator[Metric]:
    """Work and findings of the scrubber, and logs that the cleaner gave up."""
    yield _counter("scrubber_passes", "Passes over all logs", scrubber.passes)
    yield _counter("scrubber_bytes", "Bytes that were checked", scrubber.scrubbed_bytes)
    damaged = scrubber.damaged_segments
    yield _counter("scrubber_damaged_segments", "Segments that were damaged", damaged)
    repaired = scrubber.rebuilt_indexes + scrubber.repaired_files
    yield _counter("scrubber_repaired_files", "Indexes and small files written anew", repaired)
    told = "Kafka's kafka.log:type=LogCleanerManager,name=uncleanable-partitions-count"
    yield gauge("cleaner_uncleanable_partitions", told, len(cleaner.uncleanable))
