"""A bucket that outlives all processes, and the plug-in by which brokers reach it.

The plug-in is production's store over a directory, on a disk in memory. Each
call may meet a fault. The store is away, or the answer to work that was done is lost. An upload
ends half way, or its bytes arrive long after it was given up. A read returns a flipped bit, once or
until the object is repaired.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

from commitlog.disk.memory_files import MemoryDirectory
from tests.sim.cluster.views import CURRENT
from tidemark.testing.loop import Process
from tiering.errors import RetriableRemoteStorageError
from tiering.metadata.segments import RemoteLogSegmentMetadata
from tiering.store.directory import DirectoryRemoteStorageManager
from tiering.store.manager import LOG_SUFFIX, LogSegmentData, file_name, partition_directory

T = TypeVar("T")

BUCKETS: dict[str, Bucket] = {}
"""Buckets of the running worlds by name; a plug-in is made from its settings alone."""
PLUG_IN = "tests.sim.tier.store:SimStore"
LATE_S = (0.2, 2.0, 10.0)
"""Delays of uploads that arrive after they were given up."""


def stem_of(segment: RemoteLogSegmentMetadata) -> str:
    """Path of a segment's objects in the bucket, without their suffixes."""
    directory = partition_directory(segment.topic_id_partition)
    return f"{directory}/{file_name(segment, LOG_SUFFIX).removesuffix(LOG_SUFFIX)}"


class Bucket:
    """The objects of one cluster, and the weather between it and the brokers."""

    def __init__(self, name: str, seed: int, seen: Counter[str]) -> None:
        self.name = name
        self.rng = random.Random(seed)
        self.seen = seen
        self.directory = MemoryDirectory(f"/{name}", seed=seed)
        self.is_away = False
        self.error_rate = 0.0
        self.lost_answer_rate = 0.0
        self.half_upload_rate = 0.0
        self.late_rate = 0.0
        self.corrupt_rate = 0.0
        self.late: set[str] = set()
        """Stems of the uploads that arrived after they were given up."""
        self.deleted_by: dict[str, list[Process]] = {}
        """The processes that deleted the objects of a stem."""
        self.on_copy: Callable[[], None] = lambda: None
        """Called when an upload has ended, or failed."""
        self._sound: dict[tuple[str, str], tuple[bytes, bytes]] = {}  # damaged -> (bad, sound)
        self.later: Callable[[float, Callable[[], object]], object] = lambda delay_s, work: None
        """Has work done after a delay in seconds, whatever happens to the process that asked."""
        BUCKETS[name] = self

    def calm(self) -> None:
        """Ends all faults."""
        self.is_away = False
        self.error_rate = self.lost_answer_rate = self.half_upload_rate = self.late_rate = 0.0
        self.corrupt_rate = 0.0
        self.repair()

    def damage(self, rng: random.Random) -> str | None:
        """Flips a bit of an object, until `repair`. Returns its path; None: there is no object."""
        names = sorted(self.files())
        if not names:
            return None
        path = rng.choice(names)
        name, file = path.split("/")
        directory = self.directory.subdirectory(name)
        sound = directory.read(file)
        bad = flipped(sound, rng)
        self._sound[name, file] = (bad, self._sound.get((name, file), (bad, sound))[1])
        directory.write_atomic(file, bad)
        self.seen["object damaged"] += 1
        return path

    def repair(self) -> None:
        """Restores the damaged objects that are still there."""
        for (name, file), (bad, sound) in self._sound.items():
            if not self.directory.is_directory(name):
                continue
            directory = self.directory.subdirectory(name)
            if directory.exists(file) and directory.read(file) == bad:
                directory.write_atomic(file, sound)
        self._sound.clear()

    def files(self) -> set[str]:
        """Paths of all objects, the unfinished ones left out."""
        return {
            f"{name}/{file}"
            for name in self.directory.list()
            if self.directory.is_directory(name)
            for file in self.directory.subdirectory(name).list()
            if not file.endswith(".tmp")
        }

    def call(self, kind: str, work: Callable[[], T], late: Callable[[], object] | None = None) -> T:
        """Does one call as the weather has it. `late` does it again without the caller's files."""
        if self.is_away or self.rng.random() < self.error_rate:
            self._fail(f"store away: {kind}")
        if late is not None and self.rng.random() < self.late_rate:
            self.later(self.rng.choice(LATE_S), late)
            self._fail(f"store late: {kind}")
        result = work()
        if self.rng.random() < self.lost_answer_rate:
            self._fail(f"store answer lost: {kind}")
        return result

    def read(self, kind: str, work: Callable[[], bytes]) -> bytes:
        """Does one read as the weather has it: a bit of it may be wrong."""
        data = self.call(kind, work)
        if data and self.rng.random() < self.corrupt_rate:
            self.seen[f"store answer damaged: {kind}"] += 1
            return flipped(data, self.rng)
        return data

    def _fail(self, what: str) -> None:
        self.seen[what] += 1
        raise RetriableRemoteStorageError(what)


