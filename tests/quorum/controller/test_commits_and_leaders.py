"""The edge of a controller: calls and the commits they wait for, and repeated news of leaders."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from quorum.controller.core import ControllerCore
from quorum.replica.client import LeaderAndEpoch
from tests.quorum.controller.fake_raft import FakeQuorum
from tests.quorum.controller.test_quorum_controller import (
    Node,
    broker_in_service,
    creation,
    in_virtual_time,
    registration,
)
from tidemark.errors import (
    DuplicateBrokerRegistrationError,
    NotControllerError,
    RequestTimedOutError,
)


async def calls(node: Node, *names: str) -> list[asyncio.Task[Any]]:
    """Creations of topics, each appended by a batch of its own and not committed."""
    made = []
    for name in names:
        made.append(asyncio.create_task(node.controller.handle(creation(name))))
        await asyncio.sleep(0.01)
    return made


def test_a_call_is_answered_by_the_commit_of_its_own_records() -> None:
    async def scenario(quorum: FakeQuorum, first: Node, second: Node) -> None:
        await broker_in_service(first, 7)
        quorum.auto_commit = False
        one, two = await calls(first, "one", "two")
        quorum.commit(1)
        await asyncio.sleep(0.001)
        assert (one.done(), two.done()) == (True, False)
        assert "two" in first.controller.core.image.topics, "its own image stays ahead"
        quorum.commit()
        assert (await two).topics[0].error_code == 0

    in_virtual_time(scenario)


def test_a_call_that_timed_out_holds_up_no_other() -> None:
    async def scenario(quorum: FakeQuorum, first: Node, second: Node) -> None:
        await broker_in_service(first, 7)
        quorum.auto_commit = False
        with pytest.raises(RequestTimedOutError):
            await first.controller.handle(creation("late", timeout_ms=50))
        (waiting,) = await calls(first, "waiting")
        quorum.commit()
        await asyncio.sleep(0.001)
        assert waiting.done()
        assert first.loader.publisher_errors == 0

    in_virtual_time(scenario)


def test_a_call_that_is_given_up_before_its_turn_changes_nothing() -> None:
    async def scenario(quorum: FakeQuorum, first: Node, second: Node) -> None:
        given_up: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        given_up.cancel()

        def generate(_: int) -> Any:
            raise AssertionError("its records would be written")

        assert first.controller._process(generate, given_up) == 0

    in_virtual_time(scenario)


def test_repeated_news_of_the_own_leadership_changes_nothing() -> None:
    async def scenario(quorum: FakeQuorum, first: Node, second: Node) -> None:
        await broker_in_service(first, 7)
        quorum.auto_commit = False
        (waiting,) = await calls(first, "t")
        first.controller.on_leader_change(LeaderAndEpoch(1, quorum.epoch))
        second.controller.on_leader_change(LeaderAndEpoch(1, quorum.epoch))
        assert (first.controller.is_active, second.controller.is_active) == (True, False)
        assert "t" in first.controller.core.image.topics
        quorum.commit()
        assert (await waiting).topics[0].error_code == 0

    in_virtual_time(scenario)


def test_a_leader_that_resigned_in_its_epoch_is_not_the_controller() -> None:
    async def scenario(quorum: FakeQuorum, first: Node, second: Node) -> None:
        first.controller.on_leader_change(LeaderAndEpoch(None, quorum.epoch))
        assert not first.controller.is_active
        with pytest.raises(NotControllerError):
            await first.controller.handle(registration(1))

    in_virtual_time(scenario)


def test_a_controller_that_stopped_does_not_begin_again() -> None:
    async def scenario(quorum: FakeQuorum, first: Node, second: Node) -> None:
        await broker_in_service(first, 7)
        first.controller.stop()
        quorum.elect(1)
        assert not first.controller.is_active

    in_virtual_time(scenario)


def test_a_broker_that_registered_is_alive_before_its_first_heartbeat() -> None:
    async def scenario(quorum: FakeQuorum, first: Node, second: Node) -> None:
        await first.controller.handle(registration(1))
        other = registration(1)
        other.incarnation_id = b"2" * 16
        with pytest.raises(DuplicateBrokerRegistrationError):
            await first.controller.handle(other)

    in_virtual_time(scenario)


def test_one_timer_runs_however_many_records_were_appended(monkeypatch: pytest.MonkeyPatch) -> None:
    ticks: list[int] = []
    tick = ControllerCore.tick
    monkeypatch.setattr(
        ControllerCore, "tick", lambda core, now_ms: ticks.append(now_ms) or tick(core, now_ms)
    )

    async def scenario(quorum: FakeQuorum, first: Node, second: Node) -> None:
        await broker_in_service(first, 7)
        for _ in range(20):
            await first.controller.handle(registration(7))
        ticks.clear()
        await asyncio.sleep(0.6)
        assert 1 <= len(ticks) <= 4

    in_virtual_time(scenario)
