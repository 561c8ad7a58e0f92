"""Leaders and followers over real logs: acks, long polls, ISR, truncation after leader changes,
restarts.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

from commitlog.log.expiration import delete_expired
from node.serving.fetch_session import FetchingReplica
from tests import virtual_time
from tests.node.cluster import TOPIC, Cluster, batch, values_of
from tidemark.errors import ErrorCode


def scenario(
    test: Callable[[Cluster], Awaitable[None]], nodes: tuple[int, ...] = (1, 2, 3), **settings: str
) -> None:
    """Runs `test` on a cluster of these nodes; afterwards no node may have met a fatal error."""

    async def main() -> None:
        cluster = Cluster()
        cluster.start(*nodes, **settings)
        await test(cluster)
        running = list(cluster.nodes.values())
        await cluster.stop()
        assert [node.fatal for node in running] == [[] for _ in running]

    virtual_time.run(main())


def test_acks_all_is_answered_when_every_replica_has_the_records() -> None:
    async def test(cluster: Cluster) -> None:
        cluster.create_topic()
        result = await cluster.nodes[1].produce("a", "b")
        assert (result.error_code, result.base_offset) == (ErrorCode.NONE, 0)
        for node in cluster.nodes.values():
            assert node.hosted().log.log_end_offset == 2
        assert await cluster.nodes[1].read_all() == ["a", "b"]

    scenario(test)


def test_acks_1_and_0_do_not_wait_and_consumers_do_not_see_what_is_not_replicated() -> None:
    async def test(cluster: Cluster) -> None:
        cluster.create_topic()
        await cluster.settle()
        cluster.cut |= {(2, 1)}
        for acks in (1, 0):
            assert (await cluster.nodes[1].produce("a", acks=acks)).error_code == ErrorCode.NONE
        answer = await cluster.nodes[1].fetch(0)
        assert (len(answer.payload), answer.high_watermark) == (0, 0)

    scenario(test)


def test_acks_all_times_out_while_a_member_of_the_isr_is_silent() -> None:
    async def test(cluster: Cluster) -> None:
        cluster.create_topic()
        await cluster.settle()
        cluster.cut |= {(3, 1)}
        result = await cluster.nodes[1].produce("a", timeout_ms=700)
        assert result.error_code == ErrorCode.REQUEST_TIMED_OUT
        assert "may still get them" in result.error_message

    scenario(test)


def test_a_follower_out_of_the_isr_that_falls_silent_holds_no_acks_for_ever() -> None:
    """No request names the partition again: the others have all of it, and sessions are silent."""

    async def test(cluster: Cluster) -> None:
        cluster.create_topic()
        await cluster.nodes[1].produce("a")
        cluster.cut |= {(3, 1)}
        cluster.change(isr=(1, 2))
        straggler = cluster.nodes[1].hosted().core.remotes[3]
        straggler.last_caught_up_ms = cluster.nodes[1].clock.mono_ms()  # it was about to join
        waiting = asyncio.ensure_future(cluster.nodes[1].produce("b", timeout_ms=60_000))
        await asyncio.sleep(32)
        assert not waiting.done()
        cluster.nodes[1].isr.shrink()
        assert (await waiting).error_code == ErrorCode.NONE
        assert set(cluster.partition.isr) == {1, 2}

    scenario(test)


def test_a_silent_follower_leaves_the_isr_and_production_goes_on() -> None:
    async def test(cluster: Cluster) -> None:
        cluster.create_topic(min_insync_replicas="2")
        await cluster.nodes[1].produce("a")
        cluster.cut |= {(3, 1)}
        waiting = asyncio.ensure_future(cluster.nodes[1].produce("b", timeout_ms=60_000))
        await asyncio.sleep(32)
        cluster.nodes[1].isr.shrink()
        assert (await waiting).error_code == ErrorCode.NONE
        assert set(cluster.partition.isr) == {1, 2}

    scenario(test)


def test_a_follower_that_catches_up_joins_the_isr_again() -> None:
    async def test(cluster: Cluster) -> None:
        cluster.create_topic()
        await cluster.nodes[1].produce("a")
        cluster.change(isr=(1, 2))
        await cluster.settle()
        await asyncio.sleep(1)
        assert set(cluster.partition.isr) == {1, 2, 3}
        assert cluster.nodes[1].hosted().core.isr == {1, 2, 3}

    scenario(test)


def test_a_fenced_follower_may_fetch_but_not_join() -> None:
    async def test(cluster: Cluster) -> None:
        cluster.create_topic()
        cluster.fence(3)
        cluster.change(isr=(1, 2))
        await cluster.nodes[1].produce("a")
        await asyncio.sleep(2)
        assert set(cluster.partition.isr) == {1, 2}
        cluster.fence(3, fenced=False)
        await asyncio.sleep(2)
        assert set(cluster.partition.isr) == {1, 2, 3}

    scenario(test)


def test_too_few_replicas_refuse_before_the_append() -> None:
    async def test(cluster: Cluster) -> None:
        cluster.create_topic(min_insync_replicas="2")
        cluster.cut |= {(2, 1), (3, 1)}
        cluster.change(isr=(1,))
        result = await cluster.nodes[1].produce("a")
        assert result.error_code == ErrorCode.NOT_ENOUGH_REPLICAS
        assert cluster.nodes[1].hosted().log.log_end_offset == 0
        assert (await cluster.nodes[1].produce("a", acks=1)).error_code == ErrorCode.NONE

    scenario(test)


def test_a_parked_fetch_wakes_when_records_are_replicated() -> None:
    async def test(cluster: Cluster) -> None:
        cluster.create_topic()
        await cluster.settle()
        loop = asyncio.get_running_loop()
        waiting = asyncio.ensure_future(cluster.nodes[1].fetch(0, max_wait_ms=30_000))
        await asyncio.sleep(1)
        assert not waiting.done()
        before = loop.time()
        await cluster.nodes[1].produce("a")
        assert values_of((await waiting).payload) == ["a"]
        assert loop.time() - before < 0.1
        assert not cluster.nodes[1].hosted().commit_waiters

    scenario(test)


def test_a_parked_fetch_ends_empty_when_its_time_is_over() -> None:
    async def test(cluster: Cluster) -> None:
        cluster.create_topic()
        await cluster.settle()
        before = asyncio.get_running_loop().time()
        answer = await cluster.nodes[1].fetch(0, max_wait_ms=500)
        assert len(answer.payload) == 0
        assert answer.error_code == ErrorCode.NONE
        assert asyncio.get_running_loop().time() - before >= 0.5

    scenario(test)


def test_a_waiting_produce_waits_on_while_the_leader_stays_and_its_epoch_rises() -> None:
    async def test(cluster: Cluster) -> None:
        cluster.create_topic()
        await cluster.settle()
        cluster.cut |= {(2, 1), (3, 1)}
        produced = asyncio.ensure_future(cluster.nodes[1].produce("x", timeout_ms=60_000))
        await asyncio.sleep(0.1)
        for _ in range(2):
            cluster.change(leader=1)
            await asyncio.sleep(0.1)
            assert not produced.done()
        assert cluster.partition.leader_epoch == 2
        cluster.cut.clear()
        result = await produced
        assert (result.error_code, result.base_offset) == (ErrorCode.NONE, 0)
        await cluster.settle()
        assert await cluster.nodes[1].read_all() == ["x"]

    scenario(test)


def test_a_produce_of_a_leader_that_was_away_is_refused_and_its_truncated_record_is_gone() -> None:
    async def test(cluster: Cluster) -> None:
        cluster.create_topic()
        await cluster.settle()
        cluster.cut |= {(2, 1), (3, 1)}
        produced = asyncio.ensure_future(cluster.nodes[1].produce("x", timeout_ms=60_000))
        await asyncio.sleep(0.1)
        cluster.change(leader=2)
        await asyncio.sleep(0)
        assert produced.done(), "at once"
        cluster.cut.clear()
        assert (await cluster.nodes[2].produce("y")).base_offset == 0
        cluster.change(leader=1)
        await cluster.settle()
        assert produced.result().error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER
        assert await cluster.nodes[1].read_all() == ["y"]

    scenario(test)


def test_a_parked_fetch_and_a_waiting_produce_end_when_the_leadership_moves() -> None:
    async def test(cluster: Cluster) -> None:
        cluster.create_topic()
        await cluster.settle()
        cluster.cut |= {(2, 1), (3, 1)}
        produced = asyncio.ensure_future(cluster.nodes[1].produce("x", timeout_ms=60_000))
        fetched = asyncio.ensure_future(cluster.nodes[1].fetch(0, max_wait_ms=60_000))
        await asyncio.sleep(0.1)
        cluster.change(leader=2)
        assert (await produced).error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER
        answer = await fetched
        assert answer.error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER
        assert answer.current_leader == (2, 1)

    scenario(test)


def test_an_old_leader_cuts_what_only_it_had() -> None:
    """KIP-101: an uncommitted end of the log gives way to the new leader's history."""

    async def test(cluster: Cluster) -> None:
        cluster.create_topic()
        await cluster.nodes[1].produce("a", "b")
        cluster.cut |= {(2, 1), (3, 1)}
        await cluster.nodes[1].produce("lost", "lost too", acks=1)
        cluster.change(leader=2, isr=(2, 3))
        assert (await cluster.nodes[2].produce("c")).base_offset == 2
        await cluster.settle()
        assert [await node.read_all() for node in (cluster.nodes[2],)] == [["a", "b", "c"]]
        log = cluster.nodes[1].hosted().log
        assert values_of(log.read(0, 1 << 20).records)[:2] == ["a", "b"]
        assert log.epochs.entries() == cluster.nodes[2].hosted().log.epochs.entries()

    scenario(test)


