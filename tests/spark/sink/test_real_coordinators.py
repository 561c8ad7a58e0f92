"""Tasks and drivers of the sink on whole nodes in virtual time."""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Iterator, Sequence
from typing import Any

import pyarrow as pa
import pytest

from tidemark.errors import InvalidTxnStateError, TidemarkError
from tidemark.records.arrow import warm_up
from tidemark.spark.sink import decision
from tidemark.spark.sink.coordinators import ClusterCoordinators
from tidemark.spark.sink.core import abort_run, commit_batch, recover
from tidemark.spark.sink.decision import Attempt, Decision, SinkError, sink_name, slots
from tidemark.spark.sink.options import parse_sink_options
from tidemark.spark.sink.tasks import write_attempt, write_plainly
from tidemark.testing import Cluster

SINK = sink_name("orders")
SETTINGS = {"transaction.state.log.num.partitions": "3", "offsets.topic.num.partitions": "2"}


@pytest.fixture
def cluster() -> Iterator[Cluster]:
    warm_up()
    with Cluster(seed=5, brokers=3, settings=SETTINGS) as made:
        made.create_topic("t", 3)
        yield made


def make(cluster: Cluster) -> Callable[..., Any]:
    return lambda servers, **settings: cluster.producer(bootstrap_servers=servers, **settings)


def options(cluster: Cluster) -> Any:
    given = {"bootstrap.servers": cluster.bootstrap_servers, "topic": "t"}
    given["transaction.timeout.ms"] = "20000"
    return parse_sink_options(given, is_stream=True)


def table(values: Sequence[int]) -> pa.RecordBatch:
    return pa.record_batch({"value": pa.array([str(value) for value in values])})


def task(cluster: Cluster, number: int, values: Sequence[int]) -> Attempt:
    ids = slots(SINK, number, 0)
    attempt, count = write_attempt(options(cluster), ids, [table(values)], make(cluster))
    assert attempt is not None and count == len(values)
    return attempt


def coordinators_of(cluster: Cluster) -> ClusterCoordinators:
    return ClusterCoordinators(
        SINK,
        cluster.bootstrap_servers,
        admin=lambda servers, **settings: cluster.asyncio.admin(
            bootstrap_servers=servers, **settings
        ),
        producer=lambda servers, **settings: cluster.asyncio.producer(
            bootstrap_servers=servers, **settings
        ),
    )


def drive(cluster: Cluster, work: Callable[[ClusterCoordinators], Coroutine[Any, Any, Any]]) -> Any:
    async def run() -> Any:
        coordinators = coordinators_of(cluster)
        try:
            return await work(coordinators)
        finally:
            await coordinators.close()

    return cluster.run(run())


def commit(cluster: Cluster, batch: int, run: str, *winners: Attempt) -> Any:
    wanted = Decision(batch, run, "q", winners)
    return drive(cluster, lambda coordinators: commit_batch(coordinators, wanted))


def seen(cluster: Cluster) -> list[int]:
    """The values that readers with read_committed see; up to the end of the log, so that nothing
    is open."""
    with cluster.consumer(isolation_level="read_committed", auto_offset_reset="earliest") as reader:
        partitions = reader.partitions_for("t")
        reader.assign(partitions)
        found: list[int] = []
        for _ in range(6):
            found += [int(record.value or b"") for record in reader.poll(500)]
        return sorted(found)


def open_ids(cluster: Cluster) -> list[str]:
    with cluster.admin() as admin:
        return [each.transactional_id for each in admin.transactions.list(states=["Ongoing"])]


def test_a_batch_is_visible_once_after_losers_replays_and_zombies(cluster: Cluster) -> None:
    winners = [task(cluster, n, range(n * 10, n * 10 + 10)) for n in range(2)]
    task(cluster, 5, range(10))  # it lost, and left its transaction open
    assert seen(cluster) == []
    assert commit(cluster, 0, "a", *winners) is True
    assert not open_ids(cluster)
    assert seen(cluster) == list(range(20))
    again = [task(cluster, 0, range(20))]
    assert commit(cluster, 0, "b", *again) is False
    late = task(cluster, 6, range(10))
    following = task(cluster, 1, range(20, 25))
    assert commit(cluster, 1, "b", following) is True
    assert seen(cluster) == list(range(25))
    with pytest.raises(TidemarkError):
        cluster.admin().transactions.end(*late, committed=True)


