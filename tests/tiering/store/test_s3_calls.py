"""Calls of S3 end: at their deadline, however slowly the store answers, and when the node stops.
Large logs go up in parts, each repeated by itself, and leave no part behind.
"""

from __future__ import annotations

import secrets
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any

import pytest

from tests.minio_fixture import ObjectStore
from tests.tiering.builders import STARTED, segment
from tests.tiering.store.test_storage_contract import Source, data, s3_error
from tidemark.errors import ConfigError
from tiering.errors import RemoteResourceNotFoundError, RetriableRemoteStorageError
from tiering.store.manager import LogSegmentData
from tiering.store.s3 import S3RemoteStorageManager

Answer = Callable[[socket.socket, threading.Event], None]


@contextmanager
def serving(answer: Answer) -> Iterator[tuple[str, threading.Semaphore]]:
    """A store that answers every connection so; yields its endpoint, and a count of requests."""
    listener = socket.create_server(("127.0.0.1", 0))
    ended, asked = threading.Event(), threading.Semaphore(0)
    threads: list[threading.Thread] = []

    def talk(connection: socket.socket) -> None:
        with connection, suppress(OSError):
            connection.recv(65536)
            asked.release()
            answer(connection, ended)

    def accept() -> None:
        with suppress(OSError):
            while True:
                connection, _ = listener.accept()
                threads.append(threading.Thread(target=talk, args=[connection]))
                threads[-1].start()

    accepting = threading.Thread(target=accept)
    accepting.start()
    try:
        yield f"http://127.0.0.1:{listener.getsockname()[1]}", asked
    finally:
        ended.set()
        listener.shutdown(socket.SHUT_RDWR)
        listener.close()
        for thread in [accepting, *threads]:
            thread.join()


def trickles_its_body(connection: socket.socket, ended: threading.Event) -> None:
    connection.sendall(b"HTTP/1.1 206 Partial Content\r\nContent-Length: 1000000\r\n\r\n")
    while not ended.wait(0.01):
        connection.sendall(b"x")


def trickles_its_head(connection: socket.socket, ended: threading.Event) -> None:
    connection.sendall(b"HTTP/1.1 206 Partial Content\r\nX-Endless: ")
    while not ended.wait(0.01):
        connection.sendall(b"x")


def is_silent(connection: socket.socket, ended: threading.Event) -> None:
    ended.wait()


def manager_at(endpoint: str, **settings: str) -> S3RemoteStorageManager:
    manager = S3RemoteStorageManager()
    keys = {"access.key": "a", "secret.key": "secret-key", "bucket": "bucket"}
    manager.configure({**keys, "endpoint": endpoint, **settings})
    return manager


@pytest.mark.parametrize("answer", [trickles_its_body, trickles_its_head, is_silent])
def test_a_call_ends_at_its_deadline_however_it_trickles(answer: Answer) -> None:
    with serving(answer) as (endpoint, _):
        manager = manager_at(
            endpoint,
            **{"api.call.attempt.timeout.ms": "100", "retry.max.attempts": "2"},
        )
        with pytest.raises(RetriableRemoteStorageError, match="longer than the call may"):
            manager.fetch_log_segment(segment(0, 9), 0, 1_000_000)
        assert manager.retries == 1
        manager.close()


def test_the_tries_of_a_request_share_a_deadline() -> None:
    with serving(trickles_its_body) as (endpoint, _):
        timeouts = {"api.call.attempt.timeout.ms": "60000", "api.call.timeout.ms": "100"}
        manager = manager_at(endpoint, **timeouts)
        with pytest.raises(RetriableRemoteStorageError, match="longer than the call may"):
            manager.fetch_log_segment(segment(0, 9), 0, 1_000_000)
        assert manager.retries == 0
        manager.close()


@pytest.mark.parametrize("answer", [trickles_its_body, trickles_its_head, is_silent])
def test_closing_ends_the_calls_under_way_and_refuses_new_ones(answer: Answer) -> None:
    with serving(answer) as (endpoint, asked):
        manager = manager_at(endpoint)
        errors: list[Exception] = []

        def fetch() -> None:
            try:
                manager.fetch_log_segment(segment(0, 9), 0, 1_000_000)
            except Exception as error:
                errors.append(error)

        thread = threading.Thread(target=fetch, daemon=True)
        thread.start()
        asked.acquire()
        manager.close()
        thread.join(30)  # long before the silence that a socket may keep
        assert not thread.is_alive()
        assert isinstance(errors[0], RetriableRemoteStorageError)
        with pytest.raises(RetriableRemoteStorageError, match="closed"):
            manager.fetch_log_segment(segment(0, 9), 0, 10)


