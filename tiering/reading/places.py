"""Places of work under way that partitions share; what finds none waits for its turn.

A partition whose work hangs leaves places to the others (`tiering.slots`), and room to wait. Where
too many wait, the newest of the partition with most of them is refused.
"""

from __future__ import annotations

import asyncio

from tidemark.types import TopicIdPartition
from tiering.errors import RemoteReadBusyError
from tiering.slots import FairSlots


class FairPlaces:
    """Places of one kind of work; used on one event loop. None is a share of its own."""

    def __init__(self, places: int, waiting_max: int | None = None) -> None:
        self._slots: FairSlots[TopicIdPartition | None, asyncio.Future[None]] = FairSlots(places)
        self._waiting_max = waiting_max

    def close(self) -> None:
        """Cancels what waits."""
        for turn in self._slots.drop_all():
            turn.cancel()

    async def take(self, partition: TopicIdPartition | None) -> None:
        """Takes a place of the partition's share, and waits for one if need be; `free` gives it
        back. Raises RemoteReadBusyError if too many wait.
        """
        if self._slots.take(partition):
            return
        self._make_room(partition)
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._slots.wait(partition, turn)
        try:
            await turn
        except asyncio.CancelledError:
            if turn.done() and not turn.cancelled() and turn.exception() is None:
                self.free(partition)  # the place came at the same moment
            raise

    def free(self, partition: TopicIdPartition | None) -> None:
        """Gives a place back."""
        self._slots.release(partition)
        while (found := self._slots.next()) is not None:
            key, turn = found
            if turn.done():
                self._slots.release(key)
            else:
                turn.set_result(None)

    def _make_room(self, partition: TopicIdPartition | None) -> None:
        if self._waiting_max is None or self._slots.waiting < self._waiting_max:
            return
        longest = self._slots.longest()
        if self._slots.waiting_of(longest) <= self._slots.waiting_of(partition) + 1:
            raise RemoteReadBusyError
        refused = self._slots.drop_newest(longest)
        if not refused.done():
            refused.set_exception(RemoteReadBusyError())
