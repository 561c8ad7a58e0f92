"""TopicBasedRemoteLogMetadataManager: remote log metadata in the topic `__remote_log_metadata`
(KIP-405).

Kafka's rule maps each user partition to a metadata partition. Every node that hosts the user
partition reads the metadata partition from its beginning. It folds the records into a
`RemoteLogMetadataCache` per user partition. Only reading changes a cache: a node's own write
returns after the node has read it back. So all nodes see one history in one order, and all refuse
the same illegal records.

A metadata partition is kept whole in memory, for all its user partitions: a partition assigned
later is ready at once. One task reads. It retries without end, as the cluster may come up after
this node.
"""

from __future__ import annotations

import asyncio
import contextlib
import importlib
import logging
import random
from collections.abc import Callable, Collection

from commitlog.disk.files import Directory
from tidemark.config import ServerConfig
from tidemark.errors import ConfigError, FatalError, TidemarkError
from tidemark.records import murmur2
from tidemark.surroundings import surroundings
from tidemark.types import TopicIdPartition
from tiering.errors import (
    RemoteResourceNotFoundError,
    RemoteStorageError,
    RemoteStorageNotReadyError,
    RetriableRemoteStorageError,
)
from tiering.metadata.cache import RemoteLogMetadataCache
from tiering.metadata.codec import encode
from tiering.metadata.followed import FlatFiles, FollowedPartition
from tiering.metadata.lookups import CacheLookups
from tiering.metadata.manager import RemoteLogMetadataManager
from tiering.metadata.segments import (
    RemoteLogMetadata,
    RemoteLogSegmentMetadata,
    RemoteLogSegmentMetadataUpdate,
    RemoteLogSegmentState,
    RemotePartitionDeleteMetadata,
)
from tiering.metadata.topic import (
    SLICE_RECORDS,
    ClientMetadataTopic,
    MetadataRecord,
    MetadataTopic,
    MetadataTruncatedError,
)

logger = logging.getLogger(__name__)

CONSUME_WAIT_MS = 120_000
"""Longest wait of a write for its own record to be read back."""
_BACKOFF_MS, _BACKOFF_MAX_MS = 100, 10_000
_GATHER_S = 0.01
"""Time for which changes of the assignment are gathered."""


def metadata_partition(partition: TopicIdPartition, partition_count: int) -> int:
    """Returns the metadata partition of a user partition.

    Kafka's RemoteLogMetadataTopicPartitioner: murmur2 of the 4 big-endian bytes of a Java hash. The
    hash is over the topic id's lower half, its upper half, and the partition number.
    """
    number = partition.topic_id.int
    low, high = number & 0xFFFF_FFFF_FFFF_FFFF, number >> 64
    value = 1
    for element in (low ^ low >> 32, high ^ high >> 32, partition.partition):
        value = (31 * value + (element & 0xFFFF_FFFF)) & 0xFFFF_FFFF
    return (murmur2(value.to_bytes(4, "big")) & 0x7FFF_FFFF) % partition_count