def test_closing_ends_the_wait_between_tries() -> None:
    def refuses(connection: socket.socket, ended: threading.Event) -> None:
        connection.sendall(b"HTTP/1.1 503 Slow Down\r\nContent-Length: 0\r\n\r\n")

    with serving(refuses) as (endpoint, _):
        manager = manager_at(endpoint, **{"retry.backoff.max.ms": "3600000"})
        waits = threading.Semaphore(0)
        sleep = manager._deadlines.sleep

        def wait(_: float) -> None:
            waits.release()
            sleep(3600)

        manager._sleep = wait

        def fetch() -> None:
            with suppress(RetriableRemoteStorageError):
                manager.fetch_log_segment(segment(0, 9), 0, 10)

        thread = threading.Thread(target=fetch, daemon=True)
        thread.start()
        waits.acquire()
        manager.close()
        thread.join(30)
        assert not thread.is_alive()


def test_encryption_is_asked_of_the_store() -> None:
    manager = S3RemoteStorageManager()
    base = {"bucket": "b", "access.key": "a", "secret.key": "s"}
    asked: list[dict[str, str]] = []

    class Client:
        def stat_object(self, *_: Any) -> None:
            """Finds the marker."""

        def put_object(self, *_: Any, sse: Any) -> None:
            asked.append(sse and sse.headers())

    for settings in (
        {},
        {"server.side.encryption": "SSE-S3"},
        {"server.side.encryption": "SSE-KMS", "server.side.encryption.kms.key.id": "my-key"},
    ):
        manager.configure({**base, **settings})
        manager._client = Client()
        manager.copy_log_segment_data(segment(0, 9), data(b"log"))
    name = "X-Amz-Server-Side-Encryption"
    assert asked[:2] == [None, None]
    assert asked[2:4] == [{name: "AES256"}] * 2
    assert asked[4:] == [{name: "aws:kms", name + "-Aws-Kms-Key-Id": "my-key"}] * 2
    for wrong in ("AES256", "SSE-KMS"):
        with pytest.raises(ConfigError, match="SSE-KMS"):
            manager.configure({**base, "server.side.encryption": wrong})


PART = 5 << 20
BIG = secrets.token_bytes(1 << 20) * 12  # three parts


@pytest.fixture
def large(object_store: ObjectStore) -> Iterator[S3RemoteStorageManager]:
    manager = S3RemoteStorageManager(sleep=lambda _: None)
    config = object_store.rsm_config(f"parts/{secrets.token_hex(6)}/")
    manager.configure({**config, "part.size.bytes": str(PART)})
    manager._marker.require_or_begin()
    yield manager
    manager.close()


def uploads(manager: S3RemoteStorageManager) -> list[str]:
    key = manager._key(METADATA, ".log")
    listed = manager._client._list_multipart_uploads(manager.settings.bucket, prefix=key)
    return [upload.upload_id for upload in listed.uploads]


METADATA = segment(0, 9, 0xA70000000000000000000000000000FF, state=STARTED, size_bytes=len(BIG))


@pytest.mark.minio
def test_a_part_that_fails_is_sent_again_alone(large: S3RemoteStorageManager) -> None:
    put, numbers = large._client._upload_part, []

    def fails_once(*args: Any) -> str:
        numbers.append(args[-1])
        if numbers == [1, 2]:
            raise s3_error("SlowDown", 503)
        etag: str = put(*args)
        return etag

    large._client._upload_part = fails_once
    large.copy_log_segment_data(METADATA, data(BIG))
    assert numbers == [1, 2, 2, 3]
    assert large.fetch_log_segment(METADATA, 0) == BIG
    assert uploads(large) == []
    assert large._key(METADATA, ".log").rpartition("parts/")[2].split("/")[1] == "a7"


@pytest.mark.minio
def test_a_copy_that_breaks_off_leaves_no_parts(large: S3RemoteStorageManager) -> None:
    broken = LogSegmentData(Source(BIG, fails_at=2 * PART), data().indexes)
    with pytest.raises(RetriableRemoteStorageError):
        large.copy_log_segment_data(METADATA, broken)
    assert uploads(large) == []


@pytest.mark.minio
@pytest.mark.parametrize("next_step", ["copy", "delete"])
def test_parts_that_a_crash_left_go_with_the_next_copy_or_the_deletion(
    large: S3RemoteStorageManager, next_step: str
) -> None:
    client, bucket, key = large._client, large.settings.bucket, large._key(METADATA, ".log")
    upload = client._create_multipart_upload(bucket, key, {})
    client._upload_part(bucket, key, BIG[:PART], None, upload, 1)
    assert uploads(large) == [upload]
    if next_step == "copy":
        large.copy_log_segment_data(METADATA, data(BIG))
    else:
        large.delete_log_segment_data(METADATA)
    assert uploads(large) == []


@pytest.mark.minio
def test_a_completion_whose_answer_was_lost_counts(large: S3RemoteStorageManager) -> None:
    complete = large._client._complete_multipart_upload
    tries = []

    def loses_its_answer(*args: Any) -> None:
        tries.append(args)
        complete(*args)
        if len(tries) == 1:
            raise ConnectionResetError("reset")

    large._client._complete_multipart_upload = loses_its_answer
    large.copy_log_segment_data(METADATA, data(BIG))
    assert len(tries) == 2
    assert large.fetch_log_segment(METADATA, 0) == BIG
    with pytest.raises(RemoteResourceNotFoundError):
        large.fetch_log_segment(segment(0, 9, 3), 0, 10)
