"""`__remote_log_metadata` as a log of values by partition: the edge to `tidemark.client`.

The topic is created if it does not exist (remote.log.metadata.topic.*). Client settings come from
`rlmm.config.*`. These are bootstrap.servers and, as in Kafka, the client's own names after
`remote.log.metadata.common.client.`, `remote.log.metadata.producer.` or
`remote.log.metadata.consumer.`.
"""

from __future__ import annotations

import contextlib
import inspect
from collections.abc import Iterator, Mapping, Sequence
from itertools import islice
from typing import Any, NamedTuple, Protocol
from uuid import UUID

from tidemark.client import (
    AsyncAdmin,
    AsyncConsumer,
    AsyncProducer,
    CorruptBatchError,
    LogTruncationError,
    NewTopic,
    RawBatches,
    TopicDescription,
    TopicRecreatedError,
)
from tidemark.config import ServerConfig
from tidemark.config.definition import unknown_key
from tidemark.errors import (
    ConfigError,
    OffsetOutOfRangeError,
    TidemarkError,
    TopicAlreadyExistsError,
    UnknownTopicOrPartitionError,
)
from tidemark.records import iter_batches
from tidemark.records.plain import iter_records
from tidemark.types import REMOTE_LOG_METADATA_TOPIC, ZERO_UUID, TopicPartition

_PREFIX = "remote.log.metadata."
_GROUPS = ("common.client.", "producer.", "consumer.")
SLICE_RECORDS = 200
"""Records decoded and applied before the event loop does other work: less than ten ms."""
_FETCH_BYTES = 1 << 20
_RETENTION_MS = 604_800_000
_POLL_MS = 200  # until a new assignment is noticed; data ends the wait at once


class MetadataTruncatedError(TidemarkError):
    """A partition of the topic lacks records that were read, or has others in their place."""

    def __init__(self, partition: int, reason: object) -> None:
        super().__init__(f"metadata partition {partition} lost records: {reason}")
        self.partition = partition


class MetadataRecord(NamedTuple):
    """A value of the topic with its partition and offset, and the leader epoch it was written in,
    -1 if unknown.
    """

    partition: int
    offset: int
    value: bytes
    epoch: int = -1


class _End(NamedTuple):
    """The end of the values fetched of a partition, and its next offset."""

    partition: int
    next_offset: int


class MetadataTopic(Protocol):
    """A partitioned log of values. Every method raises TidemarkError if the cluster fails."""

    @property
    def topic_id(self) -> UUID:
        """Id of the topic, known after `open`."""
        ...

    async def open(self) -> int:
        """Creates the topic unless it exists; returns the number of its partitions. May be called
        again.
        """
        ...

    async def append(self, partition: int, value: bytes) -> int:
        """Appends durably (acks=all); returns the value's offset."""
        ...

    async def assign(self, positions: Mapping[int, int], epochs: Mapping[int, int]) -> None:
        """Makes `poll` read exactly these partitions, from these offsets on. `epochs` are those of
        the records before them, where they are known.
        """
        ...

    async def end_offsets(self, partitions: list[int]) -> dict[int, int]:
        """Returns the offset after the last committed value of each partition."""
        ...

    async def poll(self) -> tuple[list[MetadataRecord], dict[int, int]]:
        """Returns at most `SLICE_RECORDS` new values, and the next offset of each partition of
        which all fetched values were returned. Waits briefly for some. Raises
        MetadataTruncatedError for a partition that no longer has what was read.
        """
        ...

    async def close(self) -> None:
        """Closes connections."""
        ...


