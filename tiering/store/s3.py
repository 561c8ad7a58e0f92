"""A RemoteStorageManager over S3, MinIO, and other stores of S3's protocol (package `minio`).

Objects are keyed `<key.prefix><spread>/<topic>-<partition>-<topic id>/<file>` with the file names
of `tiering.store.manager`. The spread, two hex digits of the segment id, divides the load over 256
prefixes: a store limits the requests of each. The sidecar is put last, and an object appears whole
or not at all. Overload (5xx, SlowDown, time-outs, broken connections) is normal. Such requests are
retried with a random exponential wait, a part of a large log by itself. If it lasts,
RetriableRemoteStorageError is raised. Every try and every request has a deadline. The bucket is
checked on use only, so a node starts while its object store is down. One bounded connection pool
serves all threads.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import timedelta
from functools import partial
from io import BytesIO
from time import monotonic
from typing import Any, TypeVar
from urllib.parse import urlsplit

import certifi
import tenacity
import urllib3
from minio import Minio
from minio.datatypes import Part
from minio.deleteobjects import DeleteObject
from minio.error import InvalidResponseError, S3Error, ServerError
from minio.sse import SseKMS, SseS3
from tenacity.stop import stop_base

from tidemark.config.definition import parse, setting
from tidemark.errors import ConfigError, TidemarkError
from tidemark.types import TopicIdPartition
from tiering.errors import (
    RemoteResourceNotFoundError,
    RemoteStorageError,
    RetriableRemoteStorageError,
)
from tiering.metadata.segments import RemoteLogSegmentMetadata
from tiering.store.credentials import credentials_of
from tiering.store.deadlines import Deadlines, watched_pool
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

T = TypeVar("T")

_NOT_FOUND = frozenset({"NoSuchKey", "ResourceNotFound", "NoSuchVersion"})
_OVERLOADED = frozenset(
    {"SlowDown", "SlowDownRead", "SlowDownWrite", "RequestTimeout", "ServiceUnavailable"}
    | {"InternalError", "ServerNotInitialized", "XMinioServerNotInitialized"}
)
_ENVIRONMENT = {
    "endpoint": "TIDEMARK_S3_ENDPOINT",
    "bucket": "TIDEMARK_S3_BUCKET",
    "access.key": "AWS_ACCESS_KEY_ID",
    "secret.key": "AWS_SECRET_ACCESS_KEY",
    "session.token": "AWS_SESSION_TOKEN",
    "region": "AWS_REGION",
}


@dataclass(frozen=True)
class S3Settings:
    """`rsm.config.*` of the S3 storage manager."""

    bucket: str = setting(doc="the bucket; it must exist")
    endpoint: str = setting("https://s3.amazonaws.com", doc="URL or host:port of the store")
    access_key: str = setting("", doc="access key; empty: the machine's or pod's IAM role")
    secret_key: str = setting("", doc="secret key")
    session_token: str = setting("", doc="token of temporary credentials")
    region: str = setting("us-east-1", doc="region of the bucket")
    secure: bool = setting(True, doc="TLS, where the endpoint is not a URL that says so")
    ca: str = setting("", doc="PEM file of the authority that signed the endpoint's certificate")
    key_prefix: str = setting("", doc="put before every key")
    connection_pool_size: int = setting(32, doc="connections kept and used at once", at_least=1)
    request_timeout_ms: int = setting(60_000, doc="longest silence of the store", at_least=1)
    api_call_attempt_timeout_ms: int = setting(
        60_000, doc="longest try of a request, however it trickles", at_least=1
    )
    api_call_timeout_ms: int = setting(
        180_000, doc="longest request with all its tries", at_least=1
    )
    connect_timeout_ms: int = setting(5_000, doc="longest wait for a connection", at_least=1)
    retry_max_attempts: int = setting(5, doc="tries of one request", at_least=1)
    retry_backoff_max_ms: int = setting(5_000, doc="longest wait between tries", at_least=1)
    part_size_bytes: int = setting(
        16 << 20, doc="larger logs go up in parts of this size", at_least=5 << 20
    )
    server_side_encryption: str = setting("", doc="SSE-S3 or SSE-KMS; empty: as the bucket says")
    server_side_encryption_kms_key_id: str = setting("", doc="key of SSE-KMS")


def settings_with_environment(
    settings: Mapping[str, str], environment: Mapping[str, str]
) -> dict[str, str]:
    """Returns `settings`, completed from the environment's TIDEMARK_S3_* and AWS_* variables."""
    merged = {key: environment[name] for key, name in _ENVIRONMENT.items() if environment.get(name)}
    return {**merged, **settings}


