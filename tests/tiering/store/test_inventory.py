"""The tools' view of a tier: planted damage is found and named, and nothing wanted is garbage."""

from __future__ import annotations

import asyncio
import os
import secrets
from dataclasses import replace
from io import BytesIO
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest
from crc32c import crc32c
from minio.error import S3Error

from commitlog.disk.os_files import OsDirectory
from tests.minio_fixture import ObjectStore
from tests.tiering.builders import (
    DELETED,
    DELETING,
    FINISHED,
    PARTITION,
    STARTED,
    segment,
    server_config,
)
from tests.tiering.world import World
from tidemark.types import TopicIdPartition
from tiering.errors import RemoteStorageError
from tiering.metadata.cache import RemoteLogMetadataCache
from tiering.metadata.codec import encode
from tiering.metadata.history import MetadataHistory, finished
from tiering.metadata.segments import RemoteLogSegmentMetadata, RemoteLogSegmentState
from tiering.store.inventory import (
    Kind,
    StoredObject,
    leftovers,
    lineage_gaps,
    parse_key,
)
from tiering.store.listing import DirectoryListing, S3Listing, open_store
from tiering.store.manager import (
    LOG_SUFFIX,
    SIDECAR_SUFFIX,
    IndexType,
    file_name,
    partition_directory,
)
from tiering.store.objects import fetch_table
from tiering.store.s3 import S3Settings
from tiering.store.sidecar import Part, pin_of_table
from tiering.store.verifying import verify_coverage, verify_segment


def key_of(metadata: RemoteLogSegmentMetadata, suffix: str = LOG_SUFFIX, prefix: str = "") -> str:
    directory = partition_directory(metadata.topic_id_partition)
    return f"{prefix}{directory}/{file_name(metadata, suffix)}"


def record_all(
    history: MetadataHistory,
    started: RemoteLogSegmentMetadata,
    *states: RemoteLogSegmentState,
) -> None:
    """Records a segment in COPY_SEGMENT_STARTED, then in these states."""
    history.apply(encode(started))
    for state in states:
        history.apply(encode(started.update(state, 6_000, 1)))


@pytest.fixture
def world(tmp_path: Path) -> World:
    """Three segments of 20 records each in the tier, of epochs 0 and 1."""
    world = World(tmp_path, index_interval_bytes=100)
    world.lead()
    for epoch in (0, 1, 1):
        world.lead(epoch)
        world.log.epochs.assign(epoch, world.log.log_end_offset)
        world.produce_segment(count=5)
    world.produce(1)
    asyncio.run(world.once())
    assert world.tier_logs() == [0, 20, 40]
    return world


def history_of(world: World) -> MetadataHistory:
    history = MetadataHistory()
    for record in world.metadata.history.records:
        history.apply(encode(record))
    return history


def cache_of(world: World) -> RemoteLogMetadataCache:
    return history_of(world).partitions[PARTITION]


def findings(world: World, bounds: tuple[int, int] | None = (0, 60)) -> list[str]:
    cache = cache_of(world)
    found = [each for one in finished(cache) for each in verify_segment(world.storage, one)]
    return [str(each) for each in [*found, *verify_coverage(world.storage, cache, bounds)]]


def objects(world: World, suffix: str) -> list[Path]:
    return sorted((world.path / "tier").rglob(f"*{suffix}"))


def flip(path: Path, position: int) -> None:
    content = bytearray(path.read_bytes())
    content[position] ^= 1
    path.write_bytes(bytes(content))


def test_a_sound_tier_has_no_findings_and_every_byte_of_the_logs_is_read(world: World) -> None:
    assert findings(world) == []
    assert findings(world, None) == []
    for one in finished(cache_of(world)):
        read: list[int] = []
        assert not list(verify_segment(world.storage, one, read.append))
        assert sum(read) == one.segment_size_bytes


def test_records_deleted_before_the_copy_have_no_epoch_in_the_metadata(tmp_path: Path) -> None:
    """The log start lies in the middle of the segment, above the epoch of its first records."""
    world = World(tmp_path, index_interval_bytes=100)
    for epoch in (0, 1):
        world.lead(epoch)
        world.log.epochs.assign(epoch, world.log.log_end_offset)
        world.produce(count=2)
    start = world.log.log_end_offset - 1
    world.produce_segment(count=1)
    world.produce(1)
    world.log.increment_log_start_offset(start)
    asyncio.run(world.once())
    one = next(iter(finished(cache_of(world))))
    assert [entry.epoch for entry in one.segment_leader_epochs] == [1]
    assert findings(world, (start, one.next_offset)) == []

    strange = one.segment_leader_epochs[0]
    other = replace(one, segment_leader_epochs=(strange._replace(epoch=7),))
    told = [str(each) for each in verify_segment(world.storage, other)]
    assert len(told) == 1
    assert "has leader epoch 1, which its metadata does not name" in told[0]


