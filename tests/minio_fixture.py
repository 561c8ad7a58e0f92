"""A real object store for tests, from the first of: TIDEMARK_S3_ENDPOINT, a `minio` binary, Docker.

Without one, tests are skipped, or fail if CI is set. A server started here listens on free loopback
ports and keeps its data in a temporary directory. It is stopped with the session, or with
`MinioServer`'s with-block in tests that start one themselves.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import shutil
import signal
import socket
import subprocess
import tempfile
import time
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

_START_TIMEOUT_S = 30


@dataclass(frozen=True)
class ObjectStore:
    """The endpoint of a store, and an existing bucket of it."""

    endpoint: str
    bucket: str
    access_key: str
    secret_key: str
    region: str = "us-east-1"

    def rsm_config(self, key_prefix: str = "") -> dict[str, str]:
        """Settings of S3RemoteStorageManager (`rsm.config.*` without the prefix)."""
        return {
            "endpoint": self.endpoint,
            "bucket": self.bucket,
            "access.key": self.access_key,
            "secret.key": self.secret_key,
            "region": self.region,
            "key.prefix": key_prefix,
        }

    def environment(self) -> dict[str, str]:
        """The variables that point a node or the quickstart to this store."""
        return {
            "TIDEMARK_S3_ENDPOINT": self.endpoint,
            "TIDEMARK_S3_BUCKET": self.bucket,
            "AWS_ACCESS_KEY_ID": self.access_key,
            "AWS_SECRET_ACCESS_KEY": self.secret_key,
        }

    def client(self) -> Any:
        """A `minio.Minio` client."""
        from tiering.store.s3 import S3Settings, create_client

        return create_client(
            S3Settings(
                bucket=self.bucket,
                endpoint=self.endpoint,
                access_key=self.access_key,
                secret_key=self.secret_key,
                region=self.region,
            )
        )

    def make_bucket(self) -> None:
        """Creates the bucket if it does not exist."""
        client = self.client()
        if not client.bucket_exists(self.bucket):
            client.make_bucket(self.bucket)


def minio_binary() -> str | None:
    """The MinIO server on the PATH or in Tidemark's tools cache."""
    found = shutil.which("minio")
    if found:
        return found
    cache = os.environ.get("XDG_CACHE_HOME") or str(Path.home() / ".cache")
    candidate = Path(cache) / "tidemark" / "tools" / "bin" / "minio"
    return str(candidate) if os.access(candidate, os.X_OK) else None