class ClientMetadataTopic:
    """The topic over Tidemark's own clients, connected on first use."""

    def __init__(self, config: ServerConfig, bootstrap_servers: str) -> None:
        self._topic = REMOTE_LOG_METADATA_TOPIC
        self.topic_id = ZERO_UUID
        self._partitions = config.remote_log_metadata_topic_num_partitions
        self._retention_ms = config.remote_log_metadata_topic_retention_ms
        self._min_isr = config.remote_log_metadata_topic_min_isr
        self._replicas = config.remote_log_metadata_topic_replication_factor
        self._topic_configs = {
            "cleanup.policy": "delete",
            "retention.ms": str(config.remote_log_metadata_topic_retention_ms),
            "min.insync.replicas": str(config.remote_log_metadata_topic_min_isr),
            "remote.storage.enable": "false",
        }
        settings = dict(config.rlmm_config)
        self._bootstrap = settings.pop("bootstrap.servers", bootstrap_servers)
        self._producer_settings = client_settings(AsyncProducer, settings, "producer.")
        self._consumer_settings = client_settings(AsyncConsumer, settings, "consumer.")
        self._producer: AsyncProducer | None = None
        self._consumer: AsyncConsumer | None = None
        self._undecoded: dict[int, int] = {}  # next offset by partition, of what was fetched
        self._epochs: dict[int, int] = {}  # of the last record decoded, or before the position
        self._decoding: Iterator[MetadataRecord | _End] = iter(())

    async def open(self) -> int:
        async with AsyncAdmin(self._bootstrap) as admin:
            try:
                known = await admin.describe_topics([self._topic])
            except UnknownTopicOrPartitionError:
                known = {}
            if self._topic not in known:
                wanted = NewTopic(
                    self._topic, self._partitions, self._replicas, self._topic_configs
                )
                with contextlib.suppress(TopicAlreadyExistsError):  # another node created it first
                    await admin.create_topics([wanted])
                known = await admin.describe_topics([self._topic])
            check_topic(known[self._topic], self._partitions, self._retention_ms, self._min_isr)
            self.topic_id = known[self._topic].topic_id
            return len(known[self._topic].partitions)

    async def append(self, partition: int, value: bytes) -> int:
        if self._producer is None:
            self._producer = AsyncProducer(self._bootstrap, **self._producer_settings)
        written = await self._producer.send(self._topic, value, partition=partition)
        return int(written.offset)

    async def assign(self, positions: Mapping[int, int], epochs: Mapping[int, int]) -> None:
        consumer, self._undecoded = self._reader(), {}
        consumer.assign([TopicPartition(self._topic, number) for number in positions])
        self._epochs = dict(epochs)
        for number, offset in positions.items():
            if offset == 0:
                consumer.seek_to_beginning(TopicPartition(self._topic, number))
            else:
                self._seek(number, offset)

    def _seek(self, number: int, offset: int) -> None:
        """Has the next fetch notice whether the records before the offset are those of before."""
        where = TopicPartition(self._topic, number)
        self._reader().seek(where, offset, self._epochs.get(number))

    async def end_offsets(self, partitions: list[int]) -> dict[int, int]:
        wanted = [TopicPartition(self._topic, number) for number in partitions]
        found = await self._reader().end_offsets(wanted)
        return {partition.partition: offset for partition, offset in found.items()}

    async def poll(self) -> tuple[list[MetadataRecord], dict[int, int]]:
        reader = self._reader()
        if not self._undecoded:
            try:
                fetched = await reader.fetch_batches(_POLL_MS)
            except CorruptBatchError as error:
                # Fetched again after the caller's pause: a damaged replica is copied anew.
                self._seek(error.topic_partition.partition, error.offset)
                raise
            except (LogTruncationError, TopicRecreatedError) as error:
                raise MetadataTruncatedError(error.topic_partition.partition, error) from error
            except OffsetOutOfRangeError as error:
                raise MetadataTruncatedError(await self._out_of_range(error), error) from error
            self._undecoded = {raw.topic_partition.partition: raw.first_offset for raw in fetched}
            self._decoding = _decoded(fetched)
        records: list[MetadataRecord] = []
        moved: dict[int, int] = {}
        try:
            for record in islice(self._decoding, SLICE_RECORDS):
                if isinstance(record, MetadataRecord):
                    records.append(record)
                    self._undecoded[record.partition] = record.offset + 1
                    self._epochs[record.partition] = record.epoch
                else:
                    moved[record.partition] = record.next_offset
                    del self._undecoded[record.partition]
        except TidemarkError:
            self._fetch_again()
            raise
        return records, moved

    def _fetch_again(self) -> None:
        """Returns the reader to the first records that were fetched and not decoded."""
        for number, offset in self._undecoded.items():
            self._seek(number, offset)
        self._undecoded = {}

    async def _out_of_range(self, error: OffsetOutOfRangeError) -> int:
        """Returns the partition whose log does not reach to the reader's position; raises the error
        if all do by now.
        """
        reader = self._reader()
        partitions = reader.assignment()
        first = await reader.beginning_offsets(partitions)
        end = await reader.end_offsets(partitions)
        for partition in partitions:
            if not first[partition] <= await reader.position(partition) <= end[partition]:
                return partition.partition
        raise error

    async def close(self) -> None:
        producer, self._producer = self._producer, None
        consumer, self._consumer = self._consumer, None
        if consumer is not None:
            await consumer.close()
        if producer is not None:
            await producer.close(0)

    def _reader(self) -> AsyncConsumer:
        if self._consumer is None:
            self._consumer = AsyncConsumer(self._bootstrap, **self._consumer_settings)
        return self._consumer