class S3RemoteStorageManager:
    """A tier on S3; see `tiering.store.manager.RemoteStorageManager` and the module's docstring."""

    def __init__(self, sleep: Callable[[float], None] | None = None) -> None:
        self._deadlines = Deadlines()
        self._sleep = sleep or self._deadlines.sleep
        self._sse: SseS3 | SseKMS | None = None
        self._client: Any = None
        self._marker = TierMarker("rsm.config.bucket", self._is_marked, self._mark)
        self._pool: Any = None
        self.settings = S3Settings(bucket="")
        self.retries = 0
        """Requests repeated since the start."""

    def configure(self, settings: Mapping[str, str]) -> None:
        try:
            self.settings = chosen = parse(S3Settings, settings)
        except ConfigError as error:
            raise ConfigError(f"rsm.config: {error}") from error
        self._sse = _encryption(chosen)
        self._pool = _connection_pool(chosen)
        self._client = create_client(chosen, self._pool)
        where = f"{chosen.bucket}/{chosen.key_prefix}"
        self._marker = TierMarker(where, self._is_marked, self._mark)

    def expect_segments(self) -> None:
        self._marker.expect()

    def copy_log_segment_data(
        self, metadata: RemoteLogSegmentMetadata, data: LogSegmentData
    ) -> bytes | None:
        self._marker.require_or_begin()
        builder = SidecarBuilder(metadata, data)
        key = self._key(metadata, LOG_SUFFIX)
        self._put_log(key, builder.log)
        sidecar, pin = builder.finish()
        key = self._key(metadata, SIDECAR_SUFFIX)
        self._call(key, partial(self._put_bytes, key, sidecar))
        return pin

    def fetch_log_segment(
        self, metadata: RemoteLogSegmentMetadata, start: int, end: int | None = None
    ) -> bytes:
        return self._read(metadata, LOG_SUFFIX, start, end)

    def fetch_sidecar(
        self, metadata: RemoteLogSegmentMetadata, start: int, end: int | None = None
    ) -> bytes:
        return self._read(metadata, SIDECAR_SUFFIX, start, end)

    def fetch_index(self, metadata: RemoteLogSegmentMetadata, index_type: IndexType) -> bytes:
        return fetch_part(self, metadata, index_type)

    def delete_log_segment_data(self, metadata: RemoteLogSegmentMetadata) -> None:
        if metadata.custom_metadata is None and not self._marker.is_begun():
            return  # an unfinished copy into a new tier
        self._marker.require()
        keys = [self._key(metadata, suffix) for suffix in (LOG_SUFFIX, SIDECAR_SUFFIX)]
        if metadata.custom_metadata is None:  # the copy was not finished
            self._call(keys[0], partial(self._abort_uploads, keys[0]))
        self._call(keys[0], partial(self._delete, keys))

    def close(self) -> None:
        """Closes connections; calls under way end with an error."""
        self._deadlines.close()
        if self._pool is not None:
            self._pool.clear()

    def _read(
        self, metadata: RemoteLogSegmentMetadata, suffix: str, start: int, end: int | None
    ) -> bytes:
        if end is not None and end <= start:
            return b""
        key = self._key(metadata, suffix)
        length = 0 if end is None else end - start
        try:
            return self._call(key, partial(self._get, key, start, length))
        except RemoteResourceNotFoundError:
            self._marker.require()
            raise

    def list_segments(self, partition: TopicIdPartition) -> Iterator[StoredSegment]:
        """Yields the whole segments of a partition (`tiering.store.manager.SegmentListing`).

        Keys are spread by the segment id, so it takes 256 requests.
        """
        if not self._marker.is_begun():
            return
        self._marker.require()
        bucket, home = self.settings.bucket, partition_directory(partition)
        for spread in range(256):
            prefix = f"{self.settings.key_prefix}{spread:02x}/{home}/"
            found = self._call(prefix, partial(self._list, bucket, prefix))
            yield from whole_segments(found, partition)

    def locate(self, metadata: RemoteLogSegmentMetadata, expires_s: int) -> str:
        """Returns a presigned URL (`tiering.store.direct.DirectStore`); asks the store nothing."""
        key, bucket = self._key(metadata, LOG_SUFFIX), self.settings.bucket
        expires = timedelta(seconds=expires_s)
        return self._call(key, lambda: str(self._client.presigned_get_object(bucket, key, expires)))

    def read_leases(self, partition: TopicIdPartition) -> bytes:
        key = self._lease_key(partition)
        try:
            return self._call(key, partial(self._get, key, 0, 0))
        except RemoteResourceNotFoundError:
            return b""

    def write_leases(self, partition: TopicIdPartition, content: bytes) -> None:
        key = self._lease_key(partition)
        write = partial(self._put_bytes, key, content) if content else partial(self._delete, [key])
        self._call(key, write)

    def _lease_key(self, partition: TopicIdPartition) -> str:
        return f"{self.settings.key_prefix}{LEASES}/{partition_directory(partition)}"

    def _list(self, bucket: str, prefix: str) -> list[str]:
        return [found.object_name for found in self._client.list_objects(bucket, prefix=prefix)]

    def _is_marked(self) -> bool:
        key = self.settings.key_prefix + MARKER
        try:
            self._call(key, lambda: self._client.stat_object(self.settings.bucket, key))
        except RemoteResourceNotFoundError:
            return False
        return True

    def _mark(self) -> None:
        key = self.settings.key_prefix + MARKER
        self._call(key, partial(self._put_bytes, key, CONTENT))

    def _key(self, metadata: RemoteLogSegmentMetadata, suffix: str) -> str:
        directory = partition_directory(metadata.topic_id_partition)
        spread = metadata.id.hex[:2]
        return f"{self.settings.key_prefix}{spread}/{directory}/{file_name(metadata, suffix)}"

    def _put_bytes(self, key: str, content: bytes) -> None:
        self._client.put_object(
            self.settings.bucket, key, BytesIO(content), len(content), sse=self._sse
        )

    def _put_log(self, key: str, source: ByteSource) -> None:
        size, part_bytes = source.size_bytes, self.settings.part_size_bytes
        if size <= part_bytes:
            content = source.pread(0, size)
            self._call(key, partial(self._put_bytes, key, content))
            return
        client, bucket = self._client, self.settings.bucket
        self._call(key, partial(self._abort_uploads, key))
        headers = {} if self._sse is None else self._sse.headers()
        upload = self._call(key, lambda: client._create_multipart_upload(bucket, key, headers))
        parts = []
        try:
            for number, position in enumerate(range(0, size, part_bytes), 1):
                content = source.pread(position, min(part_bytes, size - position))
                put = partial(client._upload_part, bucket, key, content, None, upload, number)
                parts.append(Part(number, self._call(key, put)))
            self._call(key, partial(self._complete, key, upload, parts, size))
        except BaseException:
            with suppress(TidemarkError):  # the next copy, or the deletion, does it
                self._call(key, lambda: client._abort_multipart_upload(bucket, key, upload))
            raise

    def _complete(self, key: str, upload: str, parts: list[Part], size: int) -> None:
        client, bucket = self._client, self.settings.bucket
        try:
            client._complete_multipart_upload(bucket, key, upload, parts)
        except S3Error as error:
            # A try before this one may have completed it, and its answer was lost.
            if error.code != "NoSuchUpload" or client.stat_object(bucket, key).size != size:
                raise

    def _abort_uploads(self, key: str) -> None:
        """Removes the parts of earlier uploads of the object, which were not completed."""
        client, bucket = self._client, self.settings.bucket
        for upload in client._list_multipart_uploads(bucket, prefix=key).uploads:
            if upload.object_name == key:
                with _missing_upload_passed_over():
                    client._abort_multipart_upload(bucket, key, upload.upload_id)

    def _get(self, key: str, start: int, length: int) -> bytes:
        response = None
        try:
            response = self._client.get_object(self.settings.bucket, key, start, length)
            content: bytes = response.read()
        except S3Error as error:
            if error.code == "InvalidRange":
                return b""
            raise
        finally:
            if response is not None:
                response.close()
                response.release_conn()
        return content

    def _delete(self, keys: list[str]) -> None:
        objects = [DeleteObject(key) for key in keys]
        for error in self._client.remove_objects(self.settings.bucket, objects):
            if error.code not in _NOT_FOUND:
                raise RetriableRemoteStorageError(f"can not delete {error.name}: {error.message}")

    def _call(self, key: str, request: Callable[[], T]) -> T:
        """Runs a request; repeats it if the store was only overloaded."""

        ends_s = monotonic() + self.settings.api_call_timeout_ms / 1000
        longest_s = self.settings.api_call_attempt_timeout_ms / 1000

        def attempt() -> T:
            with (
                self._deadlines.call(min(longest_s, ends_s - monotonic())),
                _translated(self.settings.bucket, key),
            ):
                return request()

        def count(_: tenacity.RetryCallState) -> None:
            self.retries += 1

        if self._client is None:
            raise RemoteStorageError("the remote storage manager is not configured")
        retrying = tenacity.Retrying(
            sleep=self._sleep,
            stop=tenacity.stop_after_attempt(self.settings.retry_max_attempts)
            | _Over(ends_s, self._deadlines),
            wait=tenacity.wait_random_exponential(
                multiplier=0.1, max=self.settings.retry_backoff_max_ms / 1000
            ),
            retry=tenacity.retry_if_exception_type(RetriableRemoteStorageError),
            before_sleep=count,
            reraise=True,
        )
        return retrying(attempt)


