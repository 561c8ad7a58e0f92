"""One contract for every RemoteStorageManager, run over directories (disk and memory) and a real S3
server.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Iterator
from contextlib import ExitStack, suppress
from dataclasses import replace
from io import BytesIO
from pathlib import Path
from uuid import UUID

import pytest
from minio.error import S3Error, ServerError
from urllib3 import HTTPResponse
from urllib3.exceptions import ProtocolError

from commitlog.disk.memory_files import MemoryDirectory
from commitlog.disk.os_files import OsDirectory
from tests.minio_fixture import MinioServer, ObjectStore, minio_binary
from tests.tiering.builders import PARTITION, STARTED, segment, server_config
from tidemark.errors import ConfigError
from tidemark.types import TopicIdPartition
from tiering.errors import (
    RemoteResourceNotFoundError,
    RemoteStorageError,
    RetriableRemoteStorageError,
)
from tiering.metadata.segments import RemoteLogSegmentMetadata
from tiering.store.directory import DirectoryRemoteStorageManager
from tiering.store.factory import create_storage_manager
from tiering.store.manager import (
    IndexType,
    LogSegmentData,
    RemoteStorageManager,
    SegmentListing,
    file_name,
    partition_directory,
)
from tiering.store.marker import MARKER
from tiering.store.s3 import S3RemoteStorageManager, settings_with_environment

GOLDEN = Path(__file__).parents[2] / "golden" / "kafka-4.3.0" / "tier"


class Source:
    """Bytes as a ByteSource, which may break at a position."""

    def __init__(self, content: bytes, fails_at: int | None = None) -> None:
        self.content = content
        self.fails_at = fails_at

    @property
    def size_bytes(self) -> int:
        return len(self.content)

    def pread(self, position: int, size: int) -> bytes:
        if self.fails_at is not None and position + size > self.fails_at:
            raise RetriableRemoteStorageError("the source broke")
        return self.content[position : position + size]


LOG = secrets.token_bytes(300_000)


def data(log: bytes = LOG, *, transactions: bool = False) -> LogSegmentData:
    indexes = {
        IndexType.OFFSET: b"offsets",
        IndexType.TIMESTAMP: b"times",
        IndexType.PRODUCER_SNAPSHOT: b"producers",
        IndexType.LEADER_EPOCH: b"0\n1\n0 0\n",
    }
    if transactions:
        indexes[IndexType.TRANSACTION] = b"aborted"
    return LogSegmentData(Source(log), indexes)


@pytest.fixture(params=["directory", "memory", pytest.param("s3", marks=pytest.mark.minio)])
def storage(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[RemoteStorageManager]:
    with ExitStack() as stack:
        manager: RemoteStorageManager
        if request.param == "directory":
            manager = DirectoryRemoteStorageManager()
            manager.configure({"dir": str(tmp_path / "tier")})
        elif request.param == "memory":
            manager = DirectoryRemoteStorageManager(MemoryDirectory())
        else:
            store: ObjectStore = request.getfixturevalue("object_store")
            manager = S3RemoteStorageManager()
            manager.configure(store.rsm_config(f"contract/{secrets.token_hex(6)}/"))
        stack.callback(manager.close)
        yield manager


@pytest.fixture
def metadata() -> RemoteLogSegmentMetadata:
    return segment(17, 99, 5, state=STARTED, size_bytes=len(LOG))


def test_it_is_a_remote_storage_manager(storage: RemoteStorageManager) -> None:
    assert isinstance(storage, RemoteStorageManager)


def test_what_was_copied_is_read_back(
    storage: RemoteStorageManager, metadata: RemoteLogSegmentMetadata
) -> None:
    storage.copy_log_segment_data(metadata, data())
    assert storage.fetch_log_segment(metadata, 0) == LOG
    assert storage.fetch_index(metadata, IndexType.OFFSET) == b"offsets"
    assert storage.fetch_index(metadata, IndexType.TIMESTAMP) == b"times"
    assert storage.fetch_index(metadata, IndexType.PRODUCER_SNAPSHOT) == b"producers"
    assert storage.fetch_index(metadata, IndexType.LEADER_EPOCH) == b"0\n1\n0 0\n"


def test_ranges_are_exact_and_short_at_the_end(
    storage: RemoteStorageManager, metadata: RemoteLogSegmentMetadata
) -> None:
    storage.copy_log_segment_data(metadata, data())
    assert storage.fetch_log_segment(metadata, 1000, 5000) == LOG[1000:5000]
    assert storage.fetch_log_segment(metadata, 299_000) == LOG[299_000:]
    assert storage.fetch_log_segment(metadata, 299_000, 400_000) == LOG[299_000:]
    assert storage.fetch_log_segment(metadata, 7, 7) == b""
    assert storage.fetch_log_segment(metadata, 400_000, 400_001) == b""


def test_the_whole_segments_of_a_partition_are_listed_and_no_others(
    storage: RemoteStorageManager, metadata: RemoteLogSegmentMetadata
) -> None:
    assert isinstance(storage, SegmentListing)
    assert list(storage.list_segments(PARTITION)) == []
    second = segment(100, 120, 6, state=STARTED, size_bytes=len(LOG))
    recreated = TopicIdPartition(UUID(int=77), PARTITION.topic, PARTITION.partition)
    for one in (metadata, second, segment(0, 9, 7, size_bytes=len(LOG), partition=recreated)):
        storage.copy_log_segment_data(one, data())
    with suppress(RetriableRemoteStorageError):
        broken = LogSegmentData(Source(LOG, fails_at=1000), data().indexes)
        storage.copy_log_segment_data(segment(121, 130, 8, size_bytes=len(LOG)), broken)
    assert set(storage.list_segments(PARTITION)) == {(17, metadata.id), (100, second.id)}
    storage.delete_log_segment_data(second)
    assert list(storage.list_segments(PARTITION)) == [(17, metadata.id)]


def test_a_log_of_several_parts_arrives_whole(
    storage: RemoteStorageManager, metadata: RemoteLogSegmentMetadata
) -> None:
    big = LOG * 70  # 21 MB: more than one part of an upload, more than one piece of a copy
    storage.copy_log_segment_data(metadata, data(big))
    assert storage.fetch_log_segment(metadata, 0) == big
    assert storage.fetch_log_segment(metadata, 16_777_000, 16_778_000) == big[16_777_000:16_778_000]


def test_a_transaction_index_is_there_only_where_the_segment_has_one(
    storage: RemoteStorageManager, metadata: RemoteLogSegmentMetadata
) -> None:
    storage.copy_log_segment_data(metadata, data())
    with pytest.raises(RemoteResourceNotFoundError):
        storage.fetch_index(metadata, IndexType.TRANSACTION)
    other = replace(metadata, remote_log_segment_id=segment(17, 99, 6).remote_log_segment_id)
    storage.copy_log_segment_data(other, data(transactions=True))
    assert storage.fetch_index(other, IndexType.TRANSACTION) == b"aborted"


def test_a_tier_that_looks_empty_is_an_outage_and_not_without_objects(
    storage: RemoteStorageManager, metadata: RemoteLogSegmentMetadata
) -> None:
    for call in (storage.fetch_log_segment, storage.fetch_sidecar):
        with pytest.raises(RetriableRemoteStorageError, match="looks empty"):
            call(metadata, 0, 10)
    with pytest.raises(RetriableRemoteStorageError, match="looks empty"):
        storage.delete_log_segment_data(replace(metadata, custom_metadata=b"finished"))
    storage.delete_log_segment_data(metadata)  # of a copy that was not finished
    storage.copy_log_segment_data(metadata, data())
    unmark(storage)
    assert storage.fetch_log_segment(metadata, 0) == LOG, "what is there is read"
    with pytest.raises(RetriableRemoteStorageError, match="looks empty"):
        storage.fetch_log_segment(segment(0, 9, 8), 0, 10)
    with pytest.raises(RetriableRemoteStorageError, match="looks empty"):
        storage.delete_log_segment_data(metadata)
    with pytest.raises(RetriableRemoteStorageError, match="looks empty"):
        storage.copy_log_segment_data(metadata, data())


def test_a_tier_whose_segments_are_known_is_not_begun_anew(
    storage: RemoteStorageManager, metadata: RemoteLogSegmentMetadata
) -> None:
    storage.expect_segments()
    with pytest.raises(RetriableRemoteStorageError, match="looks empty"):
        storage.copy_log_segment_data(metadata, data())


def unmark(storage: RemoteStorageManager) -> None:
    """Removes the marker, as the wrong directory or bucket lacks it."""
    if isinstance(storage, S3RemoteStorageManager):
        key = storage.settings.key_prefix + MARKER
        storage._client.remove_object(storage.settings.bucket, key)
    else:
        assert isinstance(storage, DirectoryRemoteStorageManager)
        storage._require().remove(MARKER)


def test_a_copy_may_be_repeated(
    storage: RemoteStorageManager, metadata: RemoteLogSegmentMetadata
) -> None:
    storage.copy_log_segment_data(metadata, data(b"first"))
    storage.copy_log_segment_data(metadata, data())
    assert storage.fetch_log_segment(metadata, 0) == LOG


def test_what_was_deleted_is_not_found_and_deleting_again_is_no_error(
    storage: RemoteStorageManager, metadata: RemoteLogSegmentMetadata
) -> None:
    storage.copy_log_segment_data(segment(0, 16, 4), data())
    storage.delete_log_segment_data(metadata)
    storage.copy_log_segment_data(metadata, data(transactions=True))
    storage.delete_log_segment_data(metadata)
    storage.delete_log_segment_data(metadata)
    with pytest.raises(RemoteResourceNotFoundError):
        storage.fetch_log_segment(metadata, 0, 10)
    for kind in IndexType:
        with pytest.raises(RemoteResourceNotFoundError):
            storage.fetch_index(metadata, kind)


def test_two_copies_of_the_same_offsets_do_not_touch_each_other(
    storage: RemoteStorageManager, metadata: RemoteLogSegmentMetadata
) -> None:
    other = segment(17, 99, 6)
    storage.copy_log_segment_data(metadata, data(b"one"))
    storage.copy_log_segment_data(other, data(b"two"))
    storage.delete_log_segment_data(metadata)
    assert storage.fetch_log_segment(other, 0) == b"two"


def test_a_copy_that_breaks_off_leaves_no_log_file(
    storage: RemoteStorageManager, metadata: RemoteLogSegmentMetadata
) -> None:
    broken = LogSegmentData(Source(LOG, fails_at=100_000), data().indexes)
    if isinstance(storage, S3RemoteStorageManager):
        storage._sleep = lambda _: None
    with pytest.raises(RetriableRemoteStorageError):
        storage.copy_log_segment_data(metadata, broken)
    with pytest.raises(RemoteResourceNotFoundError):
        storage.fetch_log_segment(metadata, 0, 10)
    storage.delete_log_segment_data(metadata)


def test_the_two_objects_are_named_as_kafkas_local_tier_names_files(tmp_path: Path) -> None:
    listing = (GOLDEN / "tier-listing.txt").read_text().split()
    _, _, directory, name = listing[2].split("/")  # ./kafka-tiered-storage/<partition>/<file>
    assert directory == "tiered-0-WEDymHbwQvqIntMjQcqZNA"
    assert name == "00000000000000000000-a1Xu6zoNSW-e10n9A53_Fg.log"
    manager = DirectoryRemoteStorageManager(OsDirectory(tmp_path))
    metadata = segment(1797, 2000, 1)
    manager.copy_log_segment_data(metadata, data())
    assert manager.list_files(PARTITION) == [
        file_name(metadata, ".log"),
        file_name(metadata, ".sidecar"),
    ]
    assert partition_directory(PARTITION) == "flights-3-" + "EjRWeJCrze8SNFZ4kKvN7w"
    assert file_name(metadata, ".log") == "00000000000000001797-AAAAAAAAAAAAAAAAAAAAAQ.log"


def test_a_crash_in_the_middle_of_a_copy_leaves_nothing_that_looks_finished() -> None:
    disk = MemoryDirectory()
    manager = DirectoryRemoteStorageManager(disk)
    done, torn = segment(0, 9, 1), segment(10, 19, 2)
    manager.copy_log_segment_data(done, data())
    with pytest.raises(RetriableRemoteStorageError):
        manager.copy_log_segment_data(
            torn, LogSegmentData(Source(LOG, fails_at=10), data().indexes)
        )
    disk.crash("nothing")
    assert manager.fetch_log_segment(done, 0) == LOG
    with pytest.raises(RemoteResourceNotFoundError):
        manager.fetch_log_segment(torn, 0)


def test_a_full_disk_is_retriable() -> None:
    disk = MemoryDirectory()
    disk.set_capacity(1000)
    with pytest.raises(RetriableRemoteStorageError, match="disk is full"):
        DirectoryRemoteStorageManager(disk).copy_log_segment_data(segment(0, 9), data())


def test_the_factory_knows_its_managers_and_refuses_others(tmp_path: Path) -> None:
    base: Callable[..., object] = lambda **settings: create_storage_manager(  # noqa: E731
        server_config(**settings), {}
    )
    directory = {"rsm_config_dir": tmp_path / "tier"}
    assert isinstance(base(**directory), DirectoryRemoteStorageManager)
    name = "remote_log_storage_manager_class_name"
    assert isinstance(base(**{name: "directory"}, **directory), DirectoryRemoteStorageManager)
    assert isinstance(base(**{name: "s3", "rsm_config_bucket": "b"}), S3RemoteStorageManager)
    named = "tiering.store.directory:DirectoryRemoteStorageManager"
    assert isinstance(base(**{name: named}, **directory), DirectoryRemoteStorageManager)
    for wrong in ({}, {name: "gcs"}, {name: "no.such:Thing"}, {name: "json:dumps"}, {name: "s3"}):
        with pytest.raises(ConfigError):
            base(**wrong)
    with pytest.raises(ConfigError, match="did you mean 'bucket'"):
        base(**{name: "s3", "rsm_config_bucket": "b", "rsm_config_buckt": "c"})


def test_the_environment_fills_what_the_settings_leave_open() -> None:
    environment = {"TIDEMARK_S3_BUCKET": "from-environment", "AWS_ACCESS_KEY_ID": "key"}
    merged = settings_with_environment({"access.key": "own"}, environment)
    assert merged == {"bucket": "from-environment", "access.key": "own"}


def s3_error(code: str, status: int) -> S3Error:
    """Returns the client's exception for an error answer of the store."""

    class Response:
        pass

    response = Response()
    response.status = status  # type: ignore[attr-defined]
    return S3Error(response, code, code, None, None, None)