class MinioServer:
    """A MinIO process: `with MinioServer() as store: ...`. Its data stay until `close`."""

    def __init__(self, binary: str | None = None, directory: str | None = None) -> None:
        self._binary = binary or minio_binary()
        self._own_directory = directory is None
        self._directory = directory or tempfile.mkdtemp(prefix="tidemark-minio-")
        self._process: subprocess.Popen[bytes] | None = None
        self._port, self._console_port = _free_ports(2)
        self.store = ObjectStore(
            f"http://127.0.0.1:{self._port}",
            "tidemark-test",
            "tidemark",
            secrets.token_hex(16),
        )

    def __enter__(self) -> ObjectStore:
        try:
            self.start()
        except BaseException:
            self.close()
            raise
        return self.store

    def __exit__(self, *_: object) -> None:
        self.close()

    def start(self) -> None:
        """Starts the server and creates the bucket. Raises RuntimeError if it does not come up."""
        if self._binary is None:
            raise RuntimeError("no minio binary: run scripts/install-tools")
        environment = {
            **os.environ,
            "MINIO_ROOT_USER": self.store.access_key,
            "MINIO_ROOT_PASSWORD": self.store.secret_key,
            "MINIO_BROWSER": "off",
            "MINIO_UPDATE": "off",
        }
        log_path = Path(self._directory) / "minio.log"
        with log_path.open("ab") as log:
            self._process = subprocess.Popen(
                [
                    self._binary,
                    *("server", "--address", f"127.0.0.1:{self._port}"),
                    *("--console-address", f"127.0.0.1:{self._console_port}"),
                    str(Path(self._directory) / "data"),
                ],
                env=environment,
                stdout=log,
                stderr=subprocess.STDOUT,
            )
        deadline = time.monotonic() + _START_TIMEOUT_S
        while not self._is_live():
            if self._process.poll() is not None or time.monotonic() > deadline:
                raise RuntimeError(f"minio did not start: {log_path.read_text()[-2000:]}")
            time.sleep(0.05)  # a foreign process: only its port shows when it is ready

    def stop(self) -> None:
        """Stops the process, by SIGKILL if needed; the data stays."""
        process, self._process = self._process, None
        if process is None:
            return
        process.terminate()
        try:
            process.wait(10)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait(10)

    def kill(self) -> None:
        """Sends SIGKILL and waits for the end; the data stays."""
        process, self._process = self._process, None
        if process is not None:
            process.kill()
            process.wait()

    def pause(self) -> None:
        """Sends SIGSTOP: connections stay, and nothing is answered."""
        if self._process is not None:
            self._process.send_signal(signal.SIGSTOP)

    def resume(self) -> None:
        """Sends SIGCONT after `pause`."""
        if self._process is not None:
            self._process.send_signal(signal.SIGCONT)

    def close(self) -> None:
        """Stops the process and removes its data."""
        self.resume()  # a stopped process would take SIGTERM later
        self.stop()
        if self._own_directory:
            shutil.rmtree(self._directory, ignore_errors=True)

    def _is_live(self) -> bool:
        from minio.error import MinioException

        url = self.store.endpoint + "/minio/health/live"
        try:
            with urllib.request.urlopen(url, timeout=2) as answer:
                if answer.status != 200:
                    return False
            self.store.make_bucket()  # "live" is reported before requests are served
        except (OSError, MinioException):
            return False
        return True


def _free_ports(count: int) -> list[int]:
    sockets = [socket.socket() for _ in range(count)]
    try:
        for one in sockets:
            one.bind(("127.0.0.1", 0))
        return [one.getsockname()[1] for one in sockets]
    finally:
        for one in sockets:
            one.close()


@contextlib.contextmanager
def _container() -> Iterator[ObjectStore]:
    from testcontainers.minio import MinioContainer

    with MinioContainer() as container:
        config = container.get_config()
        store = ObjectStore(
            f"http://{config['endpoint']}",
            "tidemark-test",
            config["access_key"],
            config["secret_key"],
        )
        store.make_bucket()
        yield store


def _docker_runs() -> bool:
    if shutil.which("docker") is None:
        return False
    return subprocess.run(["docker", "info"], capture_output=True, check=False).returncode == 0


@contextlib.contextmanager
def object_store_or_skip() -> Iterator[ObjectStore]:
    """The store, in the order of the module's docstring. Skips without one, or fails on CI."""
    environment = os.environ
    if environment.get("TIDEMARK_S3_ENDPOINT"):
        store = ObjectStore(
            environment["TIDEMARK_S3_ENDPOINT"],
            environment.get("TIDEMARK_S3_BUCKET", "tidemark-test"),
            environment.get("AWS_ACCESS_KEY_ID", ""),
            environment.get("AWS_SECRET_ACCESS_KEY", ""),
            environment.get("AWS_REGION", "us-east-1"),
        )
        store.make_bucket()
        yield store
    elif minio_binary() is not None:
        with MinioServer() as store:
            yield store
    elif _docker_runs():
        with _container() as store:
            yield store
    else:
        advice = "no object store: run scripts/install-tools, or set TIDEMARK_S3_ENDPOINT"
        if environment.get("CI"):
            pytest.fail(advice)
        pytest.skip(advice)


@pytest.fixture(scope="session")
def object_store() -> Iterator[ObjectStore]:
    """A real S3 store with a bucket, one for the session; tests use key prefixes of their own."""
    with object_store_or_skip() as store:
        yield store
