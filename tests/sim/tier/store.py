"""A bucket that outlives all processes, and the plug-in by which brokers reach it.

The plug-in is production's store over a directory, on a disk in memory. Each
call may meet a fault. The store is away, or the answer to work that was done is lost. An upload
ends half way, or its bytes arrive long after it was given up.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

from commitlog.disk.memory_files import MemoryDirectory
from tiering.errors import RetriableRemoteStorageError
from tiering.metadata.segments import RemoteLogSegmentMetadata
from tiering.store.directory import DirectoryRemoteStorageManager
from tiering.store.manager import LogSegmentData

T = TypeVar("T")

BUCKETS: dict[str, Bucket] = {}
"""Buckets of the running worlds by name; a plug-in is made from its settings alone."""
PLUG_IN = "tests.sim.tier.store:SimStore"


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
        self.later: Callable[[float, Callable[[], object]], object] = lambda delay_s, work: None
        """Has work done after a delay in seconds, whatever happens to the process that asked."""
        BUCKETS[name] = self

    def calm(self) -> None:
        """Ends all faults."""
        self.is_away = False
        self.error_rate = self.lost_answer_rate = self.half_upload_rate = self.late_rate = 0.0

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
            self.later(self.rng.choice([0.2, 2.0, 10.0]), late)
            self._fail(f"store late: {kind}")
        result = work()
        if self.rng.random() < self.lost_answer_rate:
            self._fail(f"store answer lost: {kind}")
        return result

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
        if bucket.rng.random() < bucket.half_upload_rate:
            bucket.directory.fail_writes("*.log*")
            bucket.seen["store upload half way"] += 1
            try:
                return copy(metadata, kept)
            finally:
                bucket.directory.disk.failing_writes.clear()
        return bucket.call("copy", lambda: copy(metadata, kept), lambda: copy(metadata, kept))

    def fetch_log_segment(
        self, metadata: RemoteLogSegmentMetadata, start: int, end: int | None = None
    ) -> bytes:
        fetch = super().fetch_log_segment
        return self._bucket.call("read", lambda: fetch(metadata, start, end))

    def fetch_sidecar(
        self, metadata: RemoteLogSegmentMetadata, start: int, end: int | None = None
    ) -> bytes:
        fetch = super().fetch_sidecar
        return self._bucket.call("index", lambda: fetch(metadata, start, end))

    def delete_log_segment_data(self, metadata: RemoteLogSegmentMetadata) -> None:
        delete = super().delete_log_segment_data
        self._bucket.call("delete", lambda: delete(metadata))


class _Kept:
    """A copy of a file's bytes, which outlives the file."""

    def __init__(self, source: Any) -> None:
        self._data = source.pread(0, source.size_bytes)

    @property
    def size_bytes(self) -> int:
        return len(self._data)

    def pread(self, position: int, size: int) -> bytes:
        return bytes(self._data[position : position + size])
