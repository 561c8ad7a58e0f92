"""Failures of credentials say what is missing, and one that may pass gives no copy up."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.minio_fixture import ObjectStore
from tests.tiering.builders import segment
from tidemark.errors import ConfigError
from tiering.errors import RemoteStorageError, RetriableRemoteStorageError
from tiering.store.s3 import S3RemoteStorageManager


@pytest.mark.parametrize(
    ("given", "told"),
    [
        ({"access.key": "a"}, r"rsm\.config\.secret\.key is missing"),
        ({"secret.key": "s"}, r"rsm\.config\.access\.key is missing"),
    ],
)
def test_half_of_the_keys_is_an_error_of_the_settings(given: dict[str, str], told: str) -> None:
    with pytest.raises(ConfigError, match=told):
        S3RemoteStorageManager().configure({"bucket": "b", "endpoint": "http://h:1", **given})


@pytest.mark.minio
def test_a_role_that_is_not_there_is_named_and_tried_again(
    object_store: ObjectStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The store itself answers in place of the service of roles: it knows no such path."""
    url = object_store.endpoint + "/no/such/role"
    monkeypatch.setenv("AWS_CONTAINER_CREDENTIALS_FULL_URI", url)
    manager = S3RemoteStorageManager(sleep=lambda _: None)
    manager.configure({"bucket": object_store.bucket, "endpoint": object_store.endpoint})
    with pytest.raises(RetriableRemoteStorageError, match=r"IAM role gives none .*status code 4"):
        manager.fetch_log_segment(segment(0, 9), 0)
    assert manager.retries == manager.settings.retry_max_attempts - 1
    manager.close()


@pytest.mark.minio
@pytest.mark.parametrize(
    ("wrong", "told"),
    [("access_key", "InvalidAccessKeyId"), ("secret_key", "SignatureDoesNotMatch")],
)
def test_wrong_keys_are_refused_in_the_stores_words(
    object_store: ObjectStore, wrong: str, told: str
) -> None:
    manager = S3RemoteStorageManager()
    manager.configure(replace(object_store, **{wrong: "wrong-wrong"}).rsm_config("wrong/"))
    with pytest.raises(RemoteStorageError, match=told) as caught:
        manager.fetch_log_segment(segment(0, 9), 0)
    assert not isinstance(caught.value, RetriableRemoteStorageError)
    assert manager.retries == 0
    manager.close()
