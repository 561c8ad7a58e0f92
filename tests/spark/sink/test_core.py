"""The driver's commit when calls fail, processes die, and tasks come late."""

from __future__ import annotations

import asyncio
from random import Random

import pytest

from tests.spark.sink.world import Cluster, Driver, Killed, Query
from tidemark.errors import TidemarkError, UnsupportedVersionError
from tidemark.spark.sink.core import abort_run, commit_batch, recover
from tidemark.spark.sink.decision import Attempt, SinkError, to_pieces

BATCHES, ROWS = 6, 5


def rows_of(batch: int) -> list[int]:
    return list(range(batch * ROWS, (batch + 1) * ROWS))


def calm(query: Query) -> Driver:
    return Driver(query.cluster, Random(0), 0.0)


@pytest.mark.parametrize("seed", range(100))
def test_each_batch_is_there_once_whatever_fails(seed: int) -> None:
    rng = Random(seed)
    cluster = Cluster()
    query = Query(cluster, rng, rng.choice((0.02, 0.05, 0.1)))

    async def write() -> None:
        for batch in range(BATCHES):
            await query.run(batch, rows_of(batch))
            assert cluster.visible() == list(range((batch + 1) * ROWS))
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

        def _stumble(self) -> None:
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
    cluster.transactions[wanted.winners[-1].transactional_id].state = "aborted"
    with pytest.raises(SinkError, match=r"transaction\.timeout\.ms"):
        asyncio.run(commit_batch(query.driver(), wanted))
    states = {cluster.transactions[each.transactional_id].state for each in wanted.winners}
    assert states == {"aborted"} and not cluster.pieces


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


def test_a_winner_that_somebody_else_aborted_is_told_as_lost() -> None:
    query = Query(Cluster(), Random(6), 0.0)
    wanted = query.tasks(0, rows_of(0))

    class Interfered(Driver):
        async def confirm(self) -> None:
            await super().confirm()
            for each in wanted.winners:
                query.cluster.transactions[each.transactional_id].state = "aborted"

    with pytest.raises(SinkError, match="batch 0 was decided, but somebody else ended"):
        asyncio.run(commit_batch(Interfered(query.cluster, Random(0), 0.0), wanted))


def test_a_recovery_ends_all_else_though_a_winner_was_ended_by_somebody() -> None:
    query = Query(Cluster(), Random(7), 0.0)
    cluster = query.cluster
    wanted, left = query.tasks(0, rows_of(0)), query.tasks(1, rows_of(1))
    cluster.pieces = dict(enumerate(to_pieces(wanted)))
    for each in (*wanted.winners, *left.winners):
        cluster.transactions[each.transactional_id].state = "prepared"
    cluster.transactions[wanted.winners[0].transactional_id].state = "aborted"
    with pytest.raises(SinkError, match="lost, unless it was committed before"):
        asyncio.run(recover(calm(query)))
    assert not cluster.unended()