def test_histories_that_parted_twice_meet_again() -> None:
    """KIP-279: both sides wrote in epochs the other never had; the follower truncates epoch by
    epoch."""

    async def test(cluster: Cluster) -> None:
        cluster.create_topic(replicas=(1, 2))
        await cluster.nodes[1].produce("a", "b", "c")
        cluster.cut |= {(1, 2), (2, 1)}
        await cluster.nodes[1].produce("x1", acks=1)
        cluster.change(leader=2, isr=(2,))
        await cluster.nodes[2].produce("y1", "y2", acks=1)
        cluster.change(leader=1, isr=(1,))
        await cluster.nodes[1].produce("x2", "x3", acks=1)
        cluster.change(leader=2, isr=(2,))
        await cluster.nodes[2].produce("y3", acks=1)
        cluster.cut.clear()
        await cluster.settle()
        one, two = (cluster.nodes[n].hosted().log for n in (1, 2))
        assert one.epochs.entries() == two.epochs.entries()
        assert await cluster.nodes[2].read_all() == ["a", "b", "c", "y1", "y2", "y3"]
        cluster.change(leader=1, isr=(1, 2))
        await cluster.settle()
        assert await cluster.nodes[1].read_all() == ["a", "b", "c", "y1", "y2", "y3"]

    scenario(test, nodes=(1, 2))


