"""The inventory of a tier: objects of the store against the metadata that names them (pure).

The objects are listed before the metadata is read. A copy records COPY_SEGMENT_STARTED before its
upload, so the metadata has the begin of every object that the list has and that is wanted. Without
a begin, and without an end, an object is more likely to be of lost metadata than of no use. It
counts as unknown, not as garbage (RULES.md I10).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from enum import Enum
from uuid import UUID

from tidemark.types import TopicIdPartition, uuid_from_text
from tiering.metadata.cache import RemoteLogMetadataCache
from tiering.metadata.history import MetadataHistory, finished
from tiering.metadata.segments import RemoteLogSegmentState
from tiering.store.manager import LOG_SUFFIX, SIDECAR_SUFFIX, StoredSegment

TEMPORARY_SUFFIX = ".tmp"
_UUID_CHARACTERS = 22
_OFFSET_DIGITS = 20


@dataclass(frozen=True, slots=True)
class StoredObject:
    """An object of the store, or with an `upload_id` an unfinished multipart upload."""

    key: str
    size_bytes: int
    modified_ms: int
    upload_id: str | None = None


@dataclass(frozen=True, slots=True)
class ObjectName:
    """The meaning of a key: the segment, and the kind of the object."""

    partition: TopicIdPartition
    start_offset: int
    segment_id: UUID
    suffix: str
    is_temporary: bool


class Kind(Enum):
    """The reason why an object is left over."""

    ORPHAN = "the segment was deleted"
    UNFINISHED = "an unfinished upload that nobody continues"
    UNRECORDED = "no record has the segment's begin"
    FOREIGN = "no record names the partition"


@dataclass(frozen=True, slots=True)
class Leftover:
    """An object that no metadata names."""

    stored: StoredObject
    name: ObjectName
    kind: Kind


def parse_key(key: str) -> ObjectName | None:
    """Parses the last two parts of a key; None if it names no part of a remote segment."""
    directory, slash, name = key.rpartition("/")
    directory = directory.rpartition("/")[2]
    topic, dash, number = directory[: -_UUID_CHARACTERS - 1].rpartition("-")
    is_temporary = name.endswith(TEMPORARY_SUFFIX)
    name = name.removesuffix(TEMPORARY_SUFFIX)
    digits, identity = name[:_OFFSET_DIGITS], name[_OFFSET_DIGITS + 1 :][:_UUID_CHARACTERS]
    suffix = name[_OFFSET_DIGITS + 1 + _UUID_CHARACTERS :]
    if not (slash and dash and topic and number.isdecimal() and digits.isdecimal()):
        return None
    if suffix not in (LOG_SUFFIX, SIDECAR_SUFFIX):
        return None
    try:
        topic_id = uuid_from_text(directory[-_UUID_CHARACTERS:])
        segment_id = uuid_from_text(identity)
    except ValueError:
        return None
    partition = TopicIdPartition(topic_id, topic, int(number))
    return ObjectName(partition, int(digits), segment_id, suffix, is_temporary)


def whole_segments(keys: Iterable[str], partition: TopicIdPartition) -> list[StoredSegment]:
    """Returns the segments of a partition of which the keys name both objects."""
    suffixes: dict[StoredSegment, set[str]] = {}
    for name in map(parse_key, keys):
        if name is not None and name.partition == partition and not name.is_temporary:
            segment = StoredSegment(name.start_offset, name.segment_id)
            suffixes.setdefault(segment, set()).add(name.suffix)
    return [segment for segment, found in suffixes.items() if len(found) == 2]


def leftovers(
    objects: Iterable[StoredObject], history: MetadataHistory, *, older_than_ms: int
) -> list[Leftover]:
    """Returns the objects last modified before `older_than_ms` that no metadata names.

    Objects that are no part of a remote segment are left out. So are those of a segment whose copy
    or deletion is under way.
    """
    found = []
    for stored in objects:
        name = parse_key(stored.key)
        if name is None or stored.modified_ms >= older_than_ms:
            continue
        kind = _kind(stored, name, history)
        if kind is not None:
            found.append(Leftover(stored, name, kind))
    return found


def _kind(stored: StoredObject, name: ObjectName, history: MetadataHistory) -> Kind | None:
    if name.partition not in history.partitions:
        return Kind.FOREIGN
    is_unfinished = name.is_temporary or stored.upload_id is not None
    segment = history.find(name.partition, name.segment_id)
    if segment is None:
        if not history.is_deleted(name.partition, name.segment_id):
            return Kind.UNRECORDED
        return Kind.UNFINISHED if is_unfinished else Kind.ORPHAN
    if is_unfinished and segment.state is RemoteLogSegmentState.COPY_SEGMENT_FINISHED:
        return Kind.UNFINISHED
    return None


def lineage_gaps(
    cache: RemoteLogMetadataCache, lineage: Sequence[tuple[int, int]], start: int, end: int
) -> Iterator[tuple[int, int, int]]:
    """Yields (epoch, offset, end offset) of the parts of [start, end) that no finished segment has.

    `lineage` has the leader epochs of the log, each with its start offset.
    """
    bounds = [*(offset for _, offset in lineage[1:]), end]
    for (epoch, begin), bound in zip(lineage, bounds, strict=True):
        offset, last = max(start, begin), min(end, bound)
        while offset < last:
            segment = cache.segment_for(epoch, offset)
            covered = None if segment is None else segment.epoch_range(epoch)
            if covered is not None:
                offset = covered[1] + 1
                continue
            ranges = (segment.epoch_range(epoch) for segment in finished(cache))
            later = (bounds[0] for bounds in ranges if bounds is not None and bounds[0] > offset)
            until = min(min(later, default=last), last)
            yield epoch, offset, until
            offset = until
