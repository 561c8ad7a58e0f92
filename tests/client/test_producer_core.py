"""Times, marks and ends of the producer's core, each in the smallest world that shows it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import replace
from itertools import pairwise
from random import Random

import pytest

from tests.client.producer_world import DELIVERY_TIMEOUT_MS, FakeView, World
from tests.virtual_time import run
from tidemark.client.batch import State
from tidemark.client.delivery import ArrowSend, Delivery
from tidemark.client.errors import ClientClosedError
from tidemark.client.producer_core import ProducerCore
from tidemark.client.retry import RetryPolicy
from tidemark.errors import ErrorCode, NetworkError, NotControllerError, RequestTimedOutError
from tidemark.types import TopicPartition
from tidemark.v1 import log_pb2

ZERO = TopicPartition("a", 0)


def known(*, idempotent: bool = False) -> World:
    """A world whose producer knows the topic `a` of one partition."""
    world = World(1, idempotent=idempotent)
    world.make_topic("a", 1)
    world.view.counts["a"] = 1
    world.view.leaders[ZERO] = (world.truth[ZERO], 0)
    return world


def in_flight(world: World) -> log_pb2.ProduceResponse:
    """Sends a record until it is under way; returns an empty answer."""
    world.send("a", 0)
    world.step(flush=True)
    world.encode()
    world.step()
    assert len(world.under_way) == 1
    return log_pb2.ProduceResponse()


def test_the_delivery_time_of_a_table_counts_from_its_send() -> None:
    world = World(1, idempotent=False)
    world.make_topic("a", 1)
    world.send_table("a", [3])
    world.step()
    world.advance(600)
    world.refresh()
    world.step()
    world.now_ms += 50
    world.split()
    world.view.leaders.clear()
    (sent,) = world.sent
    world.advance(DELIVERY_TIMEOUT_MS - 651)
    assert sent.state() == "owned"
    world.advance(2)
    assert sent.state() == "failed"


@pytest.mark.parametrize("state", list(State)[: State.IN_FLIGHT + 1])
def test_an_abort_fails_batches_of_every_state(state: State) -> None:
    world = known()
    world.send("a", 0)
    steps: list[Callable[[], None]] = [
        lambda: world.core.accumulator.close_due(0, everything=True),
        lambda: world.step(flush=True),
        world.encode,
        world.step,
    ]
    for step in steps[:state]:
        step()
    (batch,) = world.core.accumulator.pending()
    assert batch.state is state
    world.abort()
    assert world.sent[0].state() == "failed"
    assert world.core.is_empty
    world.encode()
    world.check()


@pytest.mark.parametrize(("epoch", "waits"), [(0, True), (1, False)])
def test_only_a_leader_that_is_news_is_asked_without_a_pause(epoch: int, waits: bool) -> None:
    """Two nodes that name each other would be asked at full speed."""
    world = known()
    answer = in_flight(world)
    (copy,) = world.under_way
    refused = answer.responses.add(
        topic="a", index=0, error_code=ErrorCode.NOT_LEADER_OR_FOLLOWER, base_offset=-1
    )
    refused.current_leader.leader_id = 3 - copy.request.leader
    refused.current_leader.leader_epoch = epoch
    world.core.answered(copy.request, answer, world.now_ms)
    (batch,) = copy.request.batches
    assert (batch.tries.retry_at_ms > world.now_ms) == waits


@pytest.mark.parametrize("epoch", [0, 1])
def test_a_batch_whose_leader_is_gone_waits_no_longer_than_until_the_next_one_is_known(
    epoch: int,
) -> None:
    world = known()
    in_flight(world)
    (copy,) = world.under_way
    other = 3 - copy.request.leader
    world.core.request_failed(copy.request, NetworkError("gone"), world.now_ms)
    (batch,) = copy.request.batches
    assert batch.tries.retry_at_ms > world.now_ms
    world.under_way.clear()
    world.view.leaders[ZERO] = (other, epoch)
    world.core.refreshed(None, world.now_ms)
    world.step()
    assert [copy.request.leader for copy in world.under_way] == [other] * epoch


@pytest.mark.parametrize("what", ["identity", "metadata"])
def test_what_fails_is_asked_for_again_after_growing_pauses(what: str) -> None:
    world = known(idempotent=True)
    if what == "metadata":
        world.view.leaders.clear()
    world.send("a", 0)
    times: list[float] = []
    while len(times) < 5:
        world.step(flush=True)
        if what == "identity" and world.is_identifying:
            times.append(world.now_ms)
            world.identify(NotControllerError("not yet"))
        elif what == "metadata" and world.is_refreshing:
            times.append(world.now_ms)
            world.refresh(NetworkError("cut"))
        else:
            deadline_ms = world.core.next_deadline_ms(world.now_ms)
            assert deadline_ms is not None
            assert deadline_ms > world.now_ms
            world.now_ms = deadline_ms
    pauses = [later - earlier for earlier, later in pairwise(times)]
    assert all(wait >= 8 * 2**n for n, wait in enumerate(pauses)), pauses


@pytest.mark.parametrize(("after_ms", "limit_ms"), [(100, 500), (1_800, 200)])
def test_a_request_lasts_no_longer_than_its_batches_may(after_ms: int, limit_ms: int) -> None:
    world = known()
    leader = world.view.leaders.pop(ZERO)
    world.send("a", 0)
    world.step(flush=True)
    world.encode()
    world.now_ms = after_ms
    world.view.leaders[ZERO] = leader
    world.step()
    (copy,) = world.under_way
    assert copy.request.timeout_ms == limit_ms


def test_a_refresh_clears_the_mark_that_caused_it() -> None:
    world = known()
    in_flight(world)
    world.lose(NetworkError("cut"))
    world.step()
    assert world.is_refreshing
    world.refresh()
    for _ in range(10):
        world.now_ms += 100
        world.step()
        assert not world.is_refreshing
        if world.under_way:
            break
    assert world.under_way, "and the batch is sent again"


@pytest.mark.parametrize("outcome", [Delivery(), ArrowSend(1)])
def test_a_waiter_that_was_cancelled_keeps_the_outcome_from_no_other(
    outcome: Delivery | ArrowSend,
) -> None:
    async def main() -> None:
        async def wait() -> None:
            if isinstance(outcome, Delivery):
                await outcome
            else:
                await outcome.until_accepted()

        first, second = asyncio.ensure_future(wait()), asyncio.ensure_future(wait())
        await asyncio.sleep(0)
        first.cancel()
        outcome.fail(ClientClosedError("closed"))
        with pytest.raises(ClientClosedError):
            await second
        assert (await asyncio.gather(first, return_exceptions=True))[0].__class__ in (
            asyncio.CancelledError,
            ClientClosedError,
        )

    run(main())


@pytest.mark.parametrize(
    ("error", "state"),
    [(NetworkError("refused"), "owned"), (RequestTimedOutError("slow"), "given out")],
)
def test_with_acks_0_a_record_that_could_not_be_sent_is_not_given_out(
    error: Exception, state: str
) -> None:
    """It is sent again until the delivery timeout; one that was written has its outcome."""
    world = known()
    world.core = ProducerCore(
        world.view,
        replace(world.limits, acks=0),
        linger_ms=5,
        retry=RetryPolicy(DELIVERY_TIMEOUT_MS, 10, 100),
        idempotent=False,
        request_timeout_ms=500,
        rng=Random(1),
    )
    assert isinstance(world.view, FakeView)
    in_flight(world)
    world.lose(error)
    assert world.sent[0].state() == state
    world.view.leaders.clear()
    world.advance(DELIVERY_TIMEOUT_MS + 1)
    assert world.sent[0].state() == ("failed" if state == "owned" else "given out")
