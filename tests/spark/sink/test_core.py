"""The driver's commit when calls fail, processes die, and tasks come late."""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Coroutine, Sequence
from random import Random
from typing import Any

import pytest

from tests.spark.sink.world import Cluster, Driver, Killed, Query, caught
from tidemark.errors import TidemarkError, UnsupportedVersionError
from tidemark.spark.sink.core import OpenAttempt, abort_run, commit_batch, recover
from tidemark.spark.sink.decision import Attempt, SinkError, to_pieces

BATCHES, ROWS = 6, 5


def rows_of(batch: int) -> list[int]:
    return list(range(batch * ROWS, (batch + 1) * ROWS))


def calm(query: Query) -> Driver:
    return Driver(query.cluster, Random(0), 0.0)


@pytest.mark.parametrize("seed", range(100))
def test_each_batch_is_there_once_whatever_fails(seed: int) -> None:
    """Also with drivers that hang, and go on when their batch was written again, or recovered."""
    rng = Random(seed)
    cluster = Cluster()
    query = Query(cluster, rng, rng.choice((0.02, 0.05, 0.1)), hangs=rng.choice((0.0, 0.03, 0.1)))

    async def write() -> None:
        for batch in range(BATCHES):
            await query.run(batch, rows_of(batch))
            assert cluster.visible() == list(range((batch + 1) * ROWS))
        await query.settle()
        await recover(calm(query))

    asyncio.run(write())
    assert cluster.visible() == list(range(BATCHES * ROWS))
    assert not cluster.unended()


def test_nothing_is_visible_before_the_decision_and_all_of_it_after_a_recovery() -> None:
    """A driver that dies at each call in turn."""

    class Mortal(Driver):
        def __init__(self, cluster: Cluster, calls: int) -> None:
            super().__init__(cluster, Random(0), 0.0)
            self.left = calls

        async def _stumble(self) -> None:
            self.left -= 1
            if self.left < 0:
                raise Killed

    async def die_after(calls: int) -> bool:
        cluster = Cluster()
        query = Query(cluster, Random(3), 0.0)
        await query.run(0, rows_of(0))
        before = cluster.visible()
        try:
            await commit_batch(Mortal(cluster, calls), query.tasks(1, rows_of(1)))
            died = False
        except Killed:
            died = True
        decided = cluster.pieces[0].startswith("run2 ")
        assert decided or cluster.visible() == before
        if decided:
            cluster.time_out()
            await recover(calm(query))
            assert cluster.visible() == [*rows_of(0), *rows_of(1)]
        else:
            await query.run(1, rows_of(1))
            assert cluster.visible() == [*rows_of(0), *rows_of(1)]
        cluster.time_out()  # of tasks that came late
        assert not cluster.unended()
        return died

    calls = 0
    while asyncio.run(die_after(calls)):
        calls += 1
    assert calls > 12


def test_a_replay_with_other_partitions_is_dropped() -> None:
    cluster = Cluster()
    query = Query(cluster, Random(1), 0.0)

    async def twice() -> tuple[bool, bool]:
        first = await commit_batch(query.driver(), query.tasks(0, rows_of(0)))
        return first, await commit_batch(query.driver(), query.tasks(0, rows_of(0)))

    assert asyncio.run(twice()) == (True, False)
    assert cluster.visible() == rows_of(0) and not cluster.unended()


def test_a_transaction_that_timed_out_fails_the_batch_and_aborts_the_rest() -> None:
    cluster = Cluster()
    query = Query(cluster, Random(2), 0.0)
    wanted = query.tasks(0, rows_of(0))
    cluster.last[wanted.winners[-1].transactional_id].state = "aborted"
    with pytest.raises(SinkError, match=r"transaction\.timeout\.ms"):
        asyncio.run(commit_batch(query.driver(), wanted))
    assert {cluster.state(each) for each in wanted.winners} == {"aborted"} and not cluster.pieces


def test_the_abort_after_a_commit_in_doubt_keeps_what_was_decided() -> None:
    class InDoubt(Driver):
        async def confirm(self) -> None:
            await super().confirm()
            raise TidemarkError("no answer")

    cluster = Cluster()
    query = Query(cluster, Random(4), 0.0)
    wanted = query.tasks(0, rows_of(0))

    async def write() -> None:
        with pytest.raises(TidemarkError, match="no answer"):
            await commit_batch(InDoubt(cluster, Random(0), 0.0), wanted)
        assert cluster.visible() == []
        await abort_run(query.driver(), 0, wanted.run, wanted.winners)

    asyncio.run(write())
    assert cluster.visible() == rows_of(0)


def test_brokers_that_refuse_to_prepare_name_the_other_guarantee() -> None:
    class Refusing(Driver):
        async def prepare(self, attempt: Attempt) -> None:
            raise UnsupportedVersionError("transaction.two.phase.commit.enable=false")

    query = Query(Cluster(), Random(5), 0.0)
    with pytest.raises(SinkError, match=r"set it, or write with delivery\.guarantee=at-least"):
        asyncio.run(
            commit_batch(Refusing(query.cluster, Random(0), 0.0), query.tasks(0, rows_of(0)))
        )


def lose(cluster: Cluster, attempt: Attempt) -> None:
    """Aborts an attempt as `force-terminate --lose-prepared` does."""
    assert cluster.state(attempt) == "prepared"
    cluster.last[attempt.transactional_id].state = "lost"