@contextmanager
def _missing_upload_passed_over() -> Iterator[None]:
    """Passes over the error of a multipart upload that ended meanwhile."""
    try:
        yield
    except S3Error as error:
        if error.code != "NoSuchUpload":
            raise


def _encryption(settings: S3Settings) -> SseS3 | SseKMS | None:
    kind, key = settings.server_side_encryption, settings.server_side_encryption_kms_key_id
    if kind not in ("", "SSE-S3", "SSE-KMS"):
        raise ConfigError(
            f"rsm.config.server.side.encryption={kind!r} is none of SSE-S3, SSE-KMS, and empty"
        )
    if (kind == "SSE-KMS") != bool(key):
        raise ConfigError(
            "rsm.config.server.side.encryption=SSE-KMS and "
            "rsm.config.server.side.encryption.kms.key.id come together"
        )
    return SseKMS(key, {}) if key else SseS3() if kind else None


class _Over(stop_base):
    """Ends the tries of a request at its deadline, and when the store is closed."""

    def __init__(self, ends_s: float, deadlines: Deadlines) -> None:
        self._ends_s = ends_s
        self._deadlines = deadlines

    def __call__(self, retry_state: tenacity.RetryCallState) -> bool:
        return monotonic() >= self._ends_s or self._deadlines.closed.is_set()


