"""Metadata logs on disk with known records."""

from __future__ import annotations

import random
from pathlib import Path

from commitlog.disk.os_files import OsDirectory
from quorum.image import EMPTY_IMAGE, MetadataDelta, MetadataImage
from quorum.image.records import encode_record
from snapshot import SnapshotId, SnapshotWriter
from snapshot.framing import encode_leader_change, encode_values
from tests.quorum.image.strategies import History
from tidemark.v1 import metadata_pb2 as pb

BATCH = 5


class MetadataLog:
    """A log directory with known records; `images[n]` is the image after offset n."""

    def __init__(self, path: Path, seed: int, batches: int) -> None:
        self.directory = OsDirectory(path)
        self.path = path
        self.images: dict[int, MetadataImage] = {}
        self._batches: list[tuple[int, bytes]] = []
        history, image = History(random.Random(seed)), EMPTY_IMAGE
        first = encode_leader_change(0, 1, 5, leader_id=1, voters=[1, 2], granting_voters=[1])
        self._batches.append((0, first))
        self.images[0] = image = MetadataDelta(image).apply(0, 1)
        for _ in range(batches):
            records = history.records(BATCH)
            self._batches.append((image.end_offset, _batch(records, image.end_offset)))
            for record in records:
                delta = MetadataDelta(image)
                delta.replay(record)
                image = delta.apply(image.end_offset, 1)
                self.images[image.offset] = image
        self.last = image.offset

    def write(self, *, start: int = 0, segments: int = 1) -> None:
        """Writes segments from the batch that begins at `start` on."""
        kept = [(base, raw) for base, raw in self._batches if base >= start]
        size = -(-len(kept) // segments)
        for first in range(0, len(kept), size):
            part = kept[first : first + size]
            data = b"".join(raw for _, raw in part)
            (self.path / f"{part[0][0]:020d}.log").write_bytes(data)

    def checkpoint(self, offset: int) -> Path:
        """Writes a checkpoint of the state after `offset`; returns its path."""
        snapshot_id = SnapshotId(offset + 1, 1)
        writer = SnapshotWriter(self.directory, snapshot_id, 5)
        writer.append(self.images[offset].values())
        writer.freeze()
        return self.path / snapshot_id.name


def _batch(records: list[pb.MetadataRecord], base: int) -> bytes:
    return encode_values([encode_record(record) for record in records], base, 1, 5)