def test_a_winner_that_is_lost_by_force_is_told_until_the_loss_is_accepted() -> None:
    """Though batches are tried in between, whose tasks take ids that are free."""
    query = Query(Cluster(), Random(11), 0.0)
    cluster = query.cluster
    wanted = query.tasks(0, rows_of(0))
    assert len(wanted.winners) > 1

    class Interfered(Driver):
        async def confirm(self) -> None:
            await super().confirm()
            lose(cluster, wanted.winners[0])

    async def go_on() -> None:
        told = r"1 of its \d transactions were aborted by force .*--sink-id s --accept-loss"
        with pytest.raises(SinkError, match=told):
            await commit_batch(Interfered(cluster, Random(0), 0.0), wanted)
        for _ in range(2):
            following = query.tasks(1, rows_of(1))
            assert wanted.winners[0] not in following.winners
            with pytest.raises(SinkError, match="batch 0 was decided"):
                await commit_batch(query.driver(), following)
            await abort_run(query.driver(), 1, following.run, following.winners)
        with pytest.raises(SinkError, match="batch 0 was decided"):
            await recover(calm(query))
        done = await recover(calm(query), accept_loss=True)
        assert done.lost == wanted.winners[:1] and not cluster.unended()
        assert (await recover(calm(query))).lost == ()
        assert await commit_batch(query.driver(), query.tasks(1, rows_of(1)))

    asyncio.run(go_on())
    kept = set(rows_of(0)) - set(cluster.last[wanted.winners[0].transactional_id].rows)
    assert cluster.visible() == sorted(kept) + rows_of(1)


def test_a_recovery_ends_all_else_though_a_winner_was_lost_by_force() -> None:
    query = Query(Cluster(), Random(7), 0.0)
    cluster = query.cluster
    wanted, left = query.tasks(0, rows_of(0)), query.tasks(1, rows_of(1))
    cluster.pieces = dict(enumerate(to_pieces(wanted)))
    for each in (*wanted.winners, *left.winners):
        cluster.last[each.transactional_id].state = "prepared"
    lose(cluster, wanted.winners[0])
    with pytest.raises(SinkError, match="their records are lost"):
        asyncio.run(recover(calm(query)))
    assert not cluster.unended()


class Stepped(Driver):
    """A driver that makes as many steps as it is allowed to."""

    def __init__(self, cluster: Cluster, dies: bool = False, is_blind: bool = False) -> None:
        super().__init__(cluster, Random(0), 0.0)
        self._dies = dies
        self._is_blind = is_blind
        self._left = 0
        self._turn = asyncio.Event()

    async def _stumble(self) -> None:
        while not self._left:
            self._turn.clear()
            await self._turn.wait()
        self._left -= 1

    async def confirm(self) -> None:
        await super().confirm()
        if self._dies:
            raise Killed

    async def open_attempts(self, but: Collection[str]) -> Sequence[OpenAttempt]:
        return () if self._is_blind else await super().open_attempts(but)

    async def steps(self, count: int) -> None:
        self._left += count
        self._turn.set()
        for _ in range(2 * count + 6):
            await asyncio.sleep(0)


@pytest.mark.parametrize("seeds", [60, pytest.param(2_000, marks=pytest.mark.soak)])
@pytest.mark.parametrize("dies", [False, True])
@pytest.mark.parametrize("other", ["recovery", "abort", "replay", "replay of the batch before"])
def test_two_drivers_at_once_write_the_batch_once_however_their_calls_fall(
    other: str, dies: bool, seeds: int
) -> None:
    """They make some steps in turn. `dies`: the first one does behind its decision."""

    async def both(rng: Random) -> bool:
        query = Query(Cluster(), rng, 0.0)
        cluster = query.cluster
        await query.run(0, rows_of(0))
        again = query.tasks(0 if other.endswith("before") else 1, rows_of(1))
        job, beside = Stepped(cluster, dies), Stepped(cluster, is_blind=rng.random() < 0.3)
        wanted = query.tasks(1, rows_of(1))
        if other == "recovery":
            work: Coroutine[Any, Any, object] = recover(beside)
        elif other == "abort":
            work = abort_run(beside, 1, wanted.run, wanted.winners[:1])
        else:
            work = commit_batch(beside, again)
        tasks = [
            asyncio.create_task(caught(commit_batch(job, wanted))),
            asyncio.create_task(caught(work)),
        ]
        for _ in range(4):
            await beside.steps(rng.randint(0, 6))
            await job.steps(rng.randint(0, 12))
        for driver in rng.sample((job, beside), 2):
            await driver.steps(300)
        assert all(task.done() for task in tasks)
        is_decided = "run1 " not in cluster.pieces[0]
        if not is_decided:
            await query.run(1, rows_of(1))
        await recover(calm(query))
        assert cluster.visible() == [*rows_of(0), *rows_of(1)] and not cluster.unended()
        return is_decided

    decided = [asyncio.run(both(Random(seed))) for seed in range(seeds)]
    assert any(decided)


def test_many_batches_leave_as_many_ids_as_attempts_were_open_at_once() -> None:
    query = Query(Cluster(), Random(9), 0.02, hangs=0.02)

    async def write_all() -> None:
        for batch in range(200):
            await query.run(batch, rows_of(batch))
        await query.settle()

    asyncio.run(write_all())
    assert query.cluster.visible() == list(range(200 * ROWS))
    most = max(int(each.rpartition("/")[2]) for each in query.cluster.last)
    assert len(query.cluster.last) <= 4 * (most + 1) and most < 20
