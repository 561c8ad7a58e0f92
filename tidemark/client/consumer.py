"""AsyncConsumer: reads assigned partitions from given positions, as records, Arrow batches or raw
batches.

The caller owns the positions: there are no groups and no commits here. The consumer handles leader
changes, lost answers and expired metadata. It raises the errors that only the caller can decide
about, such as an offset that is out of range with auto_offset_reset="none".
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from random import Random
from typing import Any

from tidemark.client.closing import AsyncCloses
from tidemark.client.connections import Connections, parse_bootstrap_servers
from tidemark.client.errors import ClientClosedError
from tidemark.client.fetcher import Fetcher, PartitionState
from tidemark.client.metadata import MetadataCache
from tidemark.client.models import OffsetAndTimestamp
from tidemark.client.offsets import OffsetLookup
from tidemark.client.records import RawBatches, Records, decode, kernels_loaded
from tidemark.client.retry import RetryPolicy
from tidemark.errors import ConfigError, CorruptMessageError, RequestTimedOutError
from tidemark.types import OffsetSpec, TopicPartition

_ISOLATION_LEVELS = {"read_uncommitted": 0, "read_committed": 1}
_RESETS = ("latest", "earliest", "none")

# Below this size, decoding on the loop costs less than a hop to a thread.
_INLINE_BYTES = 64 << 10


class AsyncConsumer(AsyncCloses):
    """Reads partitions; made and used on one running event loop.

    Names and meanings of the settings are Kafka's. `auto_offset_reset` decides where to begin
    without a position and when the position is out of range. `buffer_bytes` bounds the bytes
    fetched ahead. Raises ConfigError for a wrong setting.
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
        request_timeout_ms: int = 30_000,
        default_api_timeout_ms: int = 60_000,
        retry_backoff_ms: int = 100,
        retry_backoff_max_ms: int = 1_000,
        metadata_max_age_ms: int = 300_000,
        random_seed: int | None = None,
    ) -> None:
        if auto_offset_reset not in _RESETS:
            raise ConfigError(f"auto.offset.reset={auto_offset_reset!r} is none of {_RESETS}")
        if isolation_level not in _ISOLATION_LEVELS:
            raise ConfigError(
                f"isolation.level={isolation_level!r} is none of {tuple(_ISOLATION_LEVELS)}"
            )
        bootstrap = parse_bootstrap_servers(bootstrap_servers)
        rng = Random(random_seed)
        self._retry = RetryPolicy(default_api_timeout_ms, retry_backoff_ms, retry_backoff_max_ms)
        self._connections = Connections(request_timeout_ms=request_timeout_ms)
        self._metadata = MetadataCache(
            self._connections,
            bootstrap,
            retry=self._retry,
            rng=rng,
            metadata_max_age_ms=metadata_max_age_ms,
        )
        self._lookup = OffsetLookup(
            self._connections,
            self._metadata,
            retry=self._retry,
            rng=rng,
            isolation_level=_ISOLATION_LEVELS[isolation_level],
        )
        self._fetcher = Fetcher(
            self._connections,
            self._metadata,
            self._lookup,
            retry=self._retry,
            rng=rng,
            auto_offset_reset=auto_offset_reset,
            isolation_level=_ISOLATION_LEVELS[isolation_level],
            fetch_max_wait_ms=fetch_max_wait_ms,
            fetch_min_bytes=fetch_min_bytes,
            fetch_max_bytes=fetch_max_bytes,
            max_partition_fetch_bytes=max_partition_fetch_bytes,
            buffer_bytes=buffer_bytes,
        )
        self._loop = asyncio.get_running_loop()
        self._closed = False

    async def close(self) -> None:
        """Stops fetching and closes the connections. Idempotent."""
        self._closed = True
        await self._fetcher.close()
        await self._connections.close()

    # Positions. Plain calls take effect at once.

    def assign(self, partitions: Sequence[TopicPartition]) -> None:
        """Reads these partitions and no others; those that stay keep their positions."""
        self._fetcher.assign([TopicPartition(*partition) for partition in partitions])

    def assignment(self) -> list[TopicPartition]:
        """The partitions read now, in order."""
        return sorted(self._fetcher.states)

    def seek(self, partition: TopicPartition, offset: int) -> None:
        """Sets the position: the next record of `partition` is the first at or after `offset`.

        Raises ValueError if the partition is not assigned or the offset is negative.
        """
        if offset < 0:
            raise ValueError(f"{partition}: an offset is not negative: {offset}")
        self._state(partition).seek(offset)
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
            self._state(partition).seek(None, where)
        self._fetcher.schedule()

    async def seek_to_timestamp(self, timestamps: int | Mapping[TopicPartition, int]) -> None:
        """Moves partitions to the first record at or after a time, or to the end if there is none.

        `timestamps` is one time for all assigned partitions, or a time for each, in ms.
        """
        if isinstance(timestamps, int):
            timestamps = dict.fromkeys(self.assignment(), timestamps)
        found = await self.offsets_for_times(timestamps)
        late = [partition for partition, answer in found.items() if answer is None]
        ends = await self.end_offsets(late) if late else {}
        for partition, answer in found.items():
            self.seek(partition, ends[partition] if answer is None else answer.offset)

    async def position(self, partition: TopicPartition, timeout_ms: float | None = None) -> int:
        """The offset of the next record; waits for a look-up that is under way.

        Raises RequestTimedOutError after `timeout_ms`.
        """
        state = self._state(partition)
        limit_ms = self._retry.timeout_ms if timeout_ms is None else timeout_ms
        deadline = self._loop.time() + limit_ms / 1000
        while state.position is None:
            if state.error is not None:
                raise state.error
            left_s = deadline - self._loop.time()
            if left_s <= 0:
                raise RequestTimedOutError(f"{partition} got no position in {limit_ms:.0f} ms")
            await self._fetcher.news(self._fetcher.version, left_s)
        return state.position

    def pause(self, *partitions: TopicPartition) -> None:
        """Stops returning records of these partitions until `resume`; positions stay."""
        for partition in partitions:
            self._state(partition).paused = True

    def resume(self, *partitions: TopicPartition) -> None:
        """Ends `pause`."""
        for partition in partitions:
            self._state(partition).paused = False
        self._fetcher.schedule()

    def paused(self) -> list[TopicPartition]:
        """The partitions that are paused."""
        return sorted(p for p, state in self._fetcher.states.items() if state.paused)

    def _state(self, partition: TopicPartition) -> PartitionState:
        found = self._fetcher.states.get(TopicPartition(*partition))
        if found is None:
            raise ValueError(f"{partition} is not assigned")
        return found

    # Reading.

    async def poll(self, timeout_ms: float = 1000, max_records: int = 500) -> Records:
        """Returns up to `max_records` records as soon as there are any, or none after `timeout_ms`.

        Positions move past the records returned. Raises OffsetOutOfRangeError or
        NoOffsetForPartitionError with auto_offset_reset="none", and errors that are not retriable.
        """
        deadline = self._loop.time() + timeout_ms / 1000
        while True:
            seen = self._fetcher.version
            found: list[tuple[TopicPartition, Any]] = []
            left = max_records
            for state in list(self._fetcher.states.values()):
                while left > 0 and await self._load(state):
                    batch = state.decoded.slice(0, left)
                    found.append((state.topic_partition, batch))
                    left -= batch.num_rows
                    self._advance(state, batch)
            if found or not await self._wait(seen, deadline):
                return Records(found)

    async def poll_arrow(self, timeout_ms: float = 1000) -> dict[TopicPartition, Any]:
        """Returns the fetched records, one pyarrow.RecordBatch (RECORDS_SCHEMA) per partition.

        As `poll` otherwise.
        """
        deadline = self._loop.time() + timeout_ms / 1000
        while True:
            seen = self._fetcher.version
            states = list(self._fetcher.states.values())
            await asyncio.gather(*(self._load(state) for state in states))
            found: dict[TopicPartition, Any] = {}
            for state in states:
                if state.decoded is not None and not state.paused:
                    found[state.topic_partition] = batch = state.decoded
                    self._advance(state, batch)
            if found or not await self._wait(seen, deadline):
                return found

    async def fetch_batches(self, timeout_ms: float = 1000) -> list[RawBatches]:
        """Returns the fetched batches, undecoded; as `poll` otherwise.

        Not to be mixed with a `poll` that left records over.
        """
        deadline = self._loop.time() + timeout_ms / 1000
        while True:
            seen = self._fetcher.version
            found = []
            for state in list(self._fetcher.states.values()):
                while (raw := self._fetcher.take(state)) is not None:
                    state.position = raw.next_offset
                    found.append(raw)
            if found or not await self._wait(seen, deadline):
                return found

    async def _load(self, state: PartitionState) -> bool:
        """Decodes the partition's oldest batches unless records are left. Returns whether there are
        records.
        """
        while state.decoded is None:
            generation = state.generation
            raw = self._fetcher.take(state)
            if raw is None:
                return False
            try:
                if len(raw.buffer) <= _INLINE_BYTES and kernels_loaded():
                    batch = decode(raw)
                else:
                    batch = await self._loop.run_in_executor(None, decode, raw)
            except CorruptMessageError as error:
                if state.generation == generation:
                    # Raised once the records before it are returned; a later poll fetches it again.
                    state.seek(raw.first_offset)
                    state.error = error
                continue
            if state.generation != generation:
                continue  # the position was changed meanwhile
            if batch.num_rows:
                state.decoded, state.decoded_next = batch, raw.next_offset
            else:
                state.position = raw.next_offset
        return not state.paused

    def _advance(self, state: PartitionState, taken: Any) -> None:
        rest = state.decoded.num_rows - taken.num_rows
        if rest:
            state.decoded = state.decoded.slice(taken.num_rows, rest)
            state.position = state.decoded.column("offset")[0].as_py()
        else:
            state.decoded = None
            state.position = state.decoded_next

    async def _wait(self, seen: int, deadline: float) -> bool:
        """Waits for more than `seen`. Returns False at the deadline; raises a partition's error."""
        if self._closed:
            raise ClientClosedError("the consumer is closed")
        self._fetcher.raise_errors()
        left_s = deadline - self._loop.time()
        if left_s <= 0:
            return False
        await self._fetcher.news(seen, left_s)
        return True

    # Look-ups.

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
        asked = {TopicPartition(*partition): where for partition in partitions}
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
            {TopicPartition(*partition): timestamp for partition, timestamp in timestamps.items()}
        )

    async def partitions_for(self, topic: str) -> list[TopicPartition]:
        """The partitions of a topic, by number.

        Raises UnknownTopicOrPartitionError after the default timeout.
        """
        found = await self._metadata.topic(topic)
        return [TopicPartition(topic, number) for number in sorted(found.partitions)]
