"""The steps of `tidemark tier rebuild`, each of which may be repeated after a crash.

1. Create the topic: its old id, no leader, an epoch as high as the tier's. No automatic election.
2. Record the segments that the metadata lacks.
3. Elect leaders uncleanly: a leader with an empty log restores itself from the tier.
4. Wait until the leaders serve the offsets of the tier.

The topic is first: metadata of topics that do not exist is removed, with its segments. A partition
with a leader, or with replicas that had one, gets its missing records and no election.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

from tidemark.errors import TidemarkError, UnknownTopicOrPartitionError
from tidemark.types import OffsetSpec, TopicPartition

if TYPE_CHECKING:
    from tidemark.client.models import (
        NewTopic,
        PartitionDescription,
        TopicDescription,
        TopicListing,
    )
    from tiering.metadata.history import MetadataHistory
    from tiering.metadata.segments import RemoteLogMetadata, RemoteLogSegmentMetadata
    from tiering.tasks.rebuild import PartitionPlan, TopicPlan

T = TypeVar("T")

SAFE_CONFIGS = {"retention.ms": "-1", "retention.bytes": "-1"}
"""Settings of a rebuilt topic where none were given: the defaults would delete old records."""
FIXED_CONFIGS = {"remote.storage.enable": "true", "unclean.leader.election.enable": "false"}
_WRITE_RECORDS = 400
_POLL_S = 0.2


class RebuildAdmin(Protocol):
    """The calls of an Admin that are used here."""

    def list_topics(self, *, include_internal: bool = False) -> list[TopicListing]: ...

    def describe_topics(self, names: Sequence[str]) -> dict[str, TopicDescription]: ...

    def create_topics(self, topics: Sequence[NewTopic]) -> list[TopicListing]: ...

    def elect_leaders(
        self, election_type: str = "PREFERRED", partitions: Collection[TopicPartition] | None = None
    ) -> Mapping[TopicPartition, Exception | None]: ...

    def list_offsets(
        self, wanted: Mapping[TopicPartition, int | OffsetSpec], *, timeout_ms: int | None = None
    ) -> Mapping[TopicPartition, Any]: ...


class RebuildError(TidemarkError):
    """A topic can not be rebuilt as it is; the message says what to do."""


@dataclass(slots=True)
class Settings:
    """Options of the command: settings by topic ("" for all), replicas, and the time to wait."""

    configs: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    replication_factor: int | None = None
    timeout_s: float = 300

    def of_topic(self, name: str) -> dict[str, str]:
        given = {**self.configs.get("", {}), **self.configs.get(name, {})}
        return {**SAFE_CONFIGS, **given, **FIXED_CONFIGS}


def obstacles(
    plan: TopicPlan, topics: Sequence[TopicListing], history: MetadataHistory
) -> Iterator[str]:
    """Yields the reasons why the cluster can not take the topic."""
    topic_id = plan.partitions[0].partition.topic_id
    for topic in topics:
        if topic.name == plan.name and topic.topic_id != topic_id:
            yield f"another topic {plan.name} has the id {topic.topic_id}: delete it first"
        elif topic.topic_id == topic_id and topic.name != plan.name:
            yield f"the id {topic_id} is in use, by the topic {topic.name!r}"
        elif topic.name == plan.name and topic.num_partitions < len(plan.partitions):
            yield (
                f"the topic {plan.name} has {topic.num_partitions} partitions, and the tier has "
                f"{len(plan.partitions)}: add partitions first"
            )
    for each in plan.partitions:
        cache = history.partitions.get(each.partition)
        if cache is not None and cache.partition_delete is not None:
            yield f"{each.partition} was deleted in this cluster: its segments are being removed"


def missing_records(
    plan: PartitionPlan, history: MetadataHistory, now_ms: int
) -> list[RemoteLogMetadata]:
    """Returns the records that the metadata lacks, in the order of their writing.

    The two of a segment are neighbours: a leader takes a copy that stays unfinished for garbage.
    """
    from tiering.metadata.segments import RemoteLogSegmentState as State

    records: list[RemoteLogMetadata] = []
    for segment in plan.recorded:
        known = history.find(plan.partition, segment.id)
        if known is None and history.is_deleted(plan.partition, segment.id):
            continue
        if known is not None and known.state is not State.COPY_SEGMENT_STARTED:
            continue
        if known is None:
            records.append(_begun(segment))
        custom = segment.custom_metadata
        records.append(
            segment.update(State.COPY_SEGMENT_FINISHED, now_ms, segment.broker_id, custom)
        )
    return records


def _begun(segment: RemoteLogSegmentMetadata) -> RemoteLogSegmentMetadata:
    from tiering.metadata.segments import RemoteLogSegmentState

    return replace(segment, state=RemoteLogSegmentState.COPY_SEGMENT_STARTED, custom_metadata=None)


@dataclass(slots=True)
class Rebuilder:
    """Runs the steps of topics; `on_step` is called with the name of each step before it."""

    cluster: RebuildAdmin
    write: Callable[[Sequence[RemoteLogMetadata]], None]
    settings: Settings
    on_step: Callable[[str], None] = lambda _: None
    now_ms: Callable[[], int] = lambda: time.time_ns() // 1_000_000
    sleep: Callable[[float], None] = time.sleep
    clock: Callable[[], float] = time.monotonic

    def run(self, plan: TopicPlan, history: MetadataHistory) -> dict[int, tuple[int, int]]:
        """Rebuilds a topic. Returns the first and the end offset by partition. Raises RebuildError,
        and the errors of the cluster.
        """
        self.on_step(f"{plan.name}: create")
        known = self._create(plan)
        for each in plan.partitions:
            self._write(each, history)
        wanted = [
            each.partition.topic_partition
            for each in plan.partitions
            if is_new(known[each.partition.partition])
        ]
        if wanted:
            self.on_step(f"{plan.name}: elect")
            failed = self.cluster.elect_leaders("UNCLEAN", wanted)
            for partition, error in failed.items():
                if error is not None and self._leader(partition) is None:
                    raise RebuildError(f"{partition} has no leader yet: {error}") from error
        self.on_step(f"{plan.name}: wait")
        return self._served(plan)

    def _create(self, plan: TopicPlan) -> dict[int, PartitionDescription]:
        from tidemark.client import NewTopic, TierRebuild

        found = self._describe(plan.name)
        topic_id = plan.partitions[0].partition.topic_id
        if found is None:
            epochs = [each.leader_epoch for each in plan.partitions]
            wanted = NewTopic(
                plan.name,
                len(plan.partitions),
                self.settings.replication_factor,
                self.settings.of_topic(plan.name),
                rebuild=TierRebuild(topic_id, epochs),
            )
            self.cluster.create_topics([wanted])
            found = self._wait(lambda: self._describe(plan.name), f"the topic {plan.name}")
        if found.topic_id != topic_id or len(found.partitions) < len(plan.partitions):
            raise RebuildError(f"the topic {plan.name} was created by another meanwhile")
        return {partition.partition: partition for partition in found.partitions}

    def _write(self, plan: PartitionPlan, history: MetadataHistory) -> None:
        records = missing_records(plan, history, self.now_ms())
        for at in range(0, len(records), _WRITE_RECORDS):
            self.on_step(f"{plan.partition.topic_partition}: record")
            self.write(records[at : at + _WRITE_RECORDS])

    def _served(self, plan: TopicPlan) -> dict[int, tuple[int, int]]:
        """Waits until the leaders serve what the tier has; all within one timeout. Tells once what
        each is waited for.
        """
        ends = self.clock() + self.settings.timeout_s
        served: dict[int, tuple[int, int]] = {}
        told: dict[int, str] = {}
        while True:
            known = self._describe(plan.name)
            registered = {} if known is None else {one.partition: one for one in known.partitions}
            for each in plan.partitions:
                number = each.partition.partition
                if number in served:
                    continue
                found = self._offsets(each, registered.get(number))
                if isinstance(found, tuple):
                    served[number] = found
                    told.pop(number, None)
                    continue
                if number not in told:
                    seconds = f"{self.settings.timeout_s:g} s at most"
                    self.on_step(f"{each.partition.topic_partition}: wait: {found}; {seconds}")
                told[number] = found
            if not told:
                return served
            if self.clock() >= ends:
                waited = "; ".join(f"partition {n}: {why}" for n, why in sorted(told.items()))
                raise RebuildError(
                    f"{len(told)} of {len(plan.partitions)} partitions are not served after "
                    f"{self.settings.timeout_s:g} s ({waited}): see the logs of their brokers, "
                    "then run this command again"
                )
            self.sleep(_POLL_S)

    def _offsets(
        self, plan: PartitionPlan, registered: PartitionDescription | None
    ) -> tuple[int, int] | str:
        """Returns first and end offset of a partition, or why it is not served yet."""
        partition = plan.partition.topic_partition
        if registered is None or registered.leader is None:
            replicas = [] if registered is None else list(registered.replicas)
            return f"no leader, of replicas {replicas}; start the brokers of those in its ISR"
        try:
            first = self.cluster.list_offsets({partition: OffsetSpec.EARLIEST}, timeout_ms=2000)
            end = self.cluster.list_offsets({partition: OffsetSpec.LATEST}, timeout_ms=2000)
        except TidemarkError as error:
            return f"leader {registered.leader} restores itself from the tier ({error})"
        found = first[partition].offset, end[partition].offset
        if found[1] >= plan.next_offset:
            return found
        return f"leader {registered.leader} ends at {found[1]}, and the tier at {plan.next_offset}"

    def _leader(self, partition: TopicPartition) -> int | None:
        found = self._describe(partition.topic)
        if found is None:
            return None
        return next(p.leader for p in found.partitions if p.partition == partition.partition)

    def _describe(self, name: str) -> TopicDescription | None:
        # A list answers at once; a description of an unknown topic is retried for long.
        if all(topic.name != name for topic in self.cluster.list_topics(include_internal=True)):
            return None
        try:
            return self.cluster.describe_topics([name])[name]
        except UnknownTopicOrPartitionError:
            return None

    def _wait(self, ask: Callable[[], T | None], what: str) -> T:
        ends = self.clock() + self.settings.timeout_s
        while True:
            found = ask()
            if found is not None:
                return found
            if self.clock() >= ends:
                raise RebuildError(
                    f"{what} is not there after {self.settings.timeout_s:g} s: see the log of its "
                    "broker, then run this command again"
                )
            self.sleep(_POLL_S)


def is_new(partition: PartitionDescription) -> bool:
    """Returns whether no replica ever led the partition: it was created by a rebuild."""
    known = partition.isr or partition.elr or partition.last_known_elr
    return partition.leader is None and not known
