"""AsyncConsumer: reads assigned partitions from given positions, as records, Arrow batches or raw
batches.

With `subscribe` it is a member of a group, which tells it its partitions (KIP-848); with `assign`
the caller names them. The consumer handles leader changes, lost answers and expired metadata. It
raises the errors that only the caller can decide about, such as an offset that is out of range with
auto_offset_reset="none".
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping, Sequence
from random import Random
from typing import Any
from uuid import UUID

from tidemark.client.closing import AsyncCloses
from tidemark.client.connections import Connections, Security, parse_bootstrap_servers
from tidemark.client.consuming.core import FetchCore
from tidemark.client.consuming.fetcher import Fetcher
from tidemark.client.consuming.partition import (
    UNKNOWN_EPOCH,
    AssignedPartition,
    Halted,
    Position,
    Reset,
    Target,
)
from tidemark.client.consuming.reading import PollReader
from tidemark.client.consuming.requests import FetchSettings
from tidemark.client.coordinators import CoordinatorCalls
from tidemark.client.errors import ClientClosedError
from tidemark.client.groups.core import MemberSettings
from tidemark.client.groups.iterating import RecordIterator
from tidemark.client.groups.member import GroupMember, RebalanceListener
from tidemark.client.groups.requests import checked_partition, offsets_of
from tidemark.client.metadata import MetadataCache
from tidemark.client.models import (
    ConsumerGroupMetadata,
    OffsetAndMetadata,
    OffsetAndTimestamp,
)
from tidemark.client.offsets import OffsetLookup
from tidemark.client.records import RawBatches, Records
from tidemark.client.retry import RetryPolicy
from tidemark.errors import ConfigError, RequestTimedOutError
from tidemark.surroundings import make_rng
from tidemark.types import OffsetSpec, TopicPartition
from tidemark.v1 import group_pb2

_ISOLATION_LEVELS = {"read_uncommitted": 0, "read_committed": 1}
_RESETS = ("latest", "earliest", "none")


class _LookUps:
    """Questions about partitions that need no assignment."""

    _connections: Connections
    _metadata: MetadataCache
    _lookup: OffsetLookup

    async def beginning_offsets(
        self, partitions: Sequence[TopicPartition]
    ) -> dict[TopicPartition, int]:
        """The log start offset of each partition, over both tiers."""
        return await self._offsets(partitions, OffsetSpec.EARLIEST)

    async def end_offsets(self, partitions: Sequence[TopicPartition]) -> dict[TopicPartition, int]:
        """The high watermark of each partition; with read_committed the last stable offset."""
        return await self._offsets(partitions, OffsetSpec.LATEST)

    async def _offsets(
        self, partitions: Sequence[TopicPartition], where: int
    ) -> dict[TopicPartition, int]:
        asked = {checked_partition(partition): where for partition in partitions}
        found = await self._lookup.list_offsets(asked)
        return {p: 0 if answer is None else answer.offset for p, answer in found.items()}

    async def offsets_for_times(
        self, timestamps: Mapping[TopicPartition, int]
    ) -> dict[TopicPartition, OffsetAndTimestamp | None]:
        """The first record at or after each timestamp (ms), or None where there is none.

        Raises ValueError for a negative timestamp.
        """
        for partition, timestamp in timestamps.items():
            if timestamp < 0:
                raise ValueError(f"{partition}: a timestamp is not negative: {timestamp}")
        return await self._lookup.list_offsets(
            {checked_partition(partition): timestamp for partition, timestamp in timestamps.items()}
        )

    async def partitions_for(
        self, topic: str, timeout_ms: float | None = None
    ) -> list[TopicPartition]:
        """The partitions of a topic, by number.

        Raises UnknownTopicOrPartitionError after `timeout_ms` or the default timeout.
        """
        self._connections.check_fork()
        found = await self._metadata.topic(topic, timeout_ms)
        return [TopicPartition(topic, number) for number in sorted(found.partitions)]


class AsyncConsumer(_LookUps, AsyncCloses):
    """Reads partitions; made and used on one running event loop.

    Names and meanings of the settings are Kafka's. `auto_offset_reset` decides where to begin
    without a position, and when the position is out of range or the topic was made anew. Where the
    log was truncated, it goes on where log and position part, unless it is "none". `buffer_bytes`
    bounds the bytes fetched ahead. With `client_rack` it reads from the replica that the leaders'
    `replica.selector.class` names (KIP-392). `check_crcs` has the CRC of each batch compared, also
    of raw ones. Quotas of the cluster may be set for `client_id`.

    With a `group_id` it begins where the group committed. With `enable_auto_commit` it commits the
    records of earlier polls within a poll, every `auto_commit_interval_ms` and before partitions
    go. Heartbeats run in the background. A member that does not poll for `max_poll_interval_ms`
    leaves. One with a `group_instance_id` keeps its partitions while it restarts (KIP-345).

    Raises ConfigError for a wrong setting.
    """

    def __init__(
        self,
        bootstrap_servers: str | Sequence[str],
        *,
        auto_offset_reset: str = "latest",
        isolation_level: str = "read_uncommitted",
        fetch_max_wait_ms: int = 500,
        fetch_min_bytes: int = 1,
        fetch_max_bytes: int = 50 << 20,
        max_partition_fetch_bytes: int = 2 << 20,
        buffer_bytes: int = 64 << 20,
        check_crcs: bool = True,
        request_timeout_ms: int = 30_000,
        default_api_timeout_ms: int = 60_000,
        retry_backoff_ms: int = 100,
        retry_backoff_max_ms: int = 1_000,
        metadata_max_age_ms: int = 300_000,
        client_rack: str = "",
        client_id: str = "",
        group_id: str = "",
        group_instance_id: str = "",
        group_remote_assignor: str = "",
        enable_auto_commit: bool = True,
        auto_commit_interval_ms: int = 5_000,
        security: Security = None,
        max_poll_interval_ms: int = 300_000,
        random_seed: int | None = None,
    ) -> None:
        isolation = _level_of(isolation_level, auto_offset_reset)
        bootstrap = parse_bootstrap_servers(bootstrap_servers)
        rng = make_rng(random_seed)
        self._retry = RetryPolicy(default_api_timeout_ms, retry_backoff_ms, retry_backoff_max_ms)
        self._connections = Connections(
            request_timeout_ms=request_timeout_ms, client_id=client_id, security=security
        )
        self._metadata = MetadataCache(
            self._connections,
            bootstrap,
            retry=self._retry,
            rng=rng,
            metadata_max_age_ms=metadata_max_age_ms,
            on_update=self._on_metadata,
        )
        self._lookup = OffsetLookup(
            self._connections, self._metadata, retry=self._retry, rng=rng, isolation_level=isolation
        )
        settings = FetchSettings(
            self._retry,
            auto_offset_reset,
            isolation,
            check_crcs,
            fetch_max_wait_ms,
            fetch_min_bytes,
            fetch_max_bytes,
            max_partition_fetch_bytes,
            buffer_bytes,
            client_rack,
            metadata_max_age_ms,
        )
        core = FetchCore(settings, self._metadata, rng)
        self._fetcher = Fetcher(core, self._connections, self._metadata, self._lookup)
        self._assignment = core.assignment
        self._loop = asyncio.get_running_loop()
        names = (group_id, group_instance_id, client_rack, group_remote_assignor)
        commit_ms = auto_commit_interval_ms if enable_auto_commit else 0
        self._member = member = self._make_member(names, max_poll_interval_ms, commit_ms, rng)
        self.reader = PollReader(self._fetcher, None if member is None else member.before_poll)
        self._records = RecordIterator(self._poll, {} if member is None else member.processed)

    def _make_member(
        self, names: tuple[str, str, str, str], max_poll_ms: int, commit_ms: int, rng: Random
    ) -> GroupMember | None:
        """The part in a group: its id, the instance id, the rack and the assignor."""
        group_id, instance_id, rack, assignor = names
        if not group_id:
            return None
        member_id = str(UUID(bytes=rng.randbytes(16), version=4))
        settings = MemberSettings(
            group_id, member_id, instance_id, rack, assignor, max_poll_ms, self._retry
        )
        calls = CoordinatorCalls(
            group_id, group_pb2.GROUP, self._connections, self._metadata, self._retry, rng
        )
        return GroupMember(settings, calls, self._fetcher, self._assign, commit_ms, rng)

    async def close(self) -> None:
        """Commits if that is automatic, leaves the group, closes the connections. Idempotent."""
        self._connections.check_fork()
        if self._member is not None:
            await self._member.leave()
        self.reader.close()
        await self._fetcher.close()
        await self._metadata.close()
        await self._connections.close()

    def _on_metadata(self) -> None:
        self._fetcher.core.leaders_changed(self._fetcher.now_ms())
        self._fetcher.schedule()

    # Positions. Plain calls take effect at once.

    def assign(self, partitions: Sequence[TopicPartition]) -> None:
        """Reads these partitions and no others; those that stay keep their positions.

        New ones begin where the group committed. Raises ValueError while it is subscribed.
        """
        if self._member is not None and self._member.is_subscribed:
            raise ValueError("the group assigns the partitions: unsubscribe first")
        new = [
            p for p in map(checked_partition, partitions) if p not in self._assignment.partitions
        ]
        self._assign(partitions)
        if self._member is not None:
            self._member.placing(new)

    def _assign(self, partitions: Sequence[TopicPartition]) -> None:
        self.reader.raise_if_closed()
        wanted = [checked_partition(partition) for partition in partitions]
        before = {partition.topic for partition in self._assignment.partitions}
        self._fetcher.core.assign(wanted, self._fetcher.now_ms())
        topics = dict.fromkeys(partition.topic for partition in wanted)
        self._metadata.forget(before.difference(topics))
        self._metadata.want(topics)
        self._fetcher.schedule()

    def assignment(self) -> list[TopicPartition]:
        """The partitions read now, in order."""
        return sorted(self._assignment.partitions)

    def seek(
        self,
        partition: TopicPartition,
        offset: int,
        leader_epoch: int | None = None,
        *,
        topic_id: UUID | None = None,
    ) -> None:
        """Sets the position: the next record of `partition` is the first at or after `offset`.

        `leader_epoch` is the epoch of the record before it, as `position_and_epoch` returns it:
        the next fetch then notices whether the log was truncated since (KIP-320). With `topic_id`
        it notices whether the topic was made anew. Raises ValueError if the partition is not
        assigned, or a number is negative or too large.
        """
        if not 0 <= offset < 1 << 63:
            raise ValueError(f"{partition}: an offset is not negative, of 64 bits: {offset}")
        if leader_epoch is not None and not 0 <= leader_epoch < 1 << 31:
            raise ValueError(
                f"{partition}: a leader epoch is not negative, of 32 bits: {leader_epoch}"
            )
        epoch = UNKNOWN_EPOCH if leader_epoch is None else leader_epoch
        self._seek(partition, Position(offset, epoch, topic_id.bytes if topic_id else b""))

    def _seek(self, partition: TopicPartition, to: Target) -> None:
        self._fetcher.core.seek(self._partition(partition), to)
        self._records.forget(TopicPartition(*partition))
        if self._member is not None:
            self._member.placed(TopicPartition(*partition))
        self._fetcher.schedule()

    def seek_to_beginning(self, *partitions: TopicPartition) -> None:
        """Moves these partitions, or all, to their log start; it is looked up by the next poll."""
        self._seek_to(OffsetSpec.EARLIEST, partitions)

    def seek_to_end(self, *partitions: TopicPartition) -> None:
        """Moves these partitions, or all, to their high watermark; it is looked up by the next
        poll.
        """
        self._seek_to(OffsetSpec.LATEST, partitions)

    def _seek_to(self, where: int, partitions: tuple[TopicPartition, ...]) -> None:
        for partition in partitions or self.assignment():
            self._seek(partition, Reset(where, self._fetcher.now_ms()))

    async def seek_to_timestamp(self, timestamps: int | Mapping[TopicPartition, int]) -> None:
        """Moves partitions to the first record at or after a time, or to the end if there is none.

        `timestamps` is one time for all assigned partitions, or a time for each, in ms.
        """
        if isinstance(timestamps, int):
            timestamps = dict.fromkeys(self.assignment(), timestamps)
        found = await self.offsets_for_times(timestamps)
        late = {p: int(OffsetSpec.LATEST) for p, answer in found.items() if answer is None}
        ends = await self._lookup.list_offsets(late) if late else {}
        for partition, answer in found.items():
            to = answer or ends[partition]
            self._seek(partition, Position(to.offset, to.leader_epoch) if to else Position(0))

    def metrics(self) -> dict[str, float]:
        """Rates, sizes in bytes and times in ms of this consumer, by Kafka's names.

        README lists them.
        """
        return self._fetcher.core.metrics(self._fetcher.now_ms())

    async def position(self, partition: TopicPartition, timeout_ms: float | None = None) -> int:
        """The offset of the next record; waits for a look-up that is under way.

        Raises RequestTimedOutError after `timeout_ms`, ValueError when the partition is no longer
        assigned, ClientClosedError when the consumer is closed.
        """
        return (await self._position(partition, timeout_ms)).offset

    async def position_and_epoch(
        self, partition: TopicPartition, timeout_ms: float | None = None
    ) -> tuple[int, int | None]:
        """The position, and the leader epoch of the record before it, None if unknown.

        Both go to `seek` of a consumer that continues here. Waits and raises as `position`.
        """
        found = await self._position(partition, timeout_ms)
        return found.offset, None if found.epoch == UNKNOWN_EPOCH else found.epoch

    async def _position(self, partition: TopicPartition, timeout_ms: float | None) -> Position:
        limit_ms = self._retry.timeout_ms if timeout_ms is None else timeout_ms
        deadline = self._loop.time() + limit_ms / 1000
        if self._member is not None:
            await self._member.place()
        while True:
            self.reader.raise_if_closed()
            state = self._partition(partition)
            if state.reader is not None:
                return state.reader
            if isinstance(state.phase, Halted):
                self._fetcher.schedule()
                raise self._assignment.tell(state, state.phase, self._fetcher.now_ms())
            left_s = deadline - self._loop.time()
            if left_s <= 0:
                raise RequestTimedOutError(f"{partition} got no position in {limit_ms:.0f} ms")
            await self._fetcher.news(self._assignment.version, left_s)

    def pause(self, *partitions: TopicPartition) -> None:
        """Stops returning records of these partitions until `resume`; positions stay."""
        for partition in partitions:
            self._assignment.pause(self._partition(partition))

    def resume(self, *partitions: TopicPartition) -> None:
        """Ends `pause`."""
        for partition in partitions:
            self._assignment.resume(self._partition(partition))
        self._fetcher.schedule()

    def paused(self) -> list[TopicPartition]:
        """The partitions that are paused."""
        found = list(self._assignment.partitions.items())  # another thread may ask
        return sorted(partition for partition, state in found if state.is_paused)

    def _partition(self, partition: TopicPartition) -> AssignedPartition:
        found = self._assignment.partitions.get(TopicPartition(*partition))
        if found is None:
            raise ValueError(f"{partition} is not assigned")
        return found

    # Groups.

    def subscribe(
        self,
        topics: Sequence[str] = (),
        *,
        pattern: str = "",
        listener: RebalanceListener | None = None,
    ) -> None:
        """Joins the group, or changes the subscription: to topics, or to all whose whole name a RE2
        `pattern` matches, now or later. Partitions come with the next polls.

        Raises ValueError without a group_id, or unless it is either topics or a pattern.
        """
        self.reader.raise_if_closed()
        if isinstance(topics, str):
            raise ValueError(f"topics are several: say [{topics!r}]")
        if bool(topics) == bool(pattern):
            raise ValueError("subscribe to topics, or to a pattern")
        self._with_group().subscribe(tuple(topics), pattern, listener)

    async def unsubscribe(self) -> None:
        """Leaves the group at once, and reads nothing."""
        if self._member is not None and self._member.is_subscribed:
            await self._member.leave()
            self._records.give_back()
            self._assign([])

    def _with_group(self) -> GroupMember:
        if self._member is None:
            raise ValueError("this consumer is of no group: give it a group_id")
        return self._member

    async def commit(
        self,
        offsets: Mapping[TopicPartition, int | OffsetAndMetadata] | None = None,
        timeout_ms: float | None = None,
    ) -> None:
        """Stores offsets of the group: by default behind all records that polls returned, or that
        an iteration has got through.

        Raises CommitFailedError if this consumer is not the group's member any more, and
        ValueError without a group_id or for a negative offset.
        """
        member = self._with_group()
        if offsets is None:
            await member.commit(member.positions(), timeout_ms)
            return
        await member.commit(offsets_of(offsets), timeout_ms)

    async def committed(
        self, partitions: Sequence[TopicPartition]
    ) -> dict[TopicPartition, OffsetAndMetadata | None]:
        """The group's offset of each partition; None where there is none."""
        return await self._with_group().committed([checked_partition(each) for each in partitions])

    def positions(self) -> dict[TopicPartition, OffsetAndMetadata]:
        """The offsets that `commit` stores by default, for `send_offsets_to_transaction`.

        Raises ValueError without a group_id.
        """
        return self._with_group().positions()

    def group_metadata(self) -> ConsumerGroupMetadata:
        """This consumer as a member of its group, for `send_offsets_to_transaction`.

        The epoch changes with each assignment: call it after the poll. Raises ValueError without a
        group_id.
        """
        return self._with_group().metadata()

    # Reading.
    #
    # A poll is atomic: cancelled or failed, it delivers nothing and moves no position. Once it has
    # returned, its records are delivered.

    async def poll(self, timeout_ms: float = 1000, max_records: int = 500) -> Records:
        """Returns up to `max_records` records as soon as there are any, or none after `timeout_ms`.

        Positions move past the records returned; a poll that is cancelled or fails moves none.
        Raises a partition's error once the records before it are returned:

        - CorruptBatchError, OffsetOutOfRangeError, errors that are not retriable
        - with auto_offset_reset="none": NoOffsetForPartitionError, LogTruncationError,
          TopicRecreatedError

        Such an error concerns its partition alone. The next polls return records of the others,
        and raise it again, by turns, until the caller seeks or pauses the partition.
        OffsetOutOfRangeError and errors of a node are raised again only if another fetch fails.
        """
        self._end_iteration()
        return await self._poll(timeout_ms, max_records)

    async def _poll(self, timeout_ms: float, max_records: int = 500) -> Records:
        self._connections.check_fork()
        return (await self.reader.records(timeout_ms, max_records)).deliver()

    def _end_iteration(self) -> None:
        """Has records that an iteration has not reached polled again."""
        for partition, offset in self._records.give_back().items():
            if partition in self._assignment.partitions:
                self._seek(partition, Position(offset))

    async def poll_arrow(self, timeout_ms: float = 1000) -> dict[TopicPartition, Any]:
        """Returns the fetched records, one pyarrow.RecordBatch (RECORDS_SCHEMA) per partition.

        As `poll` otherwise.
        """
        self._connections.check_fork()
        self._end_iteration()
        return (await self.reader.arrow(timeout_ms)).deliver()

    async def fetch_batches(self, timeout_ms: float = 1000) -> list[RawBatches]:
        """Returns the fetched batches, undecoded, with their CRCs checked; as `poll` otherwise."""
        self._connections.check_fork()
        self._end_iteration()
        return (await self.reader.raw(timeout_ms)).deliver()

    def __aiter__(self) -> RecordIterator:
        """The records, one at a time, until the consumer is closed."""
        return self._records

    async def arrow(self) -> AsyncIterator[Any]:
        """The records as one pyarrow.RecordBatch after the other, until the consumer is closed."""
        while True:
            try:
                found = await self.poll_arrow()
            except ClientClosedError:
                return
            for batch in found.values():
                yield batch


def _level_of(isolation_level: str, auto_offset_reset: str) -> int:
    """The number of an isolation level. Raises ConfigError if one of both is wrong."""
    if auto_offset_reset not in _RESETS:
        raise ConfigError(f"auto.offset.reset={auto_offset_reset!r} is none of {_RESETS}")
    if isolation_level not in _ISOLATION_LEVELS:
        raise ConfigError(
            f"isolation.level={isolation_level!r} is none of {tuple(_ISOLATION_LEVELS)}"
        )
    return _ISOLATION_LEVELS[isolation_level]
