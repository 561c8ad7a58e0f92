"""Remote segments as the objects of a store describe them, when their metadata is lost.

A sidecar names its segment and checks itself, by the CRC of its table. The pin that the lost
metadata had can not be compared. So the name of the object, the length of the log and every part of
the sidecar are checked instead. The bytes of logs are not read: `tidemark tier verify` does it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from uuid import UUID

from commitlog.disk.checkpoints import parse_epochs
from tidemark.errors import TidemarkError
from tidemark.types import TopicIdPartition
from tiering.errors import CorruptRemoteObjectError
from tiering.metadata.segments import (
    EpochEntry,
    RemoteLogSegmentId,
    RemoteLogSegmentMetadata,
    RemoteLogSegmentState,
)
from tiering.store.inventory import ObjectName, StoredObject, parse_key
from tiering.store.manager import LOG_SUFFIX, IndexType, RemoteStorageManager
from tiering.store.sidecar import decode_unpinned, pin_of_table

_REQUIRED = frozenset(IndexType) - {IndexType.TRANSACTION}
_READERS = 16


@dataclass(frozen=True, slots=True)
class RecoveredSegment:
    """A segment with a sound sidecar. `metadata` is as its record was when the copy finished, and
    `lineage` has the leader epochs of its log up to its end.
    """

    metadata: RemoteLogSegmentMetadata
    lineage: tuple[EpochEntry, ...]
    has_log: bool

    @property
    def partition(self) -> TopicIdPartition:
        return self.metadata.topic_id_partition


@dataclass(frozen=True, slots=True)
class Remark:
    """An object that is not used, and why. An unreadable one may have records that are wanted."""

    key: str
    partition: TopicIdPartition
    reason: str
    is_unreadable: bool
    has_log: bool = False


@dataclass(slots=True)
class _Copy:
    """The objects of one segment id."""

    log: StoredObject | None = None
    sidecar: tuple[StoredObject, ObjectName] | None = None


def read_segments(
    storage: RemoteStorageManager,
    objects: Iterable[StoredObject],
    wanted: Callable[[TopicIdPartition], bool],
    on_read: Callable[[int, int], None] = lambda done, total: None,
) -> tuple[list[RecoveredSegment], list[Remark]]:
    """Reads the sidecars among `objects` of the partitions that are `wanted`, several at a time.

    Calls `on_read` with the number done and the number of all. Nothing is raised for an object.
    """
    copies, remarks = _copies(objects, wanted)
    complete = [(copy.sidecar, copy.log) for copy in copies if copy.sidecar is not None]
    for copy in copies:
        if copy.sidecar is None and copy.log is not None:
            name = parse_key(copy.log.key)
            assert name is not None
            reason = "a copy that was not finished: it has no sidecar"
            remarks.append(Remark(copy.log.key, name.partition, reason, False))
    found: list[RecoveredSegment] = []
    with ThreadPoolExecutor(_READERS, "tier-rebuild") as pool:
        results = pool.map(lambda pair: _read(storage, pair[0], pair[1]), complete)
        for done, result in enumerate(results, 1):
            if isinstance(result, RecoveredSegment):
                found.append(result)
            else:
                remarks.append(result)
            on_read(done, len(complete))
    return found, sorted(remarks, key=lambda remark: remark.key)


def _copies(
    objects: Iterable[StoredObject], wanted: Callable[[TopicIdPartition], bool]
) -> tuple[list[_Copy], list[Remark]]:
    copies: dict[tuple[TopicIdPartition, UUID], _Copy] = {}
    remarks = []
    for stored in objects:
        name = parse_key(stored.key)
        if name is None or not wanted(name.partition):
            continue
        if name.is_temporary or stored.upload_id is not None:
            reason = "an upload that was not finished"
            remarks.append(Remark(stored.key, name.partition, reason, False))
            continue
        copy = copies.setdefault((name.partition, name.segment_id), _Copy())
        if name.suffix == LOG_SUFFIX:
            copy.log = stored
        else:
            copy.sidecar = stored, name
    return list(copies.values()), remarks


def _read(
    storage: RemoteStorageManager,
    sidecar: tuple[StoredObject, ObjectName],
    log: StoredObject | None,
) -> RecoveredSegment | Remark:
    stored, name = sidecar
    try:
        return _decode(_content(storage, name), name, log)
    except TidemarkError as error:
        return Remark(stored.key, name.partition, str(error), True, log is not None)


def _content(storage: RemoteStorageManager, name: ObjectName) -> bytes:
    """Fetches a sidecar by the name of its object alone."""
    identity = RemoteLogSegmentId(name.partition, name.segment_id)
    start = name.start_offset
    named = RemoteLogSegmentMetadata(identity, start, start, -1, -1, -1, 0, (EpochEntry(0, start),))
    return storage.fetch_sidecar(named, 0)


def _decode(content: bytes, name: ObjectName, log: StoredObject | None) -> RecoveredSegment:
    table = decode_unpinned(content)
    metadata = table.metadata
    if (metadata.topic_id_partition, metadata.id, metadata.start_offset) != (
        name.partition,
        name.segment_id,
        name.start_offset,
    ):
        raise CorruptRemoteObjectError(f"it is the sidecar of {metadata.remote_log_segment_id}")
    missing = sorted(kind.value for kind in _REQUIRED - table.parts.keys())
    if missing:
        raise CorruptRemoteObjectError(f"it has no part {', '.join(missing)}")
    parts = {}
    for kind, part in table.parts.items():
        content_of = content[part.position : part.position + part.length]
        parts[kind] = table.check_part(kind, content_of)
    if log is not None and log.size_bytes != metadata.segment_size_bytes:
        raise CorruptRemoteObjectError(
            f"its log has {log.size_bytes} bytes, and the sidecar says "
            f"{metadata.segment_size_bytes}"
        )
    lineage = parse_epochs(parts[IndexType.LEADER_EPOCH], LOG_SUFFIX)
    finished = replace(
        metadata,
        state=RemoteLogSegmentState.COPY_SEGMENT_FINISHED,
        custom_metadata=pin_of_table(content),
    )
    return RecoveredSegment(finished, tuple(EpochEntry(*each) for each in lineage), log is not None)
