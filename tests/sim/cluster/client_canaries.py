"""Bugs planted in the clients; the whole cluster under some seed must catch each of them."""

from __future__ import annotations

import asyncio
from typing import Any

from tests.sim.cluster.planting import ClusterCanary
from tidemark.client.accumulator import Accumulator
from tidemark.client.batch import State
from tidemark.client.consuming.assignment import Assignment
from tidemark.client.consuming.core import FetchCore
from tidemark.client.consuming.partition import Position
from tidemark.client.consuming.reading import Handed, PollReader
from tidemark.client.producer_core import ProducerCore


class ClientCanary(ClusterCanary):
    """A bug of a client: a few seconds of faults show it."""

    fault_ms = 3_000


_failed = Accumulator.failed


def _falls_behind(self: Any, batch: Any, *args: Any, **kwargs: Any) -> bool:
    again = _failed(self, batch, *args, **kwargs)
    batches = self.queue(batch.topic_partition).batches
    ready = len(batches) > 1 and batches[1].state is State.READY
    if again and not self._idempotent and batches[0] is batch and ready:
        batches[0], batches[1] = batches[1], batches[0]
    return again


class RetriesOutOfOrder(ClientCanary):
    """A producer sends the next batch of a partition before the one that is sent again."""

    patches = ((Accumulator, "failed", _falls_behind),)


def _numbers_anew(self: Any, batch: Any, *args: Any, **kwargs: Any) -> bool:
    again = _failed(self, batch, *args, **kwargs)
    if again and self._idempotent:
        self._restart_sequences(self.queue(batch.topic_partition))
    return again


class NumbersRetriesAnew(ClientCanary):
    """An idempotent producer gives a batch new sequences before it sends it again."""

    patches = ((Accumulator, "failed", _numbers_anew),)


def _hopes(self: Any, request: Any, error: BaseException, now_ms: float) -> list[Any]:
    self._end(request)
    for batch in request.open_batches:
        self.accumulator.succeeded(batch, -1)
    return []


class TakesSilenceForSuccess(ClientCanary):
    """A producer takes a request without an answer for acknowledged."""

    patches = ((ProducerCore, "request_failed", _hopes),)


_poll = PollReader._poll


async def _delivers_early(self: Any, *args: Any) -> Any:
    found = await _poll(self, *args)
    self._assignment.handed_over(found.taken)
    await asyncio.sleep(0.002)
    return Handed(found.result, [], found.fetcher)


class MovesWhenCancelled(ClientCanary):
    """A poll moves the position before it returns, so that a cancelled one skips records (I14)."""

    patches = ((PollReader, "_poll", _delivers_early),)


_hand_over = Assignment._hand_over


class SkipsTheRestOfABatch(ClientCanary):
    """A poll with max_records moves the position to the end of the fetched batches."""

    patches = (
        (
            Assignment,
            "_hand_over",
            lambda self, partition, item, rows: _hand_over(self, partition, item, None),
        ),
    )


def _goes_on_behind(self: Assignment, partition: Any, item: Any, sound: Any, error: Any) -> None:
    if item.is_held:
        self.drop_batches(partition)
        self.move(partition, Position(item.raw.next_offset, item.extent.last_epoch))


class SkipsACorruptBatch(ClientCanary):
    """A consumer goes on behind a batch that does not agree with its CRC, in silence (I15)."""

    patches = ((Assignment, "damaged", _goes_on_behind),)


class KeepsItsPosition(ClusterCanary):
    """A consumer reads on from its position in a log that was truncated below it (KIP-320)."""

    patches = (
        (
            FetchCore,
            "_diverged",
            lambda self, request, partition, ask, diverging, now_ms: self.assignment.move(
                partition, Position(ask.target.offset)
            ),
        ),
    )


class TakesAnswersAfterASeek(ClientCanary):
    """A consumer takes the answer to a fetch from a position that it has left by a seek."""

    patches = ((FetchCore, "_release", lambda self, request_id, topic_partition: None),)


CANARIES: dict[str, type[ClusterCanary]] = {
    "retries-out-of-order": RetriesOutOfOrder,
    "numbers-retries-anew": NumbersRetriesAnew,
    "takes-silence-for-success": TakesSilenceForSuccess,
    "moves-when-cancelled": MovesWhenCancelled,
    "skips-the-rest-of-a-batch": SkipsTheRestOfABatch,
    "takes-answers-after-a-seek": TakesAnswersAfterASeek,
    "skips-a-corrupt-batch": SkipsACorruptBatch,
    "keeps-its-position": KeepsItsPosition,
}

CAUGHT_BY = {
    "retries-out-of-order": "clients: .*order",
    "numbers-retries-anew": "clients: .*no duplicate",
    "takes-silence-for-success": "clients: .*acknowledged",
    "moves-when-cancelled": "clients: .*positions",
    "skips-the-rest-of-a-batch": "clients: .*positions",
    "takes-answers-after-a-seek": "clients: .*positions",
    "skips-a-corrupt-batch": "clients: .*positions",
    "keeps-its-position": "clients: a reader",
}
"""Words of the finding that a bug has to cause."""
