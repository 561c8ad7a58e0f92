"""The lifecycle of a broker: registration, fencing, controlled shutdown, on virtual time."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from types import SimpleNamespace

import pytest

from node.membership.identity import BrokerIdentity
from node.membership.lifecycle import BrokerLifecycle, LifecycleState
from quorum.image import MetadataImage
from tests import virtual_time
from tests.node.fakes import CLUSTER_ID, FakeController, broker_config, registering_controller
from tidemark.errors import ErrorCode, FatalError
from tidemark.types import random_uuid
from tidemark.v1 import controller_pb2 as pb


def lifecycle_of(controller: FakeController) -> BrokerLifecycle:
    config = broker_config(7, broker_rack="b")
    images = SimpleNamespace(image=MetadataImage(offset=99))
    return BrokerLifecycle(
        config, BrokerIdentity(7), CLUSTER_ID, [random_uuid()], 12, controller, images
    )


Scenario = Callable[[FakeController, BrokerLifecycle], Awaitable[None]]


def live(scenario: Scenario, *, ready: bool = False) -> None:
    """Runs a scenario on virtual time beside a broker's lifecycle; with `ready`, once it is
    unfenced."""

    async def main() -> None:
        controller = registering_controller()
        life = lifecycle_of(controller)
        if ready:
            life.set_ready()
        task = asyncio.ensure_future(life.run())
        if ready:
            await life.unfenced.wait()
        await scenario(controller, life)
        if task.done():
            task.result()
        task.cancel()

    virtual_time.run(main())


def refuse(controller: FakeController, rpc: str, error: ErrorCode, message: str = "") -> None:
    """Makes the controller answer `rpc` with an error from now on."""
    kind = getattr(pb, f"{rpc}Response")
    controller.handlers[rpc] = lambda _: kind(error_code=error, error_message=message)


def stops(controller: FakeController, why: str) -> float:
    """Runs a lifecycle that must end with a FatalError matching `why`; returns the time it took."""

    async def main() -> float:
        with pytest.raises(FatalError, match=why):
            await lifecycle_of(controller).run()
        return asyncio.get_running_loop().time()

    return virtual_time.run(main())


def test_a_broker_registers_and_stays_fenced_until_it_is_ready() -> None:
    async def scenario(controller: FakeController, life: BrokerLifecycle) -> None:
        await life.caught_up.wait()
        assert life.state is LifecycleState.RECOVERY
        assert not life.unfenced.is_set()
        life.set_ready()
        await life.unfenced.wait()
        assert life.state is LifecycleState.RUNNING
        (request,) = controller.seen("RegisterBroker")
        assert (request.broker_id, request.rack, request.cluster_id) == (7, "b", CLUSTER_ID)
        assert request.previous_broker_epoch == 12
        assert [(e.name, e.port) for e in request.listeners] == [("PLAINTEXT", 19097)]
        beat = controller.seen("BrokerHeartbeat")[-1]
        assert (beat.broker_epoch, beat.current_metadata_offset, beat.want_fence) == (42, 99, False)

    live(scenario)


def test_registration_is_tried_until_a_controller_answers() -> None:
    async def scenario(controller: FakeController, life: BrokerLifecycle) -> None:
        controller.silent = True
        await asyncio.sleep(20)
        controller.silent = False
        await life.registered.wait()
        assert len(controller.seen("RegisterBroker")) > 2

    live(scenario)


def test_a_broker_that_can_not_register_in_time_stops() -> None:
    assert stops(FakeController(), r"could not register .* controller\.quorum\.voters") >= 60


def test_a_broker_of_another_cluster_stops_at_once() -> None:
    controller = registering_controller()
    refuse(controller, "RegisterBroker", ErrorCode.INCONSISTENT_CLUSTER_ID)
    assert stops(controller, "another cluster") == 0


def test_a_broker_too_old_for_the_cluster_stops_and_says_what_to_do() -> None:
    controller = registering_controller()
    message = "metadata.version at level 3: install a version that supports it"
    refuse(controller, "RegisterBroker", ErrorCode.UNSUPPORTED_VERSION, message)
    stops(controller, r"refused this broker: .*install a version")


def test_the_session_of_an_earlier_process_is_waited_out() -> None:
    async def scenario(controller: FakeController, life: BrokerLifecycle) -> None:
        answer = controller.handlers["RegisterBroker"]
        refuse(controller, "RegisterBroker", ErrorCode.DUPLICATE_BROKER_REGISTRATION)
        await asyncio.sleep(9)
        assert not life.registered.is_set()
        controller.handlers["RegisterBroker"] = answer
        await life.registered.wait()

    live(scenario)


def test_a_forgotten_broker_registers_again_and_is_fenced_meanwhile() -> None:
    async def scenario(controller: FakeController, life: BrokerLifecycle) -> None:
        answer = controller.handlers["BrokerHeartbeat"]
        refuse(controller, "BrokerHeartbeat", ErrorCode.STALE_BROKER_EPOCH)
        await life.fenced.wait()
        controller.handlers["BrokerHeartbeat"] = answer
        await life.unfenced.wait()
        first, second = controller.seen("RegisterBroker")[:2]
        assert first.incarnation_id == second.incarnation_id

    live(scenario, ready=True)


def test_a_failed_directory_is_told_at_once_and_in_every_heartbeat() -> None:
    async def scenario(controller: FakeController, life: BrokerLifecycle) -> None:
        await asyncio.sleep(0.5)
        before = len(controller.seen("BrokerHeartbeat"))
        failed, *rest = life._directory_ids
        assert rest == []
        life.directory_failed(failed)
        await asyncio.sleep(0.01)
        assert len(controller.seen("BrokerHeartbeat")) == before + 1
        assert life.failures_reported.is_set()
        await asyncio.sleep(10)
        beats = controller.seen("BrokerHeartbeat")[before:]
        assert len(beats) > 2
        assert all(list(beat.offline_log_dirs) == [failed.bytes] for beat in beats)
        refuse(controller, "BrokerHeartbeat", ErrorCode.STALE_BROKER_EPOCH)
        await life.fenced.wait()
        await asyncio.sleep(1)
        assert list(controller.seen("RegisterBroker")[-1].log_dirs) == []

    live(scenario, ready=True)


def test_a_broker_that_can_not_tell_of_a_failed_directory_stops() -> None:
    async def scenario(controller: FakeController, life: BrokerLifecycle) -> None:
        life.directory_failed(random_uuid())
        await life.wait_until_reported()
        controller.silent = True
        life.directory_failed(random_uuid())
        began = asyncio.get_running_loop().time()
        with pytest.raises(FatalError, match=r"log\.dir\.failure\.timeout\.ms"):
            await life.wait_until_reported()
        assert asyncio.get_running_loop().time() - began >= 30

    live(scenario, ready=True)


def test_a_controlled_shutdown_waits_for_the_controllers_leave() -> None:
    async def scenario(controller: FakeController, life: BrokerLifecycle) -> None:
        asked = len(controller.seen("BrokerHeartbeat"))
        controller.handlers["BrokerHeartbeat"] = lambda r: pb.BrokerHeartbeatResponse(
            is_caught_up=True, should_shut_down=len(controller.seen("BrokerHeartbeat")) > asked + 20
        )
        await life.begin_controlled_shutdown()
        assert len(controller.seen("BrokerHeartbeat")) > asked + 20
        assert life.state is LifecycleState.SHUTTING_DOWN
        assert controller.seen("BrokerHeartbeat")[-1].want_shut_down

    live(scenario, ready=True)


def test_a_controlled_shutdown_gives_up_when_nobody_answers() -> None:
    async def scenario(controller: FakeController, life: BrokerLifecycle) -> None:
        controller.silent = True
        await life.begin_controlled_shutdown()
        assert life.state is LifecycleState.SHUTTING_DOWN

    live(scenario, ready=True)