def test_a_restarted_broker_takes_its_log_up_again() -> None:
    async def test(cluster: Cluster) -> None:
        cluster.create_topic()
        await cluster.nodes[1].produce("a")
        await cluster.stop(3)
        cluster.change(isr=(1, 2))
        await cluster.nodes[1].produce("b")
        cluster.start(3)
        assert cluster.nodes[3].hosted().log.log_end_offset == 1
        await cluster.settle()
        await asyncio.sleep(1)
        assert set(cluster.partition.isr) == {1, 2, 3}

    scenario(test)


def test_a_broker_that_lost_its_disk_is_not_counted_by_its_old_fetches() -> None:
    """KIP-903: acknowledgements of the old process do not count for the new one."""

    async def test(cluster: Cluster) -> None:
        cluster.create_topic()
        await cluster.nodes[1].produce("a", "b")
        await cluster.stop(3)
        del cluster.disks[3]
        cluster.cut |= {(3, 1)}
        cluster.start(3)
        core = cluster.nodes[1].hosted().core
        cluster.change(isr=(1, 2))
        assert core.maybe_expand_isr(3) is None  # fetched by another process than the one alive
        cluster.cut.clear()
        await cluster.settle()
        await asyncio.sleep(1)
        assert set(cluster.partition.isr) == {1, 2, 3}

    scenario(test)


def test_a_follower_below_the_leaders_start_begins_there() -> None:
    async def test(cluster: Cluster) -> None:
        cluster.create_topic(replicas=(1, 2, 3))
        cluster.cut |= {(3, 1)}
        cluster.change(isr=(1, 2))
        for value in ("a", "b", "c"):
            await cluster.nodes[1].produce(value)
            cluster.nodes[1].hosted().log.roll(cluster.nodes[1].clock.wall_ms())
        log = cluster.nodes[1].hosted().log
        log.increment_log_start_offset(2)
        delete_expired(log, cluster.nodes[1].clock.wall_ms())
        cluster.cut.clear()
        await cluster.settle()
        follower = cluster.nodes[3].hosted().log
        assert (follower.log_start_offset, follower.log_end_offset) == (2, 3)

    scenario(test)


