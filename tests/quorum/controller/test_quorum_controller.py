"""QuorumController over a fake quorum in virtual time: commits, rollback, takeover."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable
from uuid import UUID

import pytest

from quorum.controller.core import ControllerCore
from quorum.controller.event_queue import RECORDS_PER_TURN, WORK_PER_TURN_MAX, EventQueue
from quorum.controller.quorum_controller import QuorumController
from quorum.image.features import ranges_to_wire
from quorum.replica.loader import MetadataLoader
from tests import virtual_time
from tests.quorum.controller.fake_raft import FakeQuorum, FakeRaft
from tests.quorum.controller.scenario import CLUSTER_ID, controller_config
from tidemark.errors import (
    NotControllerError,
    RequestTimedOutError,
    ThrottlingQuotaExceededError,
)
from tidemark.v1 import admin_pb2, controller_pb2


def clock() -> int:
    return round(asyncio.get_running_loop().time() * 1000)


class Node:
    """One controller over the fake quorum."""

    def __init__(self, quorum: FakeQuorum, node_id: int) -> None:
        config = controller_config(node_id=str(node_id))
        self.raft: FakeRaft = quorum.node(node_id)
        self.loader = MetadataLoader(self.raft, config, clock)
        core = ControllerCore(config, CLUSTER_ID, random.Random(node_id))
        self.controller = QuorumController(self.raft, self.loader, core, clock)
        self.raft.register(self.loader)


def registration(broker_id: int) -> controller_pb2.RegisterBrokerRequest:
    request = controller_pb2.RegisterBrokerRequest(
        broker_id=broker_id,
        cluster_id=CLUSTER_ID,
        incarnation_id=UUID(int=broker_id).bytes,
        features=ranges_to_wire(),
    )
    request.listeners.add(name="PLAINTEXT", host="127.0.0.1", port=1)
    return request


def creation(name: str, timeout_ms: int = 0) -> admin_pb2.CreateTopicsRequest:
    request = admin_pb2.CreateTopicsRequest(timeout_ms=timeout_ms)
    request.topics.add(name=name, num_partitions=2, replication_factor=1)
    return request


async def broker_in_service(node: Node, broker_id: int) -> int:
    """Registers and unfences a broker; returns its epoch. Commits must proceed."""
    answer = await node.controller.handle(registration(broker_id))
    heartbeat = controller_pb2.BrokerHeartbeatRequest(
        broker_id=broker_id, broker_epoch=answer.broker_epoch, current_metadata_offset=1_000
    )
    assert not (await node.controller.handle(heartbeat)).is_fenced
    return answer.broker_epoch


def in_virtual_time(scenario: Callable[[FakeQuorum, Node, Node], Awaitable[None]]) -> None:
    """Runs a scenario over two controllers, of which the first leads."""

    async def main() -> None:
        quorum = FakeQuorum()
        first, second = Node(quorum, 1), Node(quorum, 2)
        quorum.elect(1)
        await scenario(quorum, first, second)
        first.controller.stop()
        second.controller.stop()

    virtual_time.run(main())


def test_the_epoch_of_a_broker_is_the_offset_of_its_record_in_the_log() -> None:
    async def scenario(quorum: FakeQuorum, first: Node, second: Node) -> None:
        epoch = await broker_in_service(first, 7)
        batch = next(b for b in quorum.committed if b.base_offset <= epoch <= b.last_offset)
        assert b"127.0.0.1" in batch.values[epoch - batch.base_offset]

    in_virtual_time(scenario)


def test_a_controller_that_stops_gives_the_leadership_up_at_once() -> None:
    async def scenario(quorum: FakeQuorum, first: Node, second: Node) -> None:
        second.controller.stop()
        assert quorum.leader_id == 1, "who does not lead has nothing to give up"
        first.controller.stop()
        assert quorum.leader_id is None

    in_virtual_time(scenario)


def test_a_controller_that_stops_alone_does_not_elect_itself_again() -> None:
    async def main() -> None:
        quorum = FakeQuorum()
        only = Node(quorum, 1)
        quorum.elect(1)
        only.controller.stop()
        assert (quorum.leader_id, quorum.epoch) == (1, 1)

    virtual_time.run(main())


def test_an_answer_comes_only_with_the_commit() -> None:
    async def scenario(quorum: FakeQuorum, first: Node, second: Node) -> None:
        await broker_in_service(first, 7)
        quorum.auto_commit = False
        waiting = asyncio.ensure_future(first.controller.handle(creation("t")))
        await asyncio.sleep(0.1)
        assert not waiting.done()
        assert "t" in first.controller.core.image.topics
        assert "t" not in first.loader.image.topics
        quorum.commit()
        assert (await waiting).topics[0].error_code == 0
        assert "t" in second.loader.image.topics

    in_virtual_time(scenario)


def test_a_read_waits_for_everything_before_it() -> None:
    async def scenario(quorum: FakeQuorum, first: Node, second: Node) -> None:
        await broker_in_service(first, 7)
        quorum.auto_commit = False
        created = asyncio.ensure_future(first.controller.handle(creation("t")))
        again = asyncio.ensure_future(first.controller.handle(creation("t")))
        await asyncio.sleep(0.1)
        assert not again.done(), "that the topic exists is not certain yet"
        quorum.commit()
        assert (await created).topics[0].error_code == 0
        assert (await again).topics[0].error_code == 36

    in_virtual_time(scenario)


def test_with_the_leadership_goes_what_was_not_committed() -> None:
    async def scenario(quorum: FakeQuorum, first: Node, second: Node) -> None:
        await broker_in_service(first, 7)
        quorum.auto_commit = False
        lost = asyncio.ensure_future(first.controller.handle(creation("lost")))
        await asyncio.sleep(0.1)
        quorum.elect(2)
        with pytest.raises(NotControllerError):
            await lost
        with pytest.raises(NotControllerError):
            await first.controller.handle(creation("t"))
        quorum.auto_commit = True
        answer = await second.controller.handle(creation("lost"))
        assert answer.topics[0].error_code == 0
        quorum.elect(1)
        assert "lost" in first.controller.core.image.topics

    in_virtual_time(scenario)


def test_a_leader_elected_anew_begins_from_the_committed_image() -> None:
    async def scenario(quorum: FakeQuorum, first: Node, second: Node) -> None:
        await broker_in_service(first, 7)
        quorum.auto_commit = False
        lost = asyncio.ensure_future(first.controller.handle(creation("lost")))
        await asyncio.sleep(0.1)
        quorum.elect(1)
        with pytest.raises(NotControllerError):
            await lost
        assert first.controller.is_active
        assert "lost" not in first.controller.core.image.topics

    in_virtual_time(scenario)


def test_a_change_that_is_never_committed_times_out_with_a_retriable_error() -> None:
    async def scenario(quorum: FakeQuorum, first: Node, second: Node) -> None:
        await broker_in_service(first, 7)
        quorum.auto_commit = False
        with pytest.raises(RequestTimedOutError, match="within 50 ms"):
            await first.controller.handle(creation("t", timeout_ms=50))
        quorum.commit()
        assert "t" in first.loader.image.topics

    in_virtual_time(scenario)


def test_the_active_image_is_the_committed_one_when_nothing_is_pending() -> None:
    async def scenario(quorum: FakeQuorum, first: Node, second: Node) -> None:
        await broker_in_service(first, 7)
        quorum.auto_commit = False
        created = asyncio.ensure_future(first.controller.handle(creation("t")))
        await asyncio.sleep(0.1)
        ahead = first.controller.core.image
        quorum.commit()
        await created
        assert first.controller.core.image is first.loader.image
        assert ahead == first.loader.image, "what was generated is what was replayed"
        assert list(second.loader.image.values()) == list(ahead.values())

    in_virtual_time(scenario)


def test_silent_brokers_are_fenced_by_the_clock_of_the_active_controller() -> None:
    async def scenario(quorum: FakeQuorum, first: Node, second: Node) -> None:
        await broker_in_service(first, 7)
        await first.controller.handle(creation("t"))
        await asyncio.sleep(8.9)
        assert not second.loader.image.brokers[7].fenced
        await asyncio.sleep(2)
        assert second.loader.image.brokers[7].fenced
        topic = second.loader.image.topics.get("t")
        assert topic is not None
        assert {p.leader for p in topic.partitions.values()} == {None}

    in_virtual_time(scenario)


def test_a_new_controller_waits_a_session_before_it_fences() -> None:
    async def scenario(quorum: FakeQuorum, first: Node, second: Node) -> None:
        await broker_in_service(first, 7)
        await asyncio.sleep(8)
        quorum.elect(2)
        await asyncio.sleep(8)
        assert not first.loader.image.brokers[7].fenced
        await asyncio.sleep(4)
        assert first.loader.image.brokers[7].fenced

    in_virtual_time(scenario)


def test_only_the_active_controller_writes_no_ops() -> None:
    async def scenario(quorum: FakeQuorum, first: Node, second: Node) -> None:
        await asyncio.sleep(5)
        by_epoch = [b.epoch for b in quorum.committed]
        assert set(by_epoch) == {1}
        quorum.elect(2)
        await asyncio.sleep(5)
        assert [b.epoch for b in quorum.committed][len(by_epoch) :].count(2) >= 9

    in_virtual_time(scenario)


def test_an_append_refused_by_the_log_ends_the_leadership() -> None:
    async def scenario(quorum: FakeQuorum, first: Node, second: Node) -> None:
        quorum.leader_id = 2  # the log changes first: no listener is notified yet
        with pytest.raises(NotControllerError):
            await first.controller.handle(registration(1))
        assert not first.controller.is_active

    in_virtual_time(scenario)


def test_heartbeats_and_registrations_go_ahead_of_administrators() -> None:
    async def scenario(quorum: FakeQuorum, first: Node, second: Node) -> None:
        epoch = await broker_in_service(first, 7)
        quorum.auto_commit = False
        heartbeat = controller_pb2.BrokerHeartbeatRequest(
            broker_id=7, broker_epoch=epoch, current_metadata_offset=1_000
        )
        requests = (creation("flights"), heartbeat, registration(8))
        calls = [asyncio.create_task(first.controller.handle(request)) for request in requests]
        await asyncio.sleep(0.01)
        assert [call.done() for call in calls] == [False, True, False], "no record before it"
        assert b"127.0.0.1" in b"".join(quorum.pending[0].values)
        assert b"flights" in b"".join(quorum.pending[-1].values)
        quorum.commit()
        await asyncio.gather(*calls)

    in_virtual_time(scenario)


def test_urgent_work_goes_first_and_a_full_queue_says_so() -> None:
    async def main() -> None:
        queue, ran = EventQueue(limit=2), list[str]()

        def work(name: str) -> Callable[[], int]:
            return lambda: len(ran.append(name) or ())

        for name in ("a", "b"):
            queue.add(work(name))
        with pytest.raises(ThrottlingQuotaExceededError):
            queue.add(work("c"))
        queue.add(work("heartbeat"), urgent=True)
        await asyncio.sleep(1)
        assert ran == ["heartbeat", "a", "b"]
        assert len(queue) == 0

    virtual_time.run(main())


def test_small_pieces_share_a_turn_and_large_ones_leave_room_in_between() -> None:
    async def main() -> None:
        queue, turns = EventQueue(limit=1000), [0]

        def work(records: int) -> int:
            turns[-1] += 1
            return records

        async def drained(pieces: int, records: int) -> list[int]:
            turns[:] = [0]
            for _ in range(pieces):
                queue.add(lambda: work(records))
            while len(queue):
                await asyncio.sleep(0)
                turns.append(0)
            return [count for count in turns if count]

        assert await drained(3, 1) == [3]
        assert await drained(3, RECORDS_PER_TURN) == [1, 1, 1]
        assert await drained(WORK_PER_TURN_MAX + 1, 0) == [WORK_PER_TURN_MAX, 1]

    virtual_time.run(main())