def test_a_driver_that_died_behind_its_decision_loses_nothing_to_a_timeout(
    cluster: Cluster,
) -> None:
    winners = [task(cluster, n, range(n * 10, n * 10 + 10)) for n in range(2)]
    wanted = Decision(3, "a", "q", tuple(winners))

    async def die(coordinators: ClusterCoordinators) -> None:
        await coordinators.fence()
        for each in winners:
            await coordinators.prepare(each)
        await coordinators.propose(wanted)
        await coordinators.confirm()

    drive(cluster, die)
    leader = cluster.leader("__transaction_state", 0)
    assert leader is not None
    cluster.kill(leader)
    cluster.start_node(leader)
    cluster.advance(60)
    cluster.wait_until_ready()
    assert seen(cluster) == []
    replayed = task(cluster, 0, range(20))
    assert commit(cluster, 3, "b", replayed) is False
    assert seen(cluster) == list(range(20)) and not open_ids(cluster)


def test_what_a_dead_driver_left_is_ended_by_a_recovery(cluster: Cluster) -> None:
    decided = task(cluster, 0, range(5))
    prepared = task(cluster, 0, range(5, 9))

    async def half(coordinators: ClusterCoordinators) -> None:
        await coordinators.fence()
        await coordinators.prepare(decided)
        await coordinators.propose(Decision(0, "a", "q", (decided,)))
        await coordinators.confirm()
        await coordinators.prepare(prepared)

    drive(cluster, half)
    last, aborted, lost = drive(cluster, recover)
    assert (last.batch, last.winners, aborted, lost) == (0, (decided,), 1, ())
    assert seen(cluster) == list(range(5)) and not open_ids(cluster)


def test_a_task_that_took_too_long_fails_its_batch(cluster: Cluster) -> None:
    slow = task(cluster, 0, range(5))
    cluster.advance(30)
    quick = task(cluster, 1, range(5, 9))
    with pytest.raises(SinkError, match=r"transaction\.timeout\.ms"):
        commit(cluster, 0, "a", slow, quick)
    drive(cluster, lambda found: abort_run(found, 0, "a", [slow, quick]))
    assert seen(cluster) == [] and not open_ids(cluster)


def test_an_older_driver_can_not_decide_any_more(cluster: Cluster) -> None:
    old, new = task(cluster, 0, range(5)), task(cluster, 0, range(5))

    async def overtaken(coordinators: ClusterCoordinators) -> None:
        await coordinators.fence()
        await coordinators.prepare(old)

        newer = coordinators_of(cluster)
        assert await commit_batch(newer, Decision(0, "new", "q", (new,)))
        await newer.close()
        with pytest.raises(TidemarkError):
            await coordinators.propose(Decision(0, "old", "q", (old,)))
        with pytest.raises(TidemarkError):
            await coordinators.confirm()

    drive(cluster, overtaken)
    with pytest.raises(InvalidTxnStateError):
        cluster.admin().transactions.end(*old, committed=True)
    assert seen(cluster) == list(range(5)) and not open_ids(cluster)


@pytest.mark.parametrize("is_whole", [False, True])
def test_a_coordinator_that_is_cut_off_does_not_tell_an_earlier_decision(is_whole: bool) -> None:
    """Clients reach it, and other brokers do not. A driver that begins with its address would take
    a decided batch for a new one."""
    warm_up()
    one = {"transaction.state.log.num.partitions": "1", "offsets.topic.num.partitions": "1"}
    with Cluster(seed=1, brokers=3, settings=one) as cluster:
        cluster.create_topic("t", 3)
        assert commit(cluster, 0, "a", task(cluster, 0, range(3)))
        old = cluster.leader("__consumer_offsets", 0)
        assert old not in (None, cluster.leader("__transaction_state", 0))
        for other in {1, 2, 3} - {old}:
            cluster.cut(old, other)
        cluster.advance(25)
        assert cluster.leader("__consumer_offsets", 0) != old
        decided = task(cluster, 0, range(3, 6))
        assert commit(cluster, 1, "a", decided)
        if is_whole:
            cluster.heal()
        address = f"node-{old}:9092"

        async def look() -> Decision | None:
            coordinators = ClusterCoordinators(
                SINK,
                cluster.bootstrap_servers,
                admin=lambda servers, **settings: cluster.asyncio.admin(
                    bootstrap_servers=address, default_api_timeout_ms=5_000, **settings
                ),
                producer=lambda servers, **settings: cluster.asyncio.producer(
                    bootstrap_servers=servers, **settings
                ),
            )
            try:
                return await coordinators.last_decision()
            finally:
                await coordinators.close()

        if is_whole:
            assert cluster.run(look()) == Decision(1, "a", "q", (decided,))
        else:
            with pytest.raises(TidemarkError):
                cluster.run(look())


