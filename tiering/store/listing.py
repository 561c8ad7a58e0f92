"""Lists of all that a store has: objects, and unfinished uploads; and their removal, for tools.

A node asks the metadata, and lists one partition only where that lacks what a log had in its tier.
Tools for operators compare the two.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, Protocol

import urllib3
from minio.error import MinioException, S3Error

from tidemark.config import ServerConfig
from tidemark.errors import ConfigError
from tiering.errors import RemoteStorageError, RetriableRemoteStorageError
from tiering.store.factory import create_storage_manager
from tiering.store.inventory import StoredObject
from tiering.store.manager import RemoteStorageManager
from tiering.store.s3 import S3RemoteStorageManager, S3Settings, create_client


class StoreListing(Protocol):
    """The objects of a store, by key."""

    def objects(self) -> Iterator[StoredObject]:
        """Yields objects and unfinished uploads. Raises RemoteStorageError."""
        ...

    def remove(self, stored: StoredObject) -> None:
        """Removes an object, or ends an unfinished upload; a missing one is no error."""
        ...


class DirectoryListing:
    """The files of a tier in a directory."""

    def __init__(self, root: Path) -> None:
        self._root = root

    def objects(self) -> Iterator[StoredObject]:
        with _translated(str(self._root)):
            for directory in sorted(self._root.iterdir()):
                if directory.is_dir():
                    yield from self._files(directory)

    def _files(self, directory: Path) -> Iterator[StoredObject]:
        for path in sorted(directory.iterdir()):
            with suppress(FileNotFoundError):  # removed meanwhile
                found = path.stat()
                key = f"{directory.name}/{path.name}"
                yield StoredObject(key, found.st_size, found.st_mtime_ns // 1_000_000)

    def remove(self, stored: StoredObject) -> None:
        with _translated(stored.key):
            (self._root / stored.key).unlink(missing_ok=True)


class S3Listing:
    """The objects of a bucket below `key.prefix`, and its unfinished multipart uploads."""

    def __init__(self, settings: S3Settings, client: Any = None) -> None:
        self._settings = settings
        self._client = client or create_client(settings)

    def objects(self) -> Iterator[StoredObject]:
        bucket, prefix = self._settings.bucket, self._settings.key_prefix
        with _translated(bucket):
            for found in self._client.list_objects(bucket, prefix=prefix, recursive=True):
                modified_ms = int(found.last_modified.timestamp() * 1000)
                yield StoredObject(found.object_name, found.size or 0, modified_ms)
            yield from self._uploads(bucket, prefix)

    def _uploads(self, bucket: str, prefix: str) -> Iterator[StoredObject]:
        # The client has no public call for uploads.
        key_marker = upload_marker = None
        seen: set[str] = set()
        while True:
            answer = self._client._list_multipart_uploads(
                bucket, prefix=prefix, key_marker=key_marker, upload_id_marker=upload_marker
            )
            fresh = [upload for upload in answer.uploads if upload.upload_id not in seen]
            for upload in fresh:
                seen.add(upload.upload_id)
                begun = upload.initiated_time
                modified_ms = int(begun.timestamp() * 1000) if begun is not None else 0
                yield StoredObject(upload.object_name, 0, modified_ms, upload.upload_id)
            if not answer.is_truncated or not fresh:
                return
            key_marker, upload_marker = fresh[-1].object_name, fresh[-1].upload_id

    def remove(self, stored: StoredObject) -> None:
        with _translated(f"{self._settings.bucket}/{stored.key}"):
            if stored.upload_id is None:
                self._client.remove_object(self._settings.bucket, stored.key)
            else:
                self._abort(stored.key, stored.upload_id)

    def _abort(self, key: str, upload_id: str) -> None:
        try:
            self._client._abort_multipart_upload(self._settings.bucket, key, upload_id)
        except S3Error as error:
            if error.code != "NoSuchUpload":  # it was completed or ended meanwhile
                raise


def open_store(
    config: ServerConfig, environment: Mapping[str, str] | None = None
) -> tuple[RemoteStorageManager, StoreListing]:
    """Opens the store of a node's settings, to read from and to list.

    Raises ConfigError for a store of a class that this release can not list.
    """
    storage = create_storage_manager(config, environment)
    if isinstance(storage, S3RemoteStorageManager):
        return storage, S3Listing(storage.settings)
    directory = config.rsm_config.get("dir")
    if config.remote_log_storage_manager_class_name in ("", "directory") and directory:
        return storage, DirectoryListing(Path(directory))
    raise ConfigError(
        f"the store {config.remote_log_storage_manager_class_name!r} can not be listed: "
        "only directory and s3 can"
    )


@contextmanager
def _translated(where: str) -> Iterator[None]:
    try:
        yield
    except FileNotFoundError as error:
        raise RemoteStorageError(f"there is no {where}: is the tier mounted?") from error
    except MinioException as error:
        raise RemoteStorageError(f"{where}: {error}") from error
    except (urllib3.exceptions.HTTPError, OSError) as error:
        raise RetriableRemoteStorageError(f"{where}: {type(error).__name__}: {error}") from error
