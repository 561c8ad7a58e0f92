"""Assignments of log directories: batches, one in flight, repeated until accepted; the newest
wins.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any
from uuid import UUID

from node.membership.directory_assignments import PARTITIONS_PER_REQUEST, DirectoryAssignments
from node.membership.identity import BrokerIdentity
from tests import virtual_time
from tests.node.fakes import FakeController
from tidemark.errors import ErrorCode
from tidemark.types import TopicIdPartition, random_uuid
from tidemark.v1 import controller_pb2 as pb

METHOD = "AssignReplicasToDirs"
TOPIC_ID = random_uuid()
A, B = random_uuid(), random_uuid()


def replica(index: int) -> TopicIdPartition:
    return TopicIdPartition(TOPIC_ID, "t", index)


def placed(request: pb.AssignReplicasToDirsRequest) -> dict[int, UUID]:
    return {
        partition.partition_index: UUID(bytes=directory.id)
        for directory in request.directories
        for partition in directory.partitions
    }


class World:
    """A controller that records every assignment except the `refused` ones."""

    def __init__(self) -> None:
        self.controller = FakeController()
        self.controller.handlers[METHOD] = self.answer
        self.refused: dict[int, ErrorCode] = {}
        self.noted: dict[int, UUID] = {}
        self.under_way = 0
        self.assignments = DirectoryAssignments(BrokerIdentity(1, 42), self.controller)

    async def answer(self, request: pb.AssignReplicasToDirsRequest) -> Any:
        assert self.under_way == 0, "one request at a time"
        assert (request.broker_id, request.broker_epoch) == (1, 42)
        self.under_way += 1
        await asyncio.sleep(0.01)
        self.under_way -= 1
        response = pb.AssignReplicasToDirsResponse()
        for index, directory in placed(request).items():
            code = self.refused.get(index, ErrorCode.NONE)
            if code == ErrorCode.NONE:
                self.noted[index] = directory
            response.partitions.add(
                topic_id=TOPIC_ID.bytes, partition_index=index, error_code=int(code)
            )
        return response


def scenario(test: Callable[[World], Coroutine[Any, Any, None]]) -> None:
    async def main() -> None:
        world = World()
        task = asyncio.ensure_future(world.assignments.run())
        await test(world)
        task.cancel()

    virtual_time.run(main())


def test_many_replicas_go_in_few_requests() -> None:
    async def test(world: World) -> None:
        count = PARTITIONS_PER_REQUEST + 100
        for index in range(count):
            world.assignments.submit(replica(index), A if index % 3 else B)
        await asyncio.sleep(1)
        assert [len(placed(r)) for r in world.controller.seen(METHOD)] == [
            PARTITIONS_PER_REQUEST,
            100,
        ]
        assert world.noted == {index: A if index % 3 else B for index in range(count)}
        assert len(world.assignments) == 0

    scenario(test)


def test_a_newer_directory_takes_the_place_of_one_under_way() -> None:
    async def test(world: World) -> None:
        done: list[str] = []
        world.assignments.submit(replica(0), A, lambda: done.append("A"))
        await asyncio.sleep(0.005)
        world.assignments.submit(replica(0), B, lambda: done.append("B"))
        await asyncio.sleep(1)
        assert (world.noted, done) == ({0: B}, ["B"])
        world.assignments.submit(replica(0), B)
        await asyncio.sleep(1)
        assert len(world.controller.seen(METHOD)) == 3

    scenario(test)


def test_an_unreachable_controller_is_asked_again_with_longer_pauses() -> None:
    async def test(world: World) -> None:
        world.controller.silent = True
        world.assignments.submit(replica(0), A)
        await asyncio.sleep(120)
        assert 5 <= len(world.controller.seen(METHOD)) <= 20
        world.controller.silent = False
        await asyncio.sleep(25)
        assert world.noted == {0: A}

    scenario(test)


def test_what_the_controller_does_not_know_is_dropped_and_the_rest_tried_again() -> None:
    async def test(world: World) -> None:
        world.refused = {
            0: ErrorCode.UNKNOWN_TOPIC_ID,
            1: ErrorCode.NOT_LEADER_OR_FOLLOWER,
            2: ErrorCode.LOG_DIR_NOT_FOUND,
        }
        for index in range(4):
            world.assignments.submit(replica(index), A)
        await asyncio.sleep(1)
        assert (world.noted, len(world.assignments)) == ({3: A}, 1)
        world.refused.clear()
        await asyncio.sleep(30)
        assert (world.noted, len(world.assignments)) == ({3: A, 2: A}, 0)

    scenario(test)