def test_a_deleted_topic_leaves_nothing_and_its_name_can_be_used_again() -> None:
    async def test(cluster: Cluster) -> None:
        cluster.create_topic()
        await cluster.nodes[1].produce("old")
        parked = asyncio.ensure_future(cluster.nodes[1].fetch(1, max_wait_ms=60_000))
        await asyncio.sleep(0.1)
        cluster.delete_topic()
        assert (await parked).error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        cluster.create_topic()
        assert (await cluster.nodes[1].produce("new")).base_offset == 0
        assert await cluster.nodes[1].read_all() == ["new"]

    scenario(test)


def test_a_fetch_of_many_partitions_gives_at_least_one_batch_and_respects_the_rest() -> None:
    async def test(cluster: Cluster) -> None:
        cluster.create_topic(replicas=(1,))
        await cluster.nodes[1].produce("x" * 500)
        await cluster.nodes[1].produce("y" * 500)
        answer = await cluster.nodes[1].fetch(0, max_bytes=10)
        assert values_of(answer.payload) == ["x" * 500]
        answer = await cluster.nodes[1].fetch(0, max_bytes=700)
        assert values_of(answer.payload) == ["x" * 500]

    scenario(test, nodes=(1,))


def test_a_long_poll_waits_for_min_bytes() -> None:
    async def test(cluster: Cluster) -> None:
        cluster.create_topic(replicas=(1,))
        waiting = asyncio.ensure_future(
            cluster.nodes[1].fetch(0, max_wait_ms=60_000, min_bytes=1_000)
        )
        await cluster.nodes[1].produce("x" * 500)
        await asyncio.sleep(1)
        assert not waiting.done()
        await cluster.nodes[1].produce("y" * 500)
        assert len(values_of((await waiting).payload)) == 2

    scenario(test, nodes=(1,))


def test_an_idempotent_batch_sent_twice_is_written_once() -> None:
    async def test(cluster: Cluster) -> None:
        cluster.create_topic()
        raw = batch("a", producer_id=7, producer_epoch=0, base_sequence=0)
        first = await cluster.nodes[1].produce(raw=raw)
        again = await cluster.nodes[1].produce(raw=raw)
        assert (first.base_offset, again.base_offset) == (0, 0)
        assert again.error_code == ErrorCode.NONE
        assert cluster.nodes[1].hosted().log.log_end_offset == 1

    scenario(test)


def test_followers_take_over_sequences_and_refuse_gaps_as_leaders() -> None:
    async def test(cluster: Cluster) -> None:
        cluster.create_topic()
        options = {"producer_id": 7, "producer_epoch": 0}
        await cluster.nodes[1].produce(raw=batch("a", base_sequence=0, **options))
        cluster.change(leader=2)
        gap = await cluster.nodes[2].produce(raw=batch("c", base_sequence=2, **options))
        assert gap.error_code == ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
        again = await cluster.nodes[2].produce(raw=batch("a", base_sequence=0, **options))
        assert (again.error_code, again.base_offset) == (ErrorCode.NONE, 0)

    scenario(test)


def test_a_followers_divergence_is_told_in_its_fetch() -> None:
    async def test(cluster: Cluster) -> None:
        cluster.create_topic(replicas=(1, 2))
        cluster.cut |= {(2, 1)}
        await cluster.nodes[1].produce("a", "b", acks=1)
        cluster.change(leader=2, isr=(2,))
        cluster.change(leader=1, isr=(1,))
        answer = await cluster.nodes[1].fetch(
            5, replica=FetchingReplica(2, 99), current_leader_epoch=2, last_fetched_epoch=1
        )
        assert answer.error_code == ErrorCode.NONE
        assert answer.diverging_epoch == (0, 2)

    scenario(test, nodes=(1, 2))


def test_topic_name_in_answers_is_the_one_asked_for() -> None:
    async def test(cluster: Cluster) -> None:
        cluster.create_topic(replicas=(1,))
        answer = await cluster.nodes[1].fetch(0, topic="", topic_id=cluster.topic_id.bytes)
        assert (answer.topic, answer.error_code) == (TOPIC, ErrorCode.NONE)

    scenario(test, nodes=(1,))
