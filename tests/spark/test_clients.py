"""The consumers that a worker keeps between slices."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from tidemark.spark.clients import WorkerClients
from tidemark.spark.options import SourceOptions, parse_options


class FakeConsumer:
    def __init__(self, key: tuple[str, str, Any]) -> None:
        self.key = key
        self.assigned: list[Any] = ["t-0"]
        self.is_closed = False

    def assign(self, partitions: list[Any]) -> None:
        self.assigned = partitions

    def close(self) -> None:
        self.is_closed = True


class World:
    """WorkerClients of fake consumers, on a clock that only tests move."""

    def __init__(self) -> None:
        self.now_s = 0.0
        self.made: list[FakeConsumer] = []
        self.clients = WorkerClients(self._make, lambda: self.now_s)

    def _make(self, key: tuple[str, str, Any]) -> Any:
        self.made.append(FakeConsumer(key))
        return self.made[-1]

    def use(self, options: SourceOptions) -> Any:
        with self.clients.borrowed(options) as consumer:
            return consumer


@pytest.fixture
def world() -> Iterator[World]:
    made = World()
    yield made
    made.clients.close()


def of(servers: str, **more: str) -> SourceOptions:
    return parse_options({"bootstrap.servers": servers, "subscribe": "t"} | more)


def test_a_client_is_used_again_by_slices_of_the_same_cluster(world: World) -> None:
    first = world.use(of("a:1"))
    assert first.assigned == []
    assert world.use(of("a:1")) is first
    assert world.use(of("b:1")) is not first
    committed = of("a:1", **{"isolation.level": "read_committed"})
    assert world.use(committed) is not first
    assert [made.key for made in world.made] == [
        ("a:1", "read_uncommitted", None),
        ("b:1", "read_uncommitted", None),
        ("a:1", "read_committed", None),
    ]


def test_a_client_of_one_user_is_not_that_of_another(world: World) -> None:
    ann = {"security.protocol": "SASL_SSL", "sasl.mechanism": "SCRAM-SHA-512"}
    ann |= {"sasl.username": "ann", "sasl.password": "correct horse"}
    first = world.use(of("a:1", **ann))
    assert world.use(of("a:1")) is not first
    assert world.use(of("a:1", **ann | {"sasl.username": "bob"})) is not first
    assert world.use(of("a:1", **ann)) is first


def test_slices_at_the_same_time_have_a_client_each(world: World) -> None:
    with world.clients.borrowed(of("a:1")) as one, world.clients.borrowed(of("a:1")) as other:
        assert one is not other


def test_the_client_of_a_slice_that_failed_is_closed(world: World) -> None:
    with pytest.raises(KeyboardInterrupt), world.clients.borrowed(of("a:1")):
        raise KeyboardInterrupt
    assert world.made[0].is_closed
    assert world.use(of("a:1")) is not world.made[0]


def test_a_slice_that_ends_early_gives_its_client_back(world: World) -> None:
    def rows() -> Iterator[int]:
        with world.clients.borrowed(of("a:1")):
            yield 1

    stream = rows()
    next(stream)
    stream.close()  # type: ignore[attr-defined]
    assert world.use(of("a:1")) is world.made[0] and not world.made[0].is_closed


def test_an_idle_client_is_closed_and_one_that_was_used_since_is_not(world: World) -> None:
    world.use(of("a:1"))
    world.now_s = 20.0
    world.use(of("b:1"))
    world.now_s = 29.9
    world.clients.close_idle()
    assert not world.made[0].is_closed
    world.now_s = 30.0
    world.clients.close_idle()
    assert [made.is_closed for made in world.made] == [True, False]
    world.use(of("b:1"))
    world.now_s = 50.0
    world.clients.close_idle()
    assert not world.made[1].is_closed


def test_few_clients_are_idle(world: World) -> None:
    for number in range(6):
        world.use(of(f"h{number}:1"))
    assert [made.is_closed for made in world.made] == [True, True, False, False, False, False]


def test_a_forked_child_leaves_the_clients_to_its_parent(world: World) -> None:
    first = world.use(of("a:1"))
    world.clients._lock.acquire()  # another thread of the parent
    world.clients.forked()
    assert world.use(of("a:1")) is not first and not first.is_closed