def _connection_pool(settings: S3Settings) -> Any:
    timeout = urllib3.Timeout(
        connect=settings.connect_timeout_ms / 1000, read=settings.request_timeout_ms / 1000
    )
    return watched_pool(
        num_pools=4,
        maxsize=settings.connection_pool_size,
        block=True,  # threads wait for a connection; none is opened beyond the pool
        timeout=timeout,
        retries=False,  # `_call` retries, after a wait
        cert_reqs="CERT_REQUIRED",
        ca_certs=settings.ca or certifi.where(),
    )


def create_client(settings: S3Settings, pool: Any = None) -> Any:
    """Creates the `minio.Minio` client for `settings`."""
    url = urlsplit(settings.endpoint if "://" in settings.endpoint else f"//{settings.endpoint}")
    secure = settings.secure if not url.scheme else url.scheme == "https"
    if not url.netloc or url.path.strip("/"):
        raise ConfigError(f"rsm.config.endpoint={settings.endpoint!r} is not a URL or host:port")
    pool = pool or _connection_pool(settings)
    return Minio(
        url.netloc,
        credentials=credentials_of(
            settings.access_key, settings.secret_key, settings.session_token, pool
        ),
        secure=secure,
        region=settings.region,
        http_client=pool,
    )


@contextmanager
def _translated(bucket: str, key: str) -> Iterator[None]:
    """Translates errors of the store and the network."""
    where = f"{bucket}/{key}"
    try:
        yield
    except S3Error as error:
        if error.code in _NOT_FOUND:
            raise RemoteResourceNotFoundError(f"the tier has no {where}") from error
        status = getattr(error.response, "status", 0) or 0
        if error.code in _OVERLOADED or status >= 500 or status in (408, 429):
            raise RetriableRemoteStorageError(f"{where}: {error.code}") from error
        advice = "; create the bucket first" if error.code == "NoSuchBucket" else ""
        raise RemoteStorageError(f"{where}: {error.code}: {error.message}{advice}") from error
    except ServerError as error:
        raise RetriableRemoteStorageError(f"{where}: HTTP {error.status_code}") from error
    except (InvalidResponseError, urllib3.exceptions.HTTPError, OSError) as error:
        raise RetriableRemoteStorageError(f"{where}: {type(error).__name__}: {error}") from error