def test_many_winners_with_the_decision_in_pieces(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Over coordinators of several brokers, one of which dies."""
    monkeypatch.setattr(decision, "_PIECE_BYTES", 100)
    winners = [task(cluster, n, [n]) for n in range(300, 340)]
    cluster.kill(2)
    cluster.start_node(2)
    assert commit(cluster, 7, "r" * 32, *winners)
    last = drive(cluster, lambda found: found.last_decision())
    assert last == Decision(7, "r" * 32, "q", tuple(winners))
    assert seen(cluster) == list(range(300, 340))


def test_at_least_once_needs_no_driver(cluster: Cluster) -> None:
    given = {"bootstrap.servers": cluster.bootstrap_servers, "topic": "t"}
    given["delivery.guarantee"] = "at-least-once"
    plain = parse_sink_options(given, is_stream=True)
    assert write_plainly(plain, [table(range(7)), table([7])], make(cluster)) == 8
    assert seen(cluster) == list(range(8))


def test_a_task_whose_rows_can_not_be_written_leaves_nothing_open(cluster: Cluster) -> None:
    wrong = pa.record_batch({"value": ["x"] * 2, "partition": pa.array([0, 9], pa.int32())})
    with pytest.raises(TidemarkError, match=r"partition 9 is not in 0\.\.2"):
        write_attempt(options(cluster), [f"{SINK}/0/0"], [wrong], make(cluster))
    assert not open_ids(cluster)


@pytest.mark.parametrize("batches", [20, pytest.param(200, marks=pytest.mark.soak)])
def test_many_batches_leave_few_ids_and_each_attempt_takes_one_that_is_free(
    cluster: Cluster, batches: int
) -> None:
    for batch in range(batches):
        winners = [task(cluster, number, [2 * batch + number]) for number in range(2)]
        assert commit(cluster, batch, "r", *winners)
    with cluster.admin() as admin:
        known = [each.transactional_id for each in admin.transactions.list()]
        assert set(known) <= {SINK, *(f"{SINK}/{n}/{slot}" for n in range(2) for slot in range(3))}
    assert seen(cluster) == list(range(2 * batches))


def test_an_attempt_takes_no_id_of_one_that_is_decided_or_was_lost_by_force(
    cluster: Cluster,
) -> None:
    decided = [task(cluster, number, [number]) for number in range(2)]
    wanted = Decision(0, "a", "q", tuple(decided))

    async def die(coordinators: ClusterCoordinators) -> None:
        await coordinators.fence()
        for each in decided:
            await coordinators.prepare(each)
        await coordinators.propose(wanted)
        await coordinators.confirm()

    drive(cluster, die)
    with cluster.admin() as admin:
        with pytest.raises(InvalidTxnStateError, match="recover-sink"):
            admin.transactions.force_terminate(decided[0].transactional_id)
        admin.transactions.force_terminate(decided[0].transactional_id, lose_prepared=True)
    again = [task(cluster, number, [number]) for number in range(2)]
    assert [each.transactional_id for each in again] == [f"{SINK}/0/1", f"{SINK}/1/1"]
    told = r"1 of its 2 transactions were aborted by force .*/0/0\).*--sink-id orders --accept-loss"
    with pytest.raises(SinkError, match=told):
        commit(cluster, 0, "b", *again)
    done = drive(cluster, lambda found: recover(found, accept_loss=True))
    assert done.lost == (decided[0],) and not open_ids(cluster)
    assert commit(cluster, 1, "b", task(cluster, 0, [5]))
    assert seen(cluster) == [1, 5]
