"""Ends of a producer's transactions: answers that are lost, doubt, cancellation, blocks, close."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from tests.client.fake_cluster import Fault
from tests.client.transactions.fakes import HANG, LOSE, TransactionalCluster, play, state_of, works
from tests.client.virtual_cluster import Make, now_s, scenario
from tidemark.client import (
    AsyncProducer,
    ClientClosedError,
    ConsumerGroupMetadata,
    ErrorKind,
    IllegalStateError,
    TransactionAbortedError,
    TransactionInDoubtError,
    kind_of,
)
from tidemark.client.transactions.core import TransactionState as S
from tidemark.errors import (
    ErrorCode,
    TransactionAbortableError,
    UnknownTopicOrPartitionError,
)
from tidemark.types import TopicPartition

T0, T1 = TopicPartition("t", 0), TopicPartition("t", 1)
GROUP = ConsumerGroupMetadata("g", "m", 7)


def test_an_end_is_asked_for_again_when_its_answer_is_lost_or_the_coordinator_moves() -> None:
    async def story(cluster: TransactionalCluster, producer: AsyncProducer) -> None:
        cluster.fates["EndTxn"].extend([LOSE, ErrorCode.COORDINATOR_LOAD_IN_PROGRESS])
        await works(cluster, producer)
        assert [e.producer_epoch for e in cluster.ends] == [0, 0, 0]
        producer.begin_transaction()
        await producer.send("t", b"aborted", partition=0)
        cluster.coordinator = 2
        cluster.fates["EndTxn"].append(LOSE)
        await producer.abort_transaction()
        await works(cluster, producer)
        assert cluster.committed() == [b"works"] * 2
        assert {s[1] for s in cluster.stamps()} == {0, 1, 2}

    play(story, nodes=2)


def test_nothing_was_sent_so_the_coordinator_is_not_asked() -> None:
    async def story(cluster: TransactionalCluster, producer: AsyncProducer) -> None:
        async with producer.transaction():
            pass
        producer.begin_transaction()
        await producer.abort_transaction()
        producer.begin_transaction()
        await producer.send_offsets_to_transaction({}, GROUP)
        await producer.commit_transaction()
        assert not cluster.ends
        producer.begin_transaction()
        unknown = producer.send("unknown", b"x")
        with pytest.raises(TransactionAbortableError) as told:
            await producer.commit_transaction()
        assert isinstance(told.value.__cause__, UnknownTopicOrPartitionError)
        assert isinstance(unknown.exception(), UnknownTopicOrPartitionError)
        await producer.abort_transaction()
        assert not cluster.ends
        await works(cluster, producer)

    play(story)


def test_a_commit_without_an_answer_is_in_doubt_until_it_is_repeated() -> None:
    async def story(cluster: TransactionalCluster, producer: AsyncProducer) -> None:
        producer.begin_transaction()
        await producer.send("t", b"doubt", partition=0)
        cluster.fates["EndTxn"].extend([LOSE, *[HANG] * 20])
        begun = now_s()
        with pytest.raises(TransactionInDoubtError, match=r"commit_transaction\(\) again"):
            await producer.commit_transaction(3_000)
        assert now_s() - begun <= 3.1
        cluster.fates["EndTxn"].clear()
        for call in (producer.begin_transaction, lambda: producer.send("t", b"x")):
            with pytest.raises(IllegalStateError, match=r"commit_transaction\(\) again"):
                call()
        with pytest.raises(IllegalStateError, match=r"commit_transaction\(\) again"):
            await producer.abort_transaction()
        with pytest.raises(IllegalStateError, match=r"commit_transaction\(\) again"):
            async with producer.transaction():
                pass
        await producer.commit_transaction()
        assert cluster.committed() == [b"doubt"]
        await works(cluster, producer)
        assert {e.committed for e in cluster.ends} == {True}

    play(story)


def test_the_block_of_a_transaction_in_doubt_aborts_nothing_and_close_asks_again() -> None:
    async def story(cluster: TransactionalCluster, producer: AsyncProducer) -> None:
        cluster.fates["EndTxn"].extend([HANG] * 30)
        begun = now_s()
        with pytest.raises(TransactionInDoubtError):
            async with producer.transaction():
                producer.send("t", b"doubt", partition=0)
        assert 7 < now_s() - begun < 8.1, "max.block.ms"
        assert state_of(producer) is S.COMMITTING
        cluster.fates["EndTxn"].clear()
        assert cluster.committed() == []
        await producer.close()
        assert cluster.committed() == [b"doubt"]
        assert {e.committed for e in cluster.ends} == {True}
        with pytest.raises(ClientClosedError):
            producer.begin_transaction()

    play(story)


def test_a_commit_that_comes_after_the_timeout_is_aborted_and_the_producer_goes_on() -> None:
    async def story(cluster: TransactionalCluster, producer: AsyncProducer) -> None:
        producer.begin_transaction()
        await producer.send("t", b"late", partition=0)
        cluster.driver.advance(70_000)
        with pytest.raises(TransactionAbortableError):
            await producer.commit_transaction()
        cluster.tell()
        await producer.abort_transaction()
        await works(cluster, producer)
        assert cluster.committed() == [b"works"]

    play(story)


def test_a_cancelled_commit_says_what_comes_next() -> None:
    async def story(cluster: TransactionalCluster, producer: AsyncProducer) -> None:
        held = asyncio.Event()
        cluster.faults[T0].append(Fault(wait_for=held))
        producer.begin_transaction()
        producer.send("t", b"kept", partition=0)
        task = asyncio.create_task(producer.commit_transaction())
        await asyncio.sleep(0.1)
        assert state_of(producer) is S.FLUSHING
        task.cancel()
        await asyncio.wait([task])
        assert state_of(producer) is S.IN_TRANSACTION, "nothing was decided"
        held.set()
        producer.send("t", b"more", partition=0)
        cluster.fates["EndTxn"].append(LOSE)
        task = asyncio.create_task(producer.commit_transaction())
        await asyncio.sleep(0.1)
        task.cancel()
        await asyncio.wait([task])
        assert state_of(producer) is S.COMMITTING, "it may be decided"
        await producer.commit_transaction()
        assert cluster.committed() == [b"kept", b"more"]

    play(story)


def test_a_cancelled_abort_is_repeated() -> None:
    async def story(cluster: TransactionalCluster, producer: AsyncProducer) -> None:
        repeats: list[Callable[[], Awaitable[None]]] = [
            producer.abort_transaction,
            lambda: works(cluster, producer),
        ]
        for repeat in repeats:
            producer.begin_transaction()
            await producer.send("t", b"gone", partition=0)
            cluster.fates["EndTxn"].append(LOSE)
            task = asyncio.create_task(producer.abort_transaction())
            await asyncio.sleep(0.1)
            task.cancel()
            await asyncio.wait([task])
            assert state_of(producer) is S.ABORTING
            with pytest.raises(IllegalStateError, match=r"abort_transaction\(\) again"):
                producer.begin_transaction()
            await repeat()
        assert cluster.committed() == [b"works"]

    play(story)


def test_an_error_and_a_cancellation_in_the_block_abort() -> None:
    async def story(cluster: TransactionalCluster, producer: AsyncProducer) -> None:
        with pytest.raises(KeyError):
            async with producer.transaction():
                await producer.send("t", b"gone", partition=0)
                unsent = producer.send("t", b"gone", partition=1)
                raise KeyError
        with pytest.raises(TransactionAbortedError):
            await unsent
        assert state_of(producer) is S.READY

        async def work() -> None:
            async with producer.transaction():
                await producer.send("t", b"gone", partition=0)
                await asyncio.sleep(100)

        task = asyncio.create_task(work())
        await asyncio.sleep(1)
        task.cancel()
        await asyncio.wait([task])
        assert task.cancelled()
        assert state_of(producer) is S.READY
        await works(cluster, producer)
        assert cluster.committed() == [b"works"]

    play(story)


def test_the_abort_after_an_error_takes_a_limited_time_and_is_finished_by_the_next_block() -> None:
    async def story(cluster: TransactionalCluster, producer: AsyncProducer) -> None:
        cluster.fates["EndTxn"].extend([HANG] * 40)
        begun = now_s()
        with pytest.raises(KeyError):
            async with producer.transaction():
                await producer.send("t", b"gone", partition=0)
                raise KeyError
        assert now_s() - begun < 5.5
        assert state_of(producer) is S.ABORTING
        cluster.fates["EndTxn"].clear()
        await works(cluster, producer)
        assert cluster.committed() == [b"works"]

    play(story)


def test_a_call_of_another_task_that_hangs_does_not_keep_the_transaction_open() -> None:
    async def story(cluster: TransactionalCluster, producer: AsyncProducer) -> None:
        cluster.fates["TxnOffsetCommit"].extend([HANG] * 40)
        begun = now_s()
        with pytest.raises(KeyError):
            async with producer.transaction():
                await producer.send("t", b"gone", partition=0)
                offsets = producer.send_offsets_to_transaction({T0: 1}, GROUP)
                hanging = asyncio.create_task(offsets)
                await asyncio.sleep(0.1)
                raise KeyError
        assert now_s() - begun < 5.5
        assert state_of(producer) is S.ABORTABLE_ERROR
        await works(cluster, producer)
        await asyncio.gather(hanging, return_exceptions=True)
        assert cluster.committed() == [b"works"]

    play(story)


def test_a_cancelled_flush_at_the_end_of_the_block_aborts() -> None:
    async def story(cluster: TransactionalCluster, producer: AsyncProducer) -> None:
        cluster.faults[T0].append(Fault(wait_for=asyncio.Event()))

        async def work() -> None:
            async with producer.transaction():
                producer.send("t", b"gone", partition=0)

        task = asyncio.create_task(work())
        await asyncio.sleep(0.5)
        task.cancel()
        await asyncio.wait([task])
        assert task.cancelled()
        assert state_of(producer) is S.READY

    play(story)


def test_the_block_leaves_what_its_body_ended(caplog: pytest.LogCaptureFixture) -> None:
    async def story(cluster: TransactionalCluster, producer: AsyncProducer) -> None:
        async with producer.transaction():
            await producer.send("t", b"gone", partition=0)
            await producer.abort_transaction()
        with pytest.raises(KeyError):
            async with producer.transaction():
                await producer.send("t", b"kept", partition=0)
                await producer.commit_transaction()
                raise KeyError
        assert cluster.committed() == [b"kept"]
        assert [e.committed for e in cluster.ends] == [False, True]

    play(story)
    assert not caplog.records, "nothing is left to abort, at the close too"


def test_a_search_for_the_coordinator_is_a_part_of_the_timeout() -> None:
    async def story(cluster: TransactionalCluster, producer: AsyncProducer) -> None:
        producer.begin_transaction()
        await producer.send("t", b"x", partition=0)
        cluster.fates["EndTxn"].append(ErrorCode.NOT_COORDINATOR)
        cluster.hung.add(1)
        begun = now_s()
        with pytest.raises(TransactionInDoubtError):
            await producer.commit_transaction(500)
        assert now_s() - begun < 1.1
        cluster.hung.clear()
        await producer.commit_transaction()

    play(story)


def test_close_aborts_an_open_transaction_within_its_time() -> None:
    async def story(cluster: TransactionalCluster, make: Make) -> None:
        for hangs in (False, True):
            producer = make(transactional_id="x")
            await producer.init_transactions()
            producer.begin_transaction()
            await producer.send("t", b"gone", partition=0)
            unsent = producer.send("t", b"gone", partition=0)
            cluster.fates["EndTxn"].extend([HANG] * (40 if hangs else 0))
            begun = now_s()
            await producer.close(2_000 if hangs else None)
            assert now_s() - begun < 2.1
            with pytest.raises(TransactionAbortedError):
                await unsent
            assert [e.committed for e in cluster.ends] == [False] * len(cluster.ends) != []
            with pytest.raises(ClientClosedError):
                await producer.abort_transaction()
        cluster.fates["EndTxn"].clear()
        later = make(transactional_id="x")
        await works(cluster, later)
        assert cluster.committed() == [b"works"]
        later.begin_transaction()
        await later.send("t", b"gone", partition=0)
        begun = now_s()
        await later.close(0)
        assert now_s() - begun < 0.1

    scenario(story, cluster_type=TransactionalCluster)


def test_close_waits_for_a_commit_that_is_under_way() -> None:
    async def story(cluster: TransactionalCluster, producer: AsyncProducer) -> None:
        held = asyncio.Event()
        cluster.faults[T0].append(Fault(wait_for=held))
        producer.begin_transaction()
        producer.send("t", b"kept", partition=0)
        commit = asyncio.create_task(producer.commit_transaction())
        await asyncio.sleep(0.1)
        close = asyncio.create_task(producer.close())
        await asyncio.sleep(0.1)
        held.set()
        await commit
        await close
        assert cluster.committed() == [b"kept"]

    play(story)


def test_a_block_whose_producer_another_task_closes_does_not_end_as_if_it_had_committed() -> None:
    async def story(cluster: TransactionalCluster, producer: AsyncProducer) -> None:
        async def work() -> None:
            async with producer.transaction():
                await producer.send("t", b"gone", partition=0)
                await asyncio.sleep(5)

        working = asyncio.create_task(work())
        await asyncio.sleep(1)
        await producer.close()
        with pytest.raises(ClientClosedError, match="aborted the transaction"):
            await working
        assert cluster.committed() == []

    play(story)


@pytest.mark.parametrize("what", ["commit", "abort", "offsets"])
def test_a_call_that_waited_for_the_end_of_its_transaction_does_not_touch_the_next_one(
    what: str,
) -> None:
    async def story(cluster: TransactionalCluster, producer: AsyncProducer) -> None:
        async def two() -> None:
            producer.begin_transaction()
            producer.send("t", b"1", partition=0)
            await producer.commit_transaction()
            async with producer.transaction():
                producer.send("t", b"2", partition=0)
                await asyncio.sleep(1)
                producer.send("t", b"2", partition=1)

        working = asyncio.create_task(two())
        await asyncio.sleep(0)
        calls: dict[str, Callable[[], Awaitable[None]]] = {
            "commit": producer.commit_transaction,
            "abort": producer.abort_transaction,
            "offsets": lambda: producer.send_offsets_to_transaction({T0: 1}, GROUP),
        }
        assert state_of(producer) is S.FLUSHING
        with pytest.raises(IllegalStateError, match="another task ended the transaction"):
            await calls[what]()
        await working
        assert cluster.committed() == [b"1", b"2", b"2"]
        assert not cluster.offsets

    play(story)


def test_an_answer_that_can_not_be_read_leaves_a_commit_in_doubt_and_hides_no_error() -> None:
    async def story(cluster: TransactionalCluster, producer: AsyncProducer) -> None:
        async def garbage(*_: object) -> bytes:
            return b"\xff\xff garbage"

        whole, cluster.services["EndTxn"] = cluster.services["EndTxn"], garbage
        producer.begin_transaction()
        await producer.send("t", b"kept", partition=0)
        with pytest.raises(TransactionInDoubtError, match="can not be read"):
            await producer.commit_transaction(500)
        cluster.services["EndTxn"] = whole
        await producer.commit_transaction()
        assert cluster.committed() == [b"kept"]
        cluster.services["EndTxn"] = garbage
        with pytest.raises(KeyError):
            async with producer.transaction():
                await producer.send("t", b"gone", partition=0)
                raise KeyError
        await producer.close()

    play(story)


def test_an_error_that_nobody_foresaw_in_an_abort_hides_neither_the_callers_nor_a_close() -> None:
    async def story(cluster: TransactionalCluster, producer: AsyncProducer) -> None:
        async def broken(*_: object, **__: object) -> None:
            raise RuntimeError("nobody foresaw it")

        with pytest.MonkeyPatch.context() as patched:
            patched.setattr(producer.required_transactions()._coordinator, "call", broken)
            with pytest.raises(KeyError):
                async with producer.transaction():
                    await producer.send("t", b"gone", partition=0)
                    raise KeyError
            assert state_of(producer) is S.ABORTING
        await producer.abort_transaction()
        producer.begin_transaction()
        await producer.send("t", b"doubt", partition=0)
        with pytest.MonkeyPatch.context() as patched:
            patched.setattr(producer.required_transactions()._coordinator, "call", broken)
            with pytest.raises(TransactionInDoubtError, match="nobody foresaw it"):
                await producer.commit_transaction()
            await producer.close()

    play(story)


def test_a_timeout_of_0_does_not_wait_for_the_search_of_the_coordinator() -> None:
    async def story(cluster: TransactionalCluster, producer: AsyncProducer) -> None:
        producer.begin_transaction()
        await producer.send("t", b"kept", partition=0)
        cluster.fates["EndTxn"].append(ErrorCode.NOT_COORDINATOR)
        with pytest.raises(TransactionInDoubtError):
            await producer.commit_transaction(20)
        cluster.hung.add(1)
        begun = now_s()
        with pytest.raises(TransactionInDoubtError):
            await producer.commit_transaction(0)
        assert now_s() - begun < 0.1
        cluster.hung.clear()
        await producer.commit_transaction()

    play(story)


def test_a_commit_that_was_sent_stays_in_doubt_when_the_producer_is_closed() -> None:
    async def story(cluster: TransactionalCluster, producer: AsyncProducer) -> None:
        producer.begin_transaction()
        await producer.send("t", b"doubt", partition=0)
        cluster.fates["EndTxn"].extend([HANG] * 40)
        commit = asyncio.create_task(producer.commit_transaction())
        await asyncio.sleep(0.1)
        await producer.close(0)
        with pytest.raises(TransactionInDoubtError):
            await commit
        assert kind_of(ClientClosedError()) is ErrorKind.RECOVERABLE

    play(story)


def test_a_hung_node_does_not_hold_up_the_search_for_the_coordinator() -> None:
    async def story(cluster: TransactionalCluster, make: Make) -> None:
        cluster.coordinator = 2
        cluster.hung.add(1)
        waits = []
        for seed in range(6):
            producer = make(transactional_id="x", random_seed=seed)
            begun = now_s()
            await producer.init_transactions()
            waits.append(now_s() - begun)
            await producer.close()
        assert 5 < max(waits) < 12, "some asked the hung node first"

    scenario(story, nodes=2, cluster_type=TransactionalCluster)


def test_a_transaction_that_is_handed_over_is_left_to_its_new_owner() -> None:
    async def story(cluster: TransactionalCluster, producer: AsyncProducer) -> None:
        await producer.init_transactions()
        producer.begin_transaction()
        sent = producer.send("t", b"open", partition=0)
        identity = await producer.hand_over_transaction()
        assert sent.done() and identity is not None
        assert identity.producer_epoch == 0
        for call in (producer.commit_transaction, producer.abort_transaction):
            with pytest.raises(IllegalStateError, match="handed over"):
                await call()
        with pytest.raises(IllegalStateError, match="handed over"):
            producer.send("t", b"more")
        await producer.close()
        assert not cluster.ends

    play(story)


def test_a_transaction_without_records_is_not_handed_over() -> None:
    async def story(cluster: TransactionalCluster, producer: AsyncProducer) -> None:
        await producer.init_transactions()
        producer.begin_transaction()
        assert await producer.hand_over_transaction() is None
        assert not cluster.ends

    play(story)


def test_a_transaction_that_lost_a_record_is_not_handed_over_and_aborted_at_the_close() -> None:
    async def story(cluster: TransactionalCluster, producer: AsyncProducer) -> None:
        await producer.init_transactions()
        producer.begin_transaction()
        await producer.send("t", b"there", partition=0)
        producer.send("unknown", b"lost")
        with pytest.raises(TransactionAbortableError):
            await producer.hand_over_transaction()
        await producer.close()
        assert [end.committed for end in cluster.ends] == [False]

    play(story)
