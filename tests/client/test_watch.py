"""A call is abandoned when its node no longer leads, and for no other reason."""

from __future__ import annotations

import asyncio

import pytest

from tests import virtual_time
from tidemark.client.watch import SLOW_CALL_S, unless_moved
from tidemark.errors import NetworkError


class Slow:
    """A call of a given duration, and a leader that moves at a given time."""

    def __init__(self, lasts_s: float, moves_at_s: float = 1e9) -> None:
        self.lasts_s = lasts_s
        self.moves_at_s = moves_at_s
        self.asked = 0
        self.ended = False

    async def call(self) -> str:
        try:
            await asyncio.sleep(self.lasts_s)
            return "answer"
        finally:
            self.ended = True

    def ask(self) -> None:
        self.asked += 1

    async def outcome(self) -> str:
        def moved() -> bool:
            return asyncio.get_running_loop().time() >= self.moves_at_s

        return await unless_moved(self.call(), moved, self.ask)


def test_a_slow_call_has_the_metadata_looked_at_now_and_then_and_gets_its_answer() -> None:
    slow = Slow(4.5 * SLOW_CALL_S)
    assert virtual_time.run(slow.outcome()) == "answer"
    assert slow.asked == 4


def test_a_call_to_a_node_that_no_longer_leads_is_given_up() -> None:
    slow = Slow(1e6, moves_at_s=2.5 * SLOW_CALL_S)

    async def main() -> None:
        with pytest.raises(NetworkError, match="leader changed"):
            await slow.outcome()
        task = asyncio.current_task()
        assert task is not None and task.cancelling() == 0
        await asyncio.sleep(1)  # nothing of the cancellation is left

    virtual_time.run(main())
    assert slow.ended and slow.asked == 2


@pytest.mark.parametrize("moves_at_s", [1e9, SLOW_CALL_S])
def test_who_stops_waiting_is_not_told_of_another_leader(moves_at_s: float) -> None:
    slow = Slow(1e6, moves_at_s)

    async def main() -> None:
        waiting = asyncio.ensure_future(slow.outcome())
        # at the same moment at which the move is detected
        asyncio.get_running_loop().call_later(SLOW_CALL_S, waiting.cancel)
        await asyncio.wait((waiting,))
        assert waiting.cancelled()
        assert slow.ended

    virtual_time.run(main())


def test_an_error_of_the_call_comes_through_and_stops_the_watch() -> None:
    async def call() -> str:
        await asyncio.sleep(1)
        raise ValueError("broken")

    async def main() -> None:
        asked: list[int] = []
        with pytest.raises(ValueError, match="broken"):
            await unless_moved(call(), lambda: False, lambda: asked.append(1))
        await asyncio.sleep(10 * SLOW_CALL_S)
        assert not asked

    virtual_time.run(main())
