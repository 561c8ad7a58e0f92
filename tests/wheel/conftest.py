"""The wheel, built once, and an environment for each way of installing it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import cache
from importlib.metadata import distributions
from pathlib import Path

import pytest

from tests.wheel.environment import Environment, build_wheel, needed
from tidemark.cli.local_cluster import LocalCluster

Install = Callable[..., Environment]


@pytest.fixture(scope="session")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build_wheel(tmp_path_factory.mktemp("wheel"))


@pytest.fixture(scope="session")
def install(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Install:
    """`install("tidemark[server]")`: an environment with the wheel and everything pip installs with
    it.
    """

    @cache
    def make(*requirements: str) -> Environment:
        return Environment(tmp_path_factory.mktemp("fresh"), wheel, needed(*requirements).values())

    return make


@pytest.fixture(scope="session")
def everything(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Environment:
    """The wheel beside everything installed here, except the checkout."""
    others = [d for d in distributions() if d.name != "tidemark"]
    return Environment(tmp_path_factory.mktemp("everything"), wheel, others)


@pytest.fixture(scope="module")
def small_cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalCluster]:
    """A controller and a broker, of the checkout."""
    with LocalCluster(tmp_path_factory.mktemp("small"), controllers=1, brokers=1) as cluster:
        cluster.wait_ready(60)
        yield cluster