class TopicBasedRemoteLogMetadataManager(CacheLookups):
    """Metadata in a topic; see `tiering.metadata.manager.RemoteLogMetadataManager`."""

    def __init__(
        self,
        topic: MetadataTopic,
        *,
        directory: Directory | None = None,
        consume_wait_ms: int = CONSUME_WAIT_MS,
        rng: random.Random | None = None,
    ) -> None:
        self._topic = topic
        self._files = FlatFiles(directory)
        self._consume_wait_ms = consume_wait_ms
        self._random = rng or surroundings().make_rng()
        self._partition_count = 0  # 0: unknown
        self._assigned: set[TopicIdPartition] = set()
        self._joined: dict[TopicIdPartition, int | None] = {}
        """Ends of the metadata when partitions were assigned, until they are read; None: unknown.
        """
        self._owned: set[int] = set()
        self._followed: dict[int, FollowedPartition] = {}
        self._waiting: dict[tuple[int, int], asyncio.Future[None]] = {}
        self._assignment_changed = asyncio.Event()
        self._task: asyncio.Task[None] | None = None

    async def start(self) -> None:
        if self._task is None:
            self._task = asyncio.ensure_future(self._run())

    async def close(self) -> None:
        task, self._task = self._task, None
        if task is not None:
            task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await task
            await self._files.close(self._followed.values())
        for future in self._waiting.values():
            if not future.done():
                future.set_exception(RetriableRemoteStorageError("the node is stopping"))
        self._waiting.clear()
        await self._topic.close()

    # Writes.

    async def add_remote_log_segment_metadata(self, metadata: RemoteLogSegmentMetadata) -> None:
        if metadata.state is not RemoteLogSegmentState.COPY_SEGMENT_STARTED:
            raise RemoteStorageError("a remote segment begins as COPY_SEGMENT_STARTED")
        await self._write(metadata)

    async def update_remote_log_segment_metadata(
        self, update: RemoteLogSegmentMetadataUpdate
    ) -> None:
        known = self._cache(update.topic_id_partition).get(update.remote_log_segment_id.id)
        if known is None:
            raise RemoteResourceNotFoundError(f"no remote segment {update.remote_log_segment_id}")
        known.updated(update)  # raises for an illegal transition, before the write
        await self._write(update)

    async def put_remote_partition_delete_metadata(
        self, metadata: RemotePartitionDeleteMetadata
    ) -> None:
        self._cache(metadata.topic_id_partition).check_deletion(metadata)
        await self._write(metadata)

    # Assignment.

    def on_partition_leadership_changes(
        self, leaders: Collection[TopicIdPartition], followers: Collection[TopicIdPartition]
    ) -> None:
        # Records that others wrote before the assignment may not be read yet.
        self._joined |= dict.fromkeys({*leaders, *followers} - self._assigned)
        self._assigned |= {*leaders, *followers}
        self._assignment_changed.set()

    def on_stop_partitions(self, partitions: Collection[TopicIdPartition]) -> None:
        self._assigned -= set(partitions)
        for partition in partitions:
            self._joined.pop(partition, None)
        self._assignment_changed.set()

    def recorded_partitions(
        self, leads: Callable[[int], bool]
    ) -> tuple[list[TopicIdPartition], bool]:
        owned = {number for number in range(self._partition_count) if leads(number)}
        if owned != self._owned:
            self._owned = owned
            self._assignment_changed.set()
        followed = [self._followed[n] for n in sorted(owned & self._followed.keys())]
        ready = [each for each in followed if each.is_ready]
        complete = self._partition_count > 0 and len(ready) == len(owned)
        return [partition for each in ready for partition in each.caches], complete

    def is_ready(self, partition: TopicIdPartition) -> bool:
        if not self._partition_count:
            return False
        number = metadata_partition(partition, self._partition_count)
        if partition not in self._assigned and number not in self._owned:
            return False
        followed = self._followed.get(number)
        if followed is None or not followed.is_ready:
            return False
        if partition in self._joined:
            end = self._joined[partition]
            if end is None or followed.position < end:
                return False
            del self._joined[partition]
        return True

    # The reading task.

    async def _run(self) -> None:
        failures, anew = 0, set[int]()
        while True:
            try:
                if anew:
                    await self._read_anew(anew)
                    anew = set()
                if not self._partition_count:
                    count = await self._topic.open()
                    await self._files.open(self._topic.topic_id)
                    self._partition_count = count
                    self._assignment_changed.set()
                await self._follow_assignment()
                if not self._followed:
                    await self._assignment_changed.wait()
                    continue
                await self._read()
                failures = 0
            except FatalError:
                raise
            except MetadataTruncatedError as error:
                logger.warning("%s", error)
                anew = {error.partition}
            except Exception as error:  # foreign code may raise anything; reading continues
                failures += 1
                level = logging.WARNING if failures > 3 else logging.DEBUG  # the cluster starts
                if not isinstance(error, TidemarkError | OSError) or isinstance(error, ConfigError):
                    level = logging.ERROR
                logger.log(level, "remote log metadata: %s", error, exc_info=level > 30)
                await asyncio.sleep(self._backoff_ms(failures) / 1000)

    async def _read(self) -> None:
        """Applies the next records, in slices."""
        records, moved = await self._poll()
        for begin in range(0, len(records), SLICE_RECORDS):
            self._apply_all(records[begin : begin + SLICE_RECORDS], {})
            await asyncio.sleep(0)
        self._apply_all([], moved)
        await self._files.maybe_save(self._followed.values())

    async def _poll(self) -> tuple[list[MetadataRecord], dict[int, int]]:
        """Returns new records; none as soon as the assignment has changed, because a follower may
        wait for a partition's metadata.
        """
        poll = asyncio.ensure_future(self._topic.poll())
        changed = asyncio.ensure_future(self._assignment_changed.wait())
        try:
            await asyncio.wait((poll, changed), return_when=asyncio.FIRST_COMPLETED)
            if not poll.done():
                await asyncio.sleep(_GATHER_S)
            return poll.result() if poll.done() else ([], {})
        finally:
            changed.cancel()
            poll.cancel()
            await asyncio.wait((poll,))

    def _backoff_ms(self, failures: int) -> float:
        longest = min(_BACKOFF_MS * 2 ** min(failures, 16), _BACKOFF_MAX_MS)
        return self._random.uniform(longest / 2, longest)

    async def _follow_assignment(self) -> None:
        """Adapts the partitions that are read to those assigned."""
        if self._assignment_changed.is_set():
            self._assignment_changed.clear()
            wanted = {metadata_partition(each, self._partition_count) for each in self._assigned}
            wanted |= self._owned
            if wanted != self._followed.keys():
                await self._files.save(self._followed.values())
                self._followed = {
                    number: self._followed.get(number) or await self._files.load(number)
                    for number in sorted(wanted)
                }
                await self._assign()
        unknown = [number for number, each in self._followed.items() if each.ready_at is None]
        if unknown:
            ends = await self._topic.end_offsets(unknown)
            beyond = [
                number for number in unknown if self._followed[number].position > ends[number]
            ]
            if beyond:
                logger.warning("metadata partitions %s lost records: they are read anew", beyond)
                await self._read_anew(beyond)
            for number in unknown:
                self._followed[number].ready_at = ends[number]
        await self._note_ends()

    async def _note_ends(self) -> None:
        """Notes where the metadata of newly assigned partitions ends."""
        count = self._partition_count
        joined = {p: metadata_partition(p, count) for p, end in self._joined.items() if end is None}
        if joined:
            ends = await self._topic.end_offsets(sorted({*joined.values()}))
            for partition, number in joined.items():
                if partition in self._joined:
                    self._joined[partition] = ends[number]

    async def _read_anew(self, numbers: Collection[int]) -> None:
        """Forgets metadata partitions that lost records, by an unclean election: what was read of
        them is of a log that is gone. Writes that wait for their record are repeated.
        """
        for number in numbers:
            await self._files.drop(number)
            if number in self._followed:
                self._followed[number] = FollowedPartition(number)
        for (number, _), future in self._waiting.items():
            if number in numbers and not future.done():
                future.set_exception(
                    RetriableRemoteStorageError(f"metadata partition {number} lost records")
                )
        await self._assign()

    async def _assign(self) -> None:
        known = self._followed
        try:
            await self._topic.assign(
                {number: each.reads_from for number, each in known.items()},
                {
                    number: each.epoch
                    for number, each in known.items()
                    if each.is_confirmed and each.epoch >= 0
                },
            )
        except BaseException:
            self._followed = {}  # read anew: the state of the reader is unknown
            self._assignment_changed.set()
            raise

    def _apply_all(self, records: list[MetadataRecord], moved: dict[int, int]) -> None:
        for record in records:
            followed = self._followed.get(record.partition)
            if followed is None:
                continue
            if record.offset < followed.position:
                if followed.confirms(record):
                    continue
                raise MetadataTruncatedError(record.partition, f"offset {record.offset} is anew")
            self._check_confirmed(followed)
            error = followed.apply(record)
            followed.position, followed.epoch = record.offset + 1, record.epoch
            future = self._waiting.pop((record.partition, record.offset), None)
            if future is not None and not future.done():
                if error is None:
                    future.set_result(None)
                else:
                    future.set_exception(error)
        for number, position in moved.items():
            if number in self._followed:
                followed = self._followed[number]
                self._check_confirmed(followed)
                followed.position = max(followed.position, position)

    @staticmethod
    def _check_confirmed(followed: FollowedPartition) -> None:
        if not followed.is_confirmed:
            raise MetadataTruncatedError(
                followed.number, f"offset {followed.position - 1} is not there any more"
            )

    async def _write(self, record: RemoteLogMetadata) -> None:
        """Appends the record; returns after this node has read it back and accepted it."""
        self._cache(record.topic_id_partition)
        number = metadata_partition(record.topic_id_partition, self._partition_count)
        try:
            offset = await self._topic.append(number, encode(record))
        except FatalError:
            raise
        except (TidemarkError, OSError) as error:
            raise RetriableRemoteStorageError(
                f"can not write remote log metadata of {record.topic_id_partition}: {error}"
            ) from error
        followed = self._followed.get(number)
        if followed is not None and followed.position > offset:
            self._check_applied(followed, record)
            return
        future = asyncio.get_running_loop().create_future()
        self._waiting[number, offset] = future
        try:
            async with asyncio.timeout(self._consume_wait_ms / 1000):
                await future
        except TimeoutError:
            raise RetriableRemoteStorageError(
                f"remote log metadata of {record.topic_id_partition} did not come back "
                f"within {self._consume_wait_ms} ms"
            ) from None
        finally:
            self._waiting.pop((number, offset), None)

    def _check_applied(self, followed: FollowedPartition, record: RemoteLogMetadata) -> None:
        """Checks whether the record was accepted; the reader was faster than the answer to the
        append.
        """
        if isinstance(record, RemotePartitionDeleteMetadata):
            step = followed.cache(record.topic_id_partition).partition_delete
            if step is None or step.state < record.state:
                raise RemoteStorageError(
                    f"{record.topic_id_partition} did not become {record.state.name}"
                )
            return
        known = followed.cache(record.topic_id_partition).get(record.remote_log_segment_id.id)
        state = known.state if known else RemoteLogSegmentState.DELETE_SEGMENT_FINISHED
        if state < record.state:
            raise RemoteStorageError(
                f"{record.remote_log_segment_id} did not become {record.state.name}"
            )

    def _cache(self, partition: TopicIdPartition) -> RemoteLogMetadataCache:
        if not self.is_ready(partition):
            raise RemoteStorageNotReadyError(
                f"the remote log metadata of {partition} is not read yet"
            )
        number = metadata_partition(partition, self._partition_count)
        return self._followed[number].cache(partition)


def create_metadata_manager(
    config: ServerConfig, bootstrap_servers: str, directory: Directory | None = None
) -> RemoteLogMetadataManager:
    """Creates the metadata manager that `remote.log.metadata.manager.class.name` names.

    An empty name is the topic-based one. Its clients connect to `rlmm.config.bootstrap.servers`,
    else to `bootstrap_servers` (the node's own listener). Its flat files are in `directory`.
    `module:Class` is called with the first two arguments. Call it on the running event loop.
    Raises ConfigError.
    """
    name = config.remote_log_metadata_manager_class_name
    if not name:
        topic = ClientMetadataTopic(config, bootstrap_servers)
        return TopicBasedRemoteLogMetadataManager(topic, directory=directory)
    module, _, attribute = name.partition(":")
    try:
        made: RemoteLogMetadataManager = getattr(importlib.import_module(module), attribute)(
            config, bootstrap_servers
        )
    except (ImportError, AttributeError, TypeError) as error:
        raise ConfigError(
            f"remote.log.metadata.manager.class.name={name!r} is no module:Class: {error}"
        ) from error
    return made