class Answers:
    """A client whose `get_object` and `put_object` return these answers in turn."""

    def __init__(self, *answers: Exception | bytes) -> None:
        self.answers = list(answers)
        self.put: list[bytes] = []

    def stat_object(self, *_: object) -> None:
        """Finds the marker."""

    def get_object(self, *_: object) -> object:
        answer = self.answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return HTTPResponse(body=BytesIO(answer), preload_content=False)

    def put_object(self, bucket: str, key: str, stream: BytesIO, *_: object, **__: object) -> None:
        content = stream.read()
        answer = self.answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        self.put.append(content)


def scripted(*answers: Exception | bytes, attempts: int = 5) -> tuple[S3RemoteStorageManager, list]:  # type: ignore[type-arg]
    waits: list[float] = []
    manager = S3RemoteStorageManager(sleep=waits.append)
    manager.configure({"bucket": "b", "access.key": "a", "secret.key": "s"})
    manager._client = Answers(*answers)
    return manager, waits


OVERLOAD = [
    s3_error("SlowDown", 503),
    s3_error("InternalError", 500),
    s3_error("TooManyRequests", 429),
    ServerError("bad gateway", 502),
    ProtocolError("broken"),
    ConnectionResetError("reset"),
]


def test_an_overloaded_store_is_asked_again_with_random_waits(
    metadata: RemoteLogSegmentMetadata,
) -> None:
    for error in OVERLOAD:
        manager, waits = scripted(error, error, b"content")
        assert manager.fetch_log_segment(metadata, 0, 7) == b"content"
        assert len(waits) == manager.retries == 2


