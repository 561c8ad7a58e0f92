"""A broker's life: registration, fencing, controlled shutdown, on virtual time."""

from __future__ import annotations

import asyncio

import pytest

from node.lifecycle import BrokerLifecycle, BrokerState
from tests import virtual_time
from tests.node.fakes import CLUSTER_ID, FakeController, broker_config, registering_controller
from tidemark.errors import ErrorCode, FatalError
from tidemark.types import random_uuid
from tidemark.v1 import controller_pb2 as pb


def lifecycle_of(controller: FakeController) -> BrokerLifecycle:
    config = broker_config(7, broker_rack="b")
    return BrokerLifecycle(config, CLUSTER_ID, [random_uuid()], 12, controller, lambda: 99)


def test_a_broker_registers_and_stays_fenced_until_it_is_ready() -> None:
    async def main() -> None:
        controller = registering_controller()
        life = lifecycle_of(controller)
        task = asyncio.ensure_future(life.run())
        await life.caught_up.wait()
        assert life.state is BrokerState.RECOVERY
        assert not life.unfenced.is_set()
        life.set_ready()
        await life.unfenced.wait()
        assert life.state is BrokerState.RUNNING
        task.cancel()
        (request,) = controller.seen("RegisterBroker")
        assert (request.broker_id, request.rack, request.cluster_id) == (7, "b", CLUSTER_ID)
        assert request.previous_broker_epoch == 12
        assert [(e.name, e.port) for e in request.listeners] == [("PLAINTEXT", 19097)]
        beat = controller.seen("BrokerHeartbeat")[-1]
        assert (beat.broker_epoch, beat.current_metadata_offset, beat.want_fence) == (42, 99, False)

    virtual_time.run(main())


def test_registration_is_tried_until_a_controller_answers() -> None:
    async def main() -> None:
        controller = registering_controller()
        controller.silent = True
        life = lifecycle_of(controller)
        task = asyncio.ensure_future(life.run())
        await asyncio.sleep(20)
        controller.silent = False
        await life.registered.wait()
        task.cancel()
        assert len(controller.seen("RegisterBroker")) > 2

    virtual_time.run(main())


def test_a_broker_that_can_not_register_in_time_stops() -> None:
    async def main() -> None:
        with pytest.raises(FatalError, match=r"could not register .* controller\.quorum\.voters"):
            await lifecycle_of(FakeController()).run()
        assert asyncio.get_running_loop().time() >= 60

    virtual_time.run(main())


def test_a_broker_of_another_cluster_stops_at_once() -> None:
    async def main() -> None:
        controller = registering_controller()
        controller.handlers["RegisterBroker"] = lambda _: pb.RegisterBrokerResponse(
            error_code=ErrorCode.INCONSISTENT_CLUSTER_ID
        )
        with pytest.raises(FatalError, match="another cluster"):
            await lifecycle_of(controller).run()
        assert asyncio.get_running_loop().time() == 0

    virtual_time.run(main())


def test_a_broker_too_old_for_the_cluster_stops_and_says_what_to_do() -> None:
    async def main() -> None:
        controller = registering_controller()
        controller.handlers["RegisterBroker"] = lambda _: pb.RegisterBrokerResponse(
            error_code=ErrorCode.UNSUPPORTED_VERSION,
            error_message="metadata.version at level 3: install a version that supports it",
        )
        with pytest.raises(FatalError, match=r"refused this broker: .*install a version"):
            await lifecycle_of(controller).run()

    virtual_time.run(main())


def test_the_session_of_an_earlier_process_is_waited_out() -> None:
    async def main() -> None:
        controller = registering_controller()
        answer = controller.handlers["RegisterBroker"]
        controller.handlers["RegisterBroker"] = lambda _: pb.RegisterBrokerResponse(
            error_code=ErrorCode.DUPLICATE_BROKER_REGISTRATION
        )
        life = lifecycle_of(controller)
        task = asyncio.ensure_future(life.run())
        await asyncio.sleep(9)
        assert not task.done()
        controller.handlers["RegisterBroker"] = answer
        await life.registered.wait()
        task.cancel()

    virtual_time.run(main())


