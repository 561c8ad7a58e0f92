"""Failures of the tier's tasks in a row: counted by partition, forgotten with success or role."""

from __future__ import annotations

import asyncio
from pathlib import Path
from uuid import UUID

import pytest

from tests.tiering.world import PARTITION, World
from tidemark.types import TopicIdPartition
from tiering.errors import RemoteStorageError, RetriableRemoteStorageError
from tiering.failing import COPY, DELETE, REMOVE, FailedTasks

OTHER = TopicIdPartition(UUID(int=9), "other", 0)


def fails(*_: object) -> None:
    raise RetriableRemoteStorageError("AccessDenied")


def told(world: World) -> list[tuple[str, TopicIdPartition, int, str]]:
    worst = world.manager.metrics.failed_tasks.worst(9)
    return [(one.task, one.partition, one.failures, one.error) for one in worst]


def test_failures_in_a_row_count_since_the_first_until_a_success() -> None:
    now_ms = 5
    tasks = FailedTasks(lambda: now_ms)
    tasks.fail(COPY, OTHER, ValueError())
    now_ms = 7
    tasks.fail(COPY, OTHER, OSError("x" * 1_000))
    tasks.fail(DELETE, OTHER, OSError("y"))
    worst = tasks.worst(1)[0]
    assert (worst.task, worst.failures, worst.since_ms, worst.error) == (COPY, 2, 5, "x" * 500)
    tasks.succeed(COPY, OTHER)
    assert [one.task for one in tasks.worst(9)] == [DELETE]
    tasks.fail(REMOVE, OTHER, OSError("z"))
    tasks.forget(OTHER)
    assert [one.task for one in tasks.worst(9)] == [REMOVE]
    tasks.keep(REMOVE, ())
    assert tasks.worst(9) == []


def test_copies_that_fail_are_told_until_one_succeeds(tmp_path: Path) -> None:
    world = World(tmp_path)
    world.lead()
    world.produce_segment()
    world.produce(1)
    copied = world.storage.copy_log_segment_data
    world.storage.copy_log_segment_data = fails  # type: ignore[method-assign]
    for failures in (1, 2):
        with pytest.raises(RetriableRemoteStorageError):
            asyncio.run(world.once())
        assert told(world) == [(COPY, PARTITION, failures, told(world)[0][3])]
        assert "AccessDenied" in told(world)[0][3]
    world.storage.copy_log_segment_data = copied  # type: ignore[method-assign]
    asyncio.run(world.once())
    assert told(world) == []


def test_a_refused_copy_is_told_while_it_is_not_tried(tmp_path: Path) -> None:
    world = World(tmp_path)
    world.lead()
    world.produce_segment()
    world.produce(1)

    def refuses(*_: object) -> None:
        raise RemoteStorageError("no such bucket")

    world.storage.copy_log_segment_data = refuses  # type: ignore[method-assign]
    with pytest.raises(RemoteStorageError):
        asyncio.run(world.once())
    asyncio.run(world.once())
    assert [one[:3] for one in told(world)] == [(COPY, PARTITION, 1)]


def test_deletions_that_fail_are_told_beside_copies_that_succeed(tmp_path: Path) -> None:
    world = World(tmp_path, retention_bytes=1)
    world.lead()
    world.produce_segment()
    world.produce(1)
    world.storage.delete_log_segment_data = fails
    with pytest.raises(RetriableRemoteStorageError):
        asyncio.run(world.once())
    assert [one[:3] for one in told(world)] == [(DELETE, PARTITION, 1)]
    world.follow()
    assert told(world) == [], "it is the task of another node now"
