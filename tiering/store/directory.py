"""A RemoteStorageManager over a directory: a tier on a network file system, and the quickstart's.

It promises as much as an object store: a file appears whole or not at all. A copy writes every file
under a temporary name, syncs it, and renames it. The log file comes last, so a segment with a log
file has its sidecar too. Names are those of Apache Kafka's local tier (`tiering.store.manager`).
The bytes belong to a remote store, not to a log: a failed fsync fails the copy, not the process.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from commitlog.disk.files import Directory
from commitlog.disk.os_files import OsDirectory
from tidemark.config.definition import unknown_key
from tidemark.errors import ConfigError, FatalError, StorageError
from tidemark.types import TopicIdPartition
from tiering.errors import (
    RemoteResourceNotFoundError,
    RemoteStorageError,
    RetriableRemoteStorageError,
)
from tiering.metadata.segments import RemoteLogSegmentMetadata
from tiering.store.direct import LEASES
from tiering.store.inventory import whole_segments
from tiering.store.manager import (
    LOG_SUFFIX,
    SIDECAR_SUFFIX,
    ByteSource,
    IndexType,
    LogSegmentData,
    StoredSegment,
    file_name,
    partition_directory,
)
from tiering.store.marker import CONTENT, MARKER, TierMarker
from tiering.store.objects import fetch_part
from tiering.store.sidecar import SidecarBuilder

_COPY_BYTES = 4 << 20
_TEMPORARY = ".tmp"


class DirectoryRemoteStorageManager:
    """See `tiering.store.manager.RemoteStorageManager`. Settings: `dir`, the directory."""

    def __init__(self, directory: Directory | None = None) -> None:
        self._root = directory
        self._marker = TierMarker("rsm.config.dir", self._is_marked, self._mark)

    def configure(self, settings: Mapping[str, str]) -> None:
        for key in settings:
            if key != "dir":
                raise unknown_key("rsm.config." + key, ["rsm.config.dir"])
        if settings.get("dir"):
            self._root = OsDirectory(settings["dir"])
            self._marker = TierMarker(settings["dir"], self._is_marked, self._mark)
        if self._root is None:
            raise ConfigError("rsm.config.dir is not set: name the directory of the tier")

    def expect_segments(self) -> None:
        self._marker.expect()

    def copy_log_segment_data(
        self, metadata: RemoteLogSegmentMetadata, data: LogSegmentData
    ) -> bytes | None:
        with _translated("copy", metadata):
            self._marker.require_or_begin()
            directory = self._require().subdirectory(
                partition_directory(metadata.topic_id_partition)
            )
            names = [file_name(metadata, suffix) for suffix in (SIDECAR_SUFFIX, LOG_SUFFIX)]
            builder = SidecarBuilder(metadata, data)
            _write(directory, names[1] + _TEMPORARY, builder.log)
            sidecar, pin = builder.finish()
            _write(directory, names[0] + _TEMPORARY, _Bytes(sidecar))
            for name in names:
                directory.rename(name + _TEMPORARY, name)
            directory.fsync()
            self._require().fsync()
        return pin

    def fetch_log_segment(
        self, metadata: RemoteLogSegmentMetadata, start: int, end: int | None = None
    ) -> bytes:
        return self._read(metadata, LOG_SUFFIX, start, end)

    def fetch_sidecar(
        self, metadata: RemoteLogSegmentMetadata, start: int, end: int | None = None
    ) -> bytes:
        return self._read(metadata, SIDECAR_SUFFIX, start, end)

    def _read(
        self, metadata: RemoteLogSegmentMetadata, suffix: str, start: int, end: int | None
    ) -> bytes:
        directory, name = self._find(metadata, suffix)
        with _translated("read", metadata):
            file = directory.open_read_only(name)
            try:
                return file.pread(max(0, (file.size if end is None else end) - start), start)
            finally:
                file.close()

    def fetch_index(self, metadata: RemoteLogSegmentMetadata, index_type: IndexType) -> bytes:
        return fetch_part(self, metadata, index_type)

    def delete_log_segment_data(self, metadata: RemoteLogSegmentMetadata) -> None:
        partition = partition_directory(metadata.topic_id_partition)
        root = self._require()
        with _translated("delete", metadata):
            if metadata.custom_metadata is None and not self._marker.is_begun():
                return  # an unfinished copy into a new tier
            self._marker.require()
            if not root.is_directory(partition):
                return
            directory = root.subdirectory(partition)
            # The log is deleted first: a segment that still has one has its sidecar too.
            for suffix in (LOG_SUFFIX, SIDECAR_SUFFIX):
                directory.remove(file_name(metadata, suffix))
                directory.remove(file_name(metadata, suffix) + _TEMPORARY)
            directory.fsync()

    def close(self) -> None:
        """Does nothing: files are opened for each call."""

    def list_files(self, partition: TopicIdPartition) -> list[str]:
        """Returns the names of a partition's files, for tools and tests."""
        name = partition_directory(partition)
        root = self._require()
        return root.subdirectory(name).list() if root.is_directory(name) else []

    def list_segments(self, partition: TopicIdPartition) -> Iterator[StoredSegment]:
        """Yields the whole segments of a partition (`tiering.store.manager.SegmentListing`)."""
        home = partition_directory(partition)
        try:
            if not self._marker.is_begun():
                return
            self._marker.require()
            names = self.list_files(partition)
        except StorageError as error:
            raise RetriableRemoteStorageError(f"can not list {home}: {error}") from error
        yield from whole_segments((f"{home}/{name}" for name in names), partition)

    def locate(self, metadata: RemoteLogSegmentMetadata, expires_s: int) -> str:
        """Returns the file's URL (`tiering.store.direct.DirectStore`): it is for clients that have
        the same directory at the same place.
        """
        directory, name = self._find(metadata, LOG_SUFFIX)
        return (Path(directory.path).absolute() / name).as_uri()

    def read_leases(self, partition: TopicIdPartition) -> bytes:
        root, name = self._require(), partition_directory(partition)
        try:
            if not root.is_directory(LEASES) or not root.subdirectory(LEASES).exists(name):
                return b""
            return root.subdirectory(LEASES).read(name)
        except StorageError as error:
            raise RetriableRemoteStorageError(f"leases of {name}: {error}") from error

    def write_leases(self, partition: TopicIdPartition, content: bytes) -> None:
        name = partition_directory(partition)
        try:
            leases = self._require().subdirectory(LEASES)
            if content:
                leases.write_atomic(name, content)
            else:
                leases.remove(name)
        except StorageError as error:
            raise RetriableRemoteStorageError(f"leases of {name}: {error}") from error

    def _require(self) -> Directory:
        if self._root is None:
            raise RemoteStorageError("the remote storage manager is not configured")
        return self._root

    def _is_marked(self) -> bool:
        return self._require().exists(MARKER)

    def _mark(self) -> None:
        self._require().write_atomic(MARKER, CONTENT)

    def _find(self, metadata: RemoteLogSegmentMetadata, suffix: str) -> tuple[Directory, str]:
        partition = partition_directory(metadata.topic_id_partition)
        name = file_name(metadata, suffix)
        root = self._require()
        if root.is_directory(partition):
            directory = root.subdirectory(partition)
            if directory.exists(name):
                return directory, name
        self._marker.require()
        raise RemoteResourceNotFoundError(f"the tier has no {partition}/{name}")


