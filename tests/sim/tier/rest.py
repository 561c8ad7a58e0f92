"""The bucket when all is quiet: it has the objects of the metadata, and they are right.

An upload that arrives after it was given up is deleted once more by the process that deleted it. If
that process has ended meanwhile, the object stays: operators remove it by `tidemark tier gc`.
"""

from __future__ import annotations

from collections.abc import Sequence

from commitlog.segment.producer_replay import NO_PRODUCERS, producers_after
from commitlog.segment.producer_state import decode_snapshot
from tests.sim.checks import Violation
from tests.sim.tier.store import Bucket, stem_of
from tidemark.records import iter_batches
from tidemark.records.header import verify_crc
from tiering.metadata.segments import RemoteLogSegmentMetadata
from tiering.store.directory import DirectoryRemoteStorageManager
from tiering.store.manager import IndexType
from tiering.store.verifying import verify_segment

Batch = tuple[int, int, int, int]
"""Base offset, next offset, leader epoch and CRC."""


def strange_objects(bucket: Bucket, known: set[str]) -> tuple[list[str], list[str]]:
    """The objects of no stem in `known`: those that nobody owns, and late ones for `tier gc`."""
    strange = sorted(name for name in bucket.files() if name.rsplit(".", 1)[0] not in known)
    for_gc = [name for name in strange if _is_for_gc(bucket, name.rsplit(".", 1)[0])]
    return [name for name in strange if name not in for_gc], for_gc


def _is_for_gc(bucket: Bucket, stem: str) -> bool:
    deleters = bucket.deleted_by.get(stem, [])
    return stem in bucket.late and bool(deleters) and not any(one.alive for one in deleters)


def check_contents(
    bucket: Bucket, segments: Sequence[RemoteLogSegmentMetadata], committed: Sequence[Batch]
) -> None:
    """Compares the objects of a partition with what was committed. `segments` are all finished, in
    order. Their producer snapshots are those that follow from the batches.
    """
    store = DirectoryRemoteStorageManager(bucket.directory)
    expected = {batch[0]: batch for batch in committed}
    producers, known_to = NO_PRODUCERS, 0
    for segment in segments:
        for finding in verify_segment(store, segment):
            raise Violation(f"I10 objects agree with their checksums: {finding}")
        data = store.fetch_log_segment(segment, 0)
        for position, header in iter_batches(data):
            verify_crc(data, position, header)
            found = (
                header.base_offset,
                header.next_offset,
                header.partition_leader_epoch,
                header.crc,
            )
            if expected and expected.get(header.base_offset) != found:
                raise Violation(
                    f"I10 the tier has what was committed: {stem_of(segment)} has {found}, "
                    f"committed is {expected.get(header.base_offset)}"
                )
        if segment.start_offset > known_to:
            continue  # the segments before it expired
        producers = producers_after(
            producers,
            lambda start, end, data=data: data[start:end],  # type: ignore[misc]
            len(data),
            known_to,
            segment.next_offset,
        )
        known_to = max(known_to, segment.next_offset)
        snapshot = store.fetch_index(segment, IndexType.PRODUCER_SNAPSHOT)
        own, from_batches = _named(snapshot), _named(producers)
        if own != from_batches and known_to == segment.next_offset:
            raise Violation(
                f"I10 a segment has its producers: {stem_of(segment)} has {sorted(own)}, "
                f"its batches {sorted(from_batches)}"
            )


def _named(snapshot: bytes) -> set[tuple[int, int, int]]:
    """The producers of a snapshot: id, epoch, and last sequence."""
    return {(e.producer_id, e.producer_epoch, e.last_sequence) for e in decode_snapshot(snapshot)}