class SimStore(DirectoryRemoteStorageManager):
    """Production's store over a directory, through the weather. Settings: `bucket`, its name."""

    def __init__(self) -> None:
        super().__init__()
        self._bucket: Bucket

    def configure(self, settings: Mapping[str, str]) -> None:
        self._bucket = BUCKETS[settings["bucket"]]
        super().__init__(self._bucket.directory)
        super().configure({})

    def copy_log_segment_data(
        self, metadata: RemoteLogSegmentMetadata, data: LogSegmentData
    ) -> bytes | None:
        bucket, copy = self._bucket, super().copy_log_segment_data
        kept = LogSegmentData(_Kept(data.log_segment), data.indexes)

        def late() -> None:
            bucket.late.add(stem_of(metadata))
            copy(metadata, kept)

        try:
            if bucket.rng.random() < bucket.half_upload_rate:
                return self._copy_half(lambda: copy(metadata, kept))
            return bucket.call("copy", lambda: copy(metadata, kept), late)
        finally:
            bucket.on_copy()

    def _copy_half(self, copy: Callable[[], bytes | None]) -> bytes | None:
        bucket = self._bucket
        bucket.directory.fail_writes("*.log*")
        bucket.seen["store upload half way"] += 1
        try:
            return copy()
        finally:
            bucket.directory.disk.failing_writes.clear()

    def fetch_log_segment(
        self, metadata: RemoteLogSegmentMetadata, start: int, end: int | None = None
    ) -> bytes:
        fetch = super().fetch_log_segment
        return self._bucket.read("read", lambda: fetch(metadata, start, end))

    def fetch_sidecar(
        self, metadata: RemoteLogSegmentMetadata, start: int, end: int | None = None
    ) -> bytes:
        fetch = super().fetch_sidecar
        return self._bucket.read("index", lambda: fetch(metadata, start, end))

    def delete_log_segment_data(self, metadata: RemoteLogSegmentMetadata) -> None:
        delete = super().delete_log_segment_data
        self._bucket.call("delete", lambda: delete(metadata))
        life = CURRENT.get().life
        if life is not None:
            self._bucket.deleted_by.setdefault(stem_of(metadata), []).append(life)


def flipped(data: bytes, rng: random.Random) -> bytes:
    """Returns the data with a wrong bit."""
    changed = bytearray(data)
    changed[rng.randrange(len(data))] ^= 1 << rng.randrange(8)
    return bytes(changed)


class _Kept:
    """A copy of a file's bytes, which outlives the file."""

    def __init__(self, source: Any) -> None:
        self._data = source.pread(0, source.size_bytes)

    @property
    def size_bytes(self) -> int:
        return len(self._data)

    def pread(self, position: int, size: int) -> bytes:
        return bytes(self._data[position : position + size])