@pytest.mark.parametrize("suffix", [LOG_SUFFIX, SIDECAR_SUFFIX])
def test_a_missing_object_is_found(world: World, suffix: str) -> None:
    path = objects(world, suffix)[1]
    path.unlink()
    (found,) = findings(world)
    assert path.name in found and "the tier has no" in found


def test_a_flipped_bit_in_each_part_of_the_sidecar_is_found_and_named(world: World) -> None:
    one = finished(cache_of(world))[0]
    path = objects(world, SIDECAR_SUFFIX)[0]
    sound = path.read_bytes()
    parts = fetch_table(world.storage, one).parts
    assert len(parts) >= 4
    for kind, part in parts.items():
        if part.length:
            flip(path, part.position)
            (found,) = findings(world)
            assert f"byte {part.position}: the checksum of the part {kind.value}" in found
        path.write_bytes(sound)
    flip(path, 30)
    (found,) = findings(world)
    assert path.name in found and "table" in found
    path.write_bytes(sound)
    assert findings(world) == []


def test_a_flipped_bit_anywhere_in_a_log_is_found(world: World) -> None:
    path = objects(world, LOG_SUFFIX)[2]
    sound = path.read_bytes()
    for position in range(0, len(sound), 37):
        flip(path, position)
        found = findings(world)
        assert any("byte 0: the checksum does not agree" in each for each in found), position
        assert all(path.name in each for each in found)
        path.write_bytes(sound)


def test_bytes_beyond_the_end_of_a_log_are_found(world: World) -> None:
    path = objects(world, LOG_SUFFIX)[1]
    path.write_bytes(path.read_bytes() + b"x")
    (found,) = findings(world)
    assert path.name in found and "it has bytes beyond its end" in found


