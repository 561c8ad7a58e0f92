"""Encryption and leftover uploads on a real object store with a key of its own."""

from __future__ import annotations

import base64
import os
import time
from collections.abc import Iterator

import pytest

from tests.minio_fixture import MinioServer, ObjectStore, minio_binary
from tests.tiering.builders import segment
from tiering.store.manager import LOG_SUFFIX, IndexType, LogSegmentData
from tiering.store.s3 import S3RemoteStorageManager

KEY = "tier-key"
PART = 5 << 20
BIG = os.urandom(2 * PART + 77)
pytestmark = pytest.mark.minio


class Source:
    size_bytes = len(BIG)

    def pread(self, position: int, size: int) -> bytes:
        return BIG[position : position + size]


@pytest.fixture(scope="module")
def store() -> Iterator[ObjectStore]:
    """A store with one key, which drops uploads that nobody continues after two seconds."""
    if minio_binary() is None:
        pytest.skip("no minio binary: run scripts/install-tools")
    with pytest.MonkeyPatch.context() as patch:
        secret = base64.b64encode(bytes(range(32))).decode()
        patch.setenv("MINIO_KMS_SECRET_KEY", f"{KEY}:{secret}")
        patch.setenv("MINIO_API_STALE_UPLOADS_EXPIRY", "2s")
        patch.setenv("MINIO_API_STALE_UPLOADS_CLEANUP_INTERVAL", "1s")
        with MinioServer() as started:
            yield started


@pytest.mark.parametrize(("kind", "told"), [("SSE-S3", "AES256"), ("SSE-KMS", "aws:kms")])
def test_a_log_in_several_parts_is_encrypted_and_read_back(
    store: ObjectStore, kind: str, told: str
) -> None:
    settings = {"part.size.bytes": str(PART), "server.side.encryption": kind}
    if kind == "SSE-KMS":
        settings["server.side.encryption.kms.key.id"] = KEY
    manager = S3RemoteStorageManager()
    manager.configure({**store.rsm_config(f"{kind}/"), **settings})
    one = segment(0, 9, size_bytes=len(BIG))
    manager.copy_log_segment_data(
        one, LogSegmentData(Source(), dict.fromkeys(IndexType, b"x" * 40))
    )
    assert manager.fetch_log_segment(one, 0) == BIG
    assert manager.fetch_log_segment(one, PART - 9, PART + 9) == BIG[PART - 9 : PART + 9]
    stored = store.client().stat_object(store.bucket, manager._key(one, LOG_SUFFIX))
    assert stored.size == len(BIG)
    assert stored.metadata["X-Amz-Server-Side-Encryption"] == told
    manager.close()


def test_an_upload_that_nobody_continues_is_removed_by_the_store_itself(
    store: ObjectStore,
) -> None:
    """Its list by prefix does not name it, so `tier gc` leaves it to the store."""
    client, bucket, key = store.client(), store.bucket, "late/one.log"
    upload = client._create_multipart_upload(bucket, key, {})
    client._upload_part(bucket, key, BIG[:PART], None, upload, 1)
    deadline = time.monotonic() + 30
    while client._list_multipart_uploads(bucket, prefix=key).uploads:
        assert time.monotonic() < deadline
        time.sleep(0.2)  # polls the store's own clean-up