def _decoded(fetched: Sequence[RawBatches]) -> Iterator[MetadataRecord | _End]:
    """Yields the values one by one, and after those of each partition their end."""
    for raw in fetched:
        number = raw.topic_partition.partition
        for position, header in iter_batches(raw.buffer):
            if header.is_control:
                continue
            for record in iter_records(raw.buffer, position):
                if record.offset >= raw.first_offset:
                    epoch = header.partition_leader_epoch
                    yield MetadataRecord(number, record.offset, record.value or b"", epoch)
        yield _End(number, raw.next_offset)


def check_topic(
    topic: TopicDescription, partition_count: int, retention_ms: int, min_isr: int
) -> None:
    """Checks an existing metadata topic, as Kafka does at start. Raises ConfigError.

    Another number of partitions moves user partitions to others. Compaction and retention remove
    records, and too small an ISR loses them. A setting that the topic lacks counts as Kafka's
    default.
    """
    if len(topic.partitions) != partition_count:
        raise ConfigError(
            f"{topic.name} has {len(topic.partitions)} partitions, not "
            f"remote.log.metadata.topic.num.partitions={partition_count}: set the number it has"
        )
    if "compact" in topic.configs.get("cleanup.policy", "delete"):
        raise ConfigError(
            f"{topic.name} is compacted, which loses segments: set cleanup.policy=delete"
        )
    kept_ms = int(topic.configs.get("retention.ms", _RETENTION_MS))
    if kept_ms >= 0 and not 0 <= retention_ms <= kept_ms:
        raise ConfigError(
            f"{topic.name} has retention.ms={kept_ms}, which loses segments: set "
            f"retention.ms={retention_ms} on it, as remote.log.metadata.topic.retention.ms says"
        )
    if int(topic.configs.get("retention.bytes", -1)) >= 0:
        raise ConfigError(
            f"{topic.name} has a retention.bytes, which loses segments: set retention.bytes=-1"
        )
    least = int(topic.configs.get("min.insync.replicas", 1))
    if least < min_isr:
        raise ConfigError(
            f"{topic.name} has min.insync.replicas={least}, fewer than "
            f"remote.log.metadata.topic.min.isr={min_isr}: set min.insync.replicas={min_isr} on it"
        )


def client_settings(client: type[Any], settings: Mapping[str, str], own: str) -> dict[str, Any]:
    """Returns the keyword arguments for `client` in `rlmm.config.*`. Raises ConfigError for unknown
    ones.
    """
    parameters = inspect.signature(client).parameters
    defaults: dict[str, Any] = {
        "acks": "all",
        "client_id": "__remote_log_metadata_client",  # without one, it shares others' default quota
        "linger_ms": 0,
        "auto_offset_reset": "none",  # to go on after a truncation would keep what was cut off
        "fetch_max_bytes": _FETCH_BYTES,
    }
    chosen = {name: value for name, value in defaults.items() if name in parameters}
    for group in ("common.client.", own):
        for key, text in settings.items():
            if not key.startswith(_PREFIX + group):
                continue
            name = key.removeprefix(_PREFIX + group).replace(".", "_")
            if name not in parameters:
                known = [_PREFIX + group + each.replace("_", ".") for each in parameters]
                raise unknown_key("rlmm.config." + key, ["rlmm.config." + each for each in known])
            chosen[name] = _convert(key, text, parameters[name])
    for key in settings:
        if not key.startswith(tuple(_PREFIX + group for group in _GROUPS)):
            raise unknown_key(
                "rlmm.config." + key,
                ["rlmm.config.bootstrap.servers", *(f"rlmm.config.{_PREFIX}{g}" for g in _GROUPS)],
            )
    return chosen


def _convert(key: str, text: str, parameter: inspect.Parameter) -> Any:
    annotation = str(parameter.annotation)  # the default may be None
    types = [name for name in ("str", "bool", "float", "int") if name in annotation]
    wanted = types[0] if types else "str"
    try:
        if wanted == "bool":
            return {"true": True, "false": False}[text]
        return {"str": str, "float": float, "int": int}[wanted](text)
    except (KeyError, ValueError):
        raise ConfigError(f"rlmm.config.{key}={text!r} is not of type {wanted}") from None