@pytest.mark.parametrize("kind", [IndexType.OFFSET, IndexType.TIMESTAMP])
def test_a_wrong_index_is_found_although_its_checksums_were_made_right(
    world: World, kind: IndexType
) -> None:
    """Every bit of every entry: the sidecar is made anew around the flipped index."""
    one = finished(cache_of(world))[0]
    path = objects(world, SIDECAR_SUFFIX)[0]
    sound = path.read_bytes()
    table = fetch_table(world.storage, one)
    part = table.parts[kind]
    assert part.length
    for bit in range(part.length * 8):
        content = bytearray(sound)
        content[part.position + bit // 8] ^= 1 << bit % 8
        wrong = bytes(content[part.position : part.position + part.length])
        if not any(wrong):
            continue
        parts = {**table.parts, kind: Part(part.position, part.length, crc32c(wrong))}
        head = replace(table, parts=parts).encode()
        path.write_bytes(head + content[len(head) :])
        remade = replace(one, custom_metadata=pin_of_table(head))
        told = [str(each) for each in verify_segment(world.storage, remade)]
        assert len(told) == 1, bit
        assert f"an entry of the part {kind.value} contradicts the log" in told[0]
    path.write_bytes(sound)
    assert findings(world) == []


def test_batches_are_checked_where_the_sidecar_is_lost(world: World) -> None:
    objects(world, SIDECAR_SUFFIX)[0].unlink()
    flip(objects(world, LOG_SUFFIX)[0], 100)
    assert any("the CRC check fails" in each for each in findings(world))


def test_a_cut_log_is_found(world: World) -> None:
    path = objects(world, LOG_SUFFIX)[0]
    path.write_bytes(path.read_bytes()[:-1])
    assert any(path.name in each for each in findings(world))


def test_offsets_that_no_segment_has_are_found(world: World) -> None:
    cache = cache_of(world)
    second = finished(cache)[1]
    cache.update(second.update(DELETING, 7_000, 1))
    cache.update(second.update(DELETED, 7_000, 1))
    (hole,) = verify_coverage(world.storage, cache, None)
    assert "no segment has offsets 20 to 39 of epoch 1" in str(hole)
    assert len(list(verify_coverage(world.storage, cache, (40, 60)))) == 0
    (rest,) = verify_coverage(world.storage, cache, (40, 65))
    assert "no segment has offsets 60 to 64 of epoch 1" in str(rest)


def test_gaps_are_those_of_the_lineage() -> None:
    cache = RemoteLogMetadataCache()
    for number, (start, end, epochs) in enumerate(
        [(0, 9, {"e0": 0}), (0, 19, {"e1": 5}), (30, 39, {"e1": 30})]
    ):
        one = segment(start, end, number, state=STARTED, **epochs)
        cache.add(one)
        cache.update(one.update(FINISHED, 6_000, 1))
    lineage = [(0, 0), (1, 5)]
    assert list(lineage_gaps(cache, lineage, 0, 40)) == [(1, 20, 30)]
    assert list(lineage_gaps(cache, [(0, 0), (1, 12)], 0, 15)) == [(0, 10, 12)]
    assert list(lineage_gaps(cache, lineage, 35, 45)) == [(1, 40, 45)]
    assert list(lineage_gaps(cache, lineage, 3, 3)) == []


def test_keys_are_parsed_and_foreign_ones_are_not() -> None:
    partition = TopicIdPartition(UUID(int=5), "a-b-3", 12)
    one = segment(17, 99, 7, partition=partition)
    for prefix in ("", "deep/prefix/", "x-1"):
        name = parse_key(key_of(one, SIDECAR_SUFFIX, prefix if prefix.endswith("/") else ""))
        assert name is not None
        assert (name.partition, name.start_offset, name.segment_id) == (partition, 17, one.id)
        assert (name.suffix, name.is_temporary) == (SIDECAR_SUFFIX, False)
    name = parse_key(key_of(one) + ".tmp")
    assert name is not None and name.is_temporary
    for wrong in ("", "marker", "a/b", key_of(one) + ".bak", key_of(one)[1:].replace("-", "_")):
        assert parse_key(wrong) is None, wrong


def test_only_objects_that_no_metadata_names_are_left_over() -> None:
    history = MetadataHistory()
    kept, copying, deleting, gone, unknown = (
        segment(10 * number, 10 * number + 9, number, state=STARTED) for number in range(5)
    )
    record_all(history, kept, FINISHED)
    record_all(history, copying)
    record_all(history, deleting, FINISHED, DELETING)
    record_all(history, gone, FINISHED, DELETING, DELETED)
    other = segment(0, 9, 9, partition=TopicIdPartition(UUID(int=99), "t", 0))
    keys = [
        *(key_of(one) for one in (kept, copying, deleting, gone, unknown, other)),
        *(key_of(one) + ".tmp" for one in (kept, copying, deleting, gone)),
        "tier-marker",
    ]
    stored = [StoredObject(key, 1, 1_000) for key in keys]
    uploads = [StoredObject(key_of(one), 0, 1_000, "id") for one in (kept, copying, gone)]
    found = leftovers([*stored, *uploads], history, older_than_ms=1_001)
    assert {(each.stored.key, each.stored.upload_id, each.kind) for each in found} == {
        (key_of(gone), None, Kind.ORPHAN),
        (key_of(unknown), None, Kind.UNRECORDED),
        (key_of(other), None, Kind.FOREIGN),
        (key_of(kept) + ".tmp", None, Kind.UNFINISHED),
        (key_of(gone) + ".tmp", None, Kind.UNFINISHED),
        (key_of(kept), "id", Kind.UNFINISHED),
        (key_of(gone), "id", Kind.UNFINISHED),
    }
    assert leftovers([*stored, *uploads], history, older_than_ms=1_000) == []


def test_a_record_that_can_not_be_decoded_makes_the_history_incomplete() -> None:
    history = MetadataHistory()
    record_all(history, segment(0, 9, 1, state=STARTED), FINISHED, STARTED)
    assert history.is_complete and len(history.refused) == 1
    history.apply(b"\x01\x63\x00")
    assert not history.is_complete


def test_a_directory_is_listed_and_a_file_removed(world: World) -> None:
    listing = DirectoryListing(world.path / "tier")
    found = {stored.key: stored for stored in listing.objects()}
    assert found.keys() == {
        key_of(one, suffix)
        for one in finished(cache_of(world))
        for suffix in (LOG_SUFFIX, SIDECAR_SUFFIX)
    }
    assert leftovers(found.values(), history_of(world), older_than_ms=1 << 62) == []
    path = objects(world, LOG_SUFFIX)[0]
    os.utime(path, ns=(0, 5_000_000_000))
    (oldest,) = (stored for stored in listing.objects() if stored.modified_ms == 5_000)
    assert oldest.size_bytes == path.stat().st_size
    listing.remove(oldest)
    listing.remove(oldest)
    assert not path.exists()
    with pytest.raises(RemoteStorageError, match="is the tier mounted"):
        _ = list(DirectoryListing(world.path / "nowhere").objects())


@pytest.mark.minio
def test_a_bucket_is_listed_with_its_unfinished_uploads_and_cleaned(
    object_store: ObjectStore,
) -> None:
    prefix = f"inventory/{secrets.token_hex(6)}/"
    settings = {f"rsm.config.{k}": v for k, v in object_store.rsm_config(prefix).items()}
    _, listing = open_store(server_config(**settings), {})
    client, bucket = object_store.client(), object_store.bucket
    gone = segment(0, 9, 1)
    objects = {key_of(gone, suffix, prefix) for suffix in (LOG_SUFFIX, SIDECAR_SUFFIX)}
    for key in objects:
        client.put_object(bucket, key, BytesIO(b"12345"), 5)
    uploads = {client._create_multipart_upload(bucket, key_of(gone, prefix=prefix), {})}
    found = list(listing.objects())
    assert {(one.key, one.size_bytes) for one in found if one.upload_id is None} == {
        (key, 5) for key in objects
    }
    begun = {one.upload_id for one in found if one.upload_id is not None}
    assert begun <= uploads  # MinIO lists uploads by the whole key only
    assert all(one.modified_ms > 1_600_000_000_000 for one in found)
    for one in found:
        listing.remove(one)
        listing.remove(one)
    assert list(listing.objects()) == []


def test_an_upload_that_was_completed_or_ended_meanwhile_is_no_error() -> None:
    class Client:
        code = "NoSuchUpload"

        def _abort_multipart_upload(self, *_: str) -> None:
            raise S3Error(None, self.code, "gone", "", "", "")  # type: ignore[arg-type]

    upload, client = StoredObject(key_of(segment(0, 9, 1)), 0, 1, "id"), Client()
    listing = S3Listing(S3Settings(bucket="b"), client)
    listing.remove(upload)
    client.code = "AccessDenied"
    with pytest.raises(RemoteStorageError, match="AccessDenied"):
        listing.remove(upload)


@pytest.mark.parametrize("left", [[FINISHED], [DELETING], [FINISHED, DELETING]])
def test_a_segment_whose_first_record_was_lost_is_not_taken_for_deleted(
    left: list[RemoteLogSegmentState],
) -> None:
    """An unclean election of the metadata topic may lose a begin and keep later records."""
    whole, cut = segment(0, 9, 1, state=STARTED), segment(10, 19, 2, state=STARTED)
    history = MetadataHistory()
    record_all(history, whole, FINISHED)
    for state in left:
        history.apply(encode(cut.update(state, 6_000, 1)))
    assert len(history.refused) == len(left) and history.is_complete
    stored = [StoredObject(key_of(cut), 1, 1), StoredObject(key_of(cut) + ".tmp", 1, 1)]
    assert {one.kind for one in leftovers(stored, history, older_than_ms=2)} == {Kind.UNRECORDED}
    history.apply(encode(cut.update(DELETED, 6_000, 1)))
    kinds = [one.kind for one in leftovers(stored, history, older_than_ms=2)]
    assert kinds == [Kind.ORPHAN, Kind.UNFINISHED]


def test_the_collector_never_chooses_what_a_copy_under_way_needs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It lists the objects at any moment of the copies, and reads the metadata at any later one."""
    world = World(tmp_path)
    listed: list[set[StoredObject]] = []
    chosen: list[tuple[str, Kind]] = []

    def look() -> None:
        if (tmp_path / "tier").exists():
            listed.append(set(DirectoryListing(tmp_path / "tier").objects()))
        found = leftovers(set().union(*listed), history_of(world), older_than_ms=1 << 60)
        chosen.extend((one.stored.key, one.kind) for one in found)

    def watch(owner: type, name: str) -> None:
        original = getattr(owner, name)

        def call(*arguments: Any) -> Any:
            look()
            result = original(*arguments)
            look()
            return result

        monkeypatch.setattr(owner, name, call)

    for name in ("rename", "remove", "fsync"):
        watch(OsDirectory, name)
    world.lead()
    for _ in range(2):
        world.produce_segment()
    world.produce(1)
    asyncio.run(world.once())
    look()
    assert world.tier_logs() == [0, 20]
    seen = {Path(one.key).suffix for one in set().union(*listed)}
    assert seen == {".tmp", ".log", ".sidecar"}
    # The names of before a rename are left over once the end is on record, and nothing else is.
    assert {(Path(key).suffix, kind) for key, kind in chosen} == {(".tmp", Kind.UNFINISHED)}
    assert findings(world, None) == []