def test_a_forgotten_broker_registers_again_and_is_fenced_meanwhile() -> None:
    async def main() -> None:
        controller = registering_controller()
        life = lifecycle_of(controller)
        life.set_ready()
        task = asyncio.ensure_future(life.run())
        await life.unfenced.wait()
        answer = controller.handlers["BrokerHeartbeat"]
        controller.handlers["BrokerHeartbeat"] = lambda _: pb.BrokerHeartbeatResponse(
            error_code=ErrorCode.STALE_BROKER_EPOCH
        )
        await life.fenced.wait()
        controller.handlers["BrokerHeartbeat"] = answer
        await life.unfenced.wait()
        task.cancel()
        first, second = controller.seen("RegisterBroker")[:2]
        assert first.incarnation_id == second.incarnation_id

    virtual_time.run(main())


def test_a_failed_directory_is_told_at_once_and_in_every_heartbeat() -> None:
    async def main() -> None:
        controller = registering_controller()
        life = lifecycle_of(controller)
        life.set_ready()
        task = asyncio.ensure_future(life.run())
        await life.unfenced.wait()
        await asyncio.sleep(0.5)
        before = len(controller.seen("BrokerHeartbeat"))
        failed, *rest = life._directory_ids
        assert rest == []
        life.directory_failed(failed)
        await asyncio.sleep(0.01)
        assert len(controller.seen("BrokerHeartbeat")) == before + 1
        assert life.failures_told.is_set()
        await asyncio.sleep(10)
        beats = controller.seen("BrokerHeartbeat")[before:]
        assert len(beats) > 2
        assert all(list(beat.offline_log_dirs) == [failed.bytes] for beat in beats)
        controller.handlers["BrokerHeartbeat"] = lambda _: pb.BrokerHeartbeatResponse(
            error_code=ErrorCode.STALE_BROKER_EPOCH
        )
        await life.fenced.wait()
        await asyncio.sleep(1)
        assert list(controller.seen("RegisterBroker")[-1].log_dirs) == []
        task.cancel()

    virtual_time.run(main())


def test_a_broker_that_can_not_tell_of_a_failed_directory_stops() -> None:
    async def main() -> None:
        controller = registering_controller()
        life = lifecycle_of(controller)
        life.set_ready()
        task = asyncio.ensure_future(life.run())
        await life.unfenced.wait()
        life.directory_failed(random_uuid())
        await life.wait_until_told()
        controller.silent = True
        life.directory_failed(random_uuid())
        began = asyncio.get_running_loop().time()
        with pytest.raises(FatalError, match=r"log\.dir\.failure\.timeout\.ms"):
            await life.wait_until_told()
        assert asyncio.get_running_loop().time() - began >= 30
        task.cancel()

    virtual_time.run(main())


def test_a_controlled_shutdown_waits_for_the_controllers_leave() -> None:
    async def main() -> None:
        controller = registering_controller()
        controller.handlers["BrokerHeartbeat"] = lambda r: pb.BrokerHeartbeatResponse(
            is_caught_up=True, should_shut_down=len(controller.seen("BrokerHeartbeat")) > 20
        )
        life = lifecycle_of(controller)
        life.set_ready()
        task = asyncio.ensure_future(life.run())
        await life.unfenced.wait()
        await life.begin_controlled_shutdown()
        task.cancel()
        assert life.state is BrokerState.SHUTTING_DOWN
        assert controller.seen("BrokerHeartbeat")[-1].want_shut_down

    virtual_time.run(main())


def test_a_controlled_shutdown_gives_up_when_nobody_answers() -> None:
    async def main() -> None:
        controller = registering_controller()
        life = lifecycle_of(controller)
        life.set_ready()
        task = asyncio.ensure_future(life.run())
        await life.unfenced.wait()
        controller.silent = True
        await life.begin_controlled_shutdown()
        task.cancel()
        assert life.state is BrokerState.SHUTTING_DOWN

    virtual_time.run(main())