def test_an_overload_that_lasts_is_retriable_and_other_answers_are_not(
    metadata: RemoteLogSegmentMetadata,
) -> None:
    for error in OVERLOAD:
        manager, waits = scripted(*[error] * 5)
        with pytest.raises(RetriableRemoteStorageError):
            manager.fetch_log_segment(metadata, 0, 7)
        assert len(waits) == 4
    manager, waits = scripted(s3_error("AccessDenied", 403))
    with pytest.raises(RemoteStorageError, match="AccessDenied"):
        manager.fetch_log_segment(metadata, 0, 7)
    manager._client = Answers(s3_error("NoSuchBucket", 404))
    with pytest.raises(RemoteStorageError, match="create the bucket"):
        manager.fetch_log_segment(metadata, 0, 7)
    assert waits == []


def test_a_put_that_is_repeated_begins_at_the_first_byte(
    metadata: RemoteLogSegmentMetadata,
) -> None:
    manager, _ = scripted(s3_error("SlowDown", 503), b"", b"")
    manager.copy_log_segment_data(metadata, data())
    assert manager._client.put[0] == LOG


def test_a_malformed_endpoint_is_refused() -> None:
    for endpoint in ("http://host/path", "http://", ""):
        with pytest.raises(ConfigError):
            S3RemoteStorageManager().configure({"bucket": "b", "endpoint": endpoint})


@pytest.mark.minio
def test_an_outage_of_the_store_ends_with_the_outage(
    metadata: RemoteLogSegmentMetadata,
) -> None:
    if minio_binary() is None:
        pytest.skip("needs a server of its own: run scripts/install-tools")
    server = MinioServer()
    with server as store:
        manager = S3RemoteStorageManager(sleep=lambda _: None)
        manager.configure({**store.rsm_config(), "retry.max.attempts": "2"})
        manager.copy_log_segment_data(metadata, data())
        server.stop()
        with pytest.raises(RetriableRemoteStorageError):
            manager.fetch_log_segment(metadata, 0, 10)
        server.start()
        assert manager.fetch_log_segment(metadata, 0, 10) == LOG[:10]
        manager.close()
