"""One small cluster of real processes for the tests that do not kill anything."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tidemark.cli.local_cluster import LocalCluster


@pytest.fixture(scope="session")
def small_cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalCluster]:
    """A controller and a broker."""
    with LocalCluster(tmp_path_factory.mktemp("small"), controllers=1, brokers=1) as cluster:
        cluster.wait_ready(60)
        yield cluster