class _Bytes:
    """Bytes as a ByteSource."""

    def __init__(self, content: bytes) -> None:
        self._content = content

    @property
    def size_bytes(self) -> int:
        return len(self._content)

    def pread(self, position: int, size: int) -> bytes:
        return self._content[position : position + size]


def _write(directory: Directory, name: str, source: ByteSource) -> None:
    directory.remove(name)
    file = directory.open(name, create=True)
    try:
        for position in range(0, source.size_bytes, _COPY_BYTES):
            size = min(_COPY_BYTES, source.size_bytes - position)
            piece = source.pread(position, size)
            if len(piece) != size:
                raise StorageError(f"{name}: the local segment ended early at {position}")
            file.append(piece)
        file.fsync()
    finally:
        file.close()


@contextmanager
def _translated(action: str, metadata: RemoteLogSegmentMetadata) -> Iterator[None]:
    """Translates errors. A full or failing disk may recover, so its error is retriable; a failed
    fsync is not repeated.
    """
    try:
        yield
    except FatalError as error:
        raise RemoteStorageError(
            f"can not {action} {metadata.remote_log_segment_id}: {error}"
        ) from error
    except StorageError as error:
        raise RetriableRemoteStorageError(
            f"can not {action} {metadata.remote_log_segment_id}: {error}"
        ) from error
