"""AsyncProducer's transactions over a virtual cluster: records, errors of each kind, offsets."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pyarrow as pa
import pytest

from tests.client.fake_cluster import Fault
from tests.client.transactions.fakes import HANG, LOSE, TransactionalCluster, play, works
from tests.client.virtual_cluster import Make, now_s, scenario
from tidemark.client import (
    AsyncProducer,
    CommitFailedError,
    ConsumerGroupMetadata,
    IllegalStateError,
    OffsetAndMetadata,
    TransactionAbortedError,
)
from tidemark.errors import (
    ConcurrentTransactionsError,
    ConfigError,
    ErrorCode,
    InvalidTransactionTimeoutError,
    ProducerFencedError,
    RequestTimedOutError,
    TidemarkError,
    TransactionAbortableError,
    error_for,
)
from tidemark.types import TopicPartition

T0, T1 = TopicPartition("t", 0), TopicPartition("t", 1)
GROUP = ConsumerGroupMetadata("g", "m", 7)


def test_records_of_many_partitions_are_committed_together_and_numbered_from_0() -> None:
    async def story(cluster: TransactionalCluster, producer: AsyncProducer) -> None:
        for number in range(3):
            producer.begin_transaction()
            sent = [producer.send("t", b"%d" % number, partition=p) for p in (0, 1)]
            table = pa.RecordBatch.from_pydict({"value": [b"a", b"b"]})
            await producer.send_arrow("t", table, partition=1)
            assert cluster.committed() == [b"%d" % n for n in range(number)] + [
                value for n in range(number) for value in (b"%d" % n, b"a", b"b")
            ]
            await producer.commit_transaction()
            assert all(one.done() for one in sent)
        assert {request.transactional_id for request in cluster.requests} == {"x"}
        assert {request.acks for request in cluster.requests} == {-1}
        (first, *_) = stamps = cluster.stamps()
        assert [s[1:] for s in stamps if s[2] == 0] == [(0, 0), (1, 0), (2, 0)] * 2
        assert {s[0] for s in stamps} == {first[0]}
        assert [(e.producer_epoch, e.committed) for e in cluster.ends] == [
            (0, True), (1, True), (2, True),
        ]  # fmt: skip

    play(story)


def test_sends_outside_of_a_transaction_are_refused() -> None:
    async def story(cluster: TransactionalCluster, producer: AsyncProducer) -> None:
        table = pa.RecordBatch.from_pydict({"value": [b"a"]})
        for _ in range(2):
            with pytest.raises(IllegalStateError, match="begin_transaction"):
                producer.send("t", b"x")
            with pytest.raises(IllegalStateError, match="begin_transaction"):
                producer.send_arrow("t", table)
            with pytest.raises(IllegalStateError, match="begin_transaction"):
                await producer.send_offsets_to_transaction({T0: 1}, GROUP)
            await works(cluster, producer)
        assert not cluster.offsets

    play(story)


def test_settings_that_contradict_each_other_and_calls_without_an_id_are_refused() -> None:
    async def story(cluster: TransactionalCluster, make: Make) -> None:
        for wrong in (
            {"acks": 1}, {"enable_idempotence": False}, {"transactional_id": ""},
            {"transaction_timeout_ms": 0},
        ):  # fmt: skip
            with pytest.raises(ConfigError):
                make(**({"transactional_id": "x"} | wrong))
        plain = make()
        for call in (plain.begin_transaction, plain.transaction):
            with pytest.raises(IllegalStateError, match="give it a transactional_id"):
                call()
        for waits in (plain.init_transactions, plain.commit_transaction, plain.abort_transaction):
            with pytest.raises(IllegalStateError, match="give it a transactional_id"):
                await waits()
        producer = make(transactional_id="x", transaction_timeout_ms=10**9, max_block_ms=2_000)
        with pytest.raises(IllegalStateError, match="init_transactions"):
            producer.send("t", b"x")
        with pytest.raises(InvalidTransactionTimeoutError):
            await producer.init_transactions()
        cluster.fates["InitProducerId"].extend([ErrorCode.COORDINATOR_LOAD_IN_PROGRESS] * 99)
        begun = now_s()
        with pytest.raises(TidemarkError):
            await producer.init_transactions(3_000)
        assert 2 < now_s() - begun <= 3
        await producer.close()

    scenario(story, cluster_type=TransactionalCluster)


def test_the_coordinator_is_asked_until_it_gives_an_id_and_only_once() -> None:
    async def story(cluster: TransactionalCluster, make: Make) -> None:
        cluster.fates["InitProducerId"].extend(
            [
                ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
                ErrorCode.NOT_COORDINATOR,
                ErrorCode.CONCURRENT_TRANSACTIONS,
                LOSE,
            ]
        )
        producer = make(transactional_id="x", request_timeout_ms=1_000, delivery_timeout_ms=9_000)
        await producer.init_transactions()
        assert len(cluster.times("FindCoordinator")) == 3, "again where the coordinator moved"
        asked = len(cluster.times("InitProducerId"))
        await producer.init_transactions()
        assert len(cluster.times("InitProducerId")) == asked
        await works(cluster, producer)
        await producer.close()

    scenario(story, cluster_type=TransactionalCluster)


RETRIED = [
    ErrorCode.CONCURRENT_TRANSACTIONS,
    ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
    ErrorCode.COORDINATOR_NOT_AVAILABLE,
    ErrorCode.NOT_COORDINATOR,
    ErrorCode.NOT_LEADER_OR_FOLLOWER,
]


@pytest.mark.parametrize("code", RETRIED)
def test_a_batch_is_sent_again_after_an_error_that_passes(code: ErrorCode) -> None:
    async def story(cluster: TransactionalCluster, producer: AsyncProducer) -> None:
        await works(cluster, producer)
        cluster.faults[T0].extend([Fault(code)] * 4)
        asked, begun = len(cluster.times("Metadata")), now_s()
        await works(cluster, producer)
        assert cluster.committed() == [b"works"] * 2
        if code == ErrorCode.CONCURRENT_TRANSACTIONS:
            assert now_s() - begun < 0.15, "markers are mostly there soon"
        if code != ErrorCode.NOT_LEADER_OR_FOLLOWER:
            assert len(cluster.times("Metadata")) == asked, "the leader is the right one"

    play(story)


def test_markers_that_do_not_come_are_not_asked_for_at_full_speed() -> None:
    async def story(cluster: TransactionalCluster, producer: AsyncProducer) -> None:
        cluster.faults[T0].extend([Fault(ErrorCode.CONCURRENT_TRANSACTIONS)] * 1_000)
        producer.begin_transaction()
        with pytest.raises(ConcurrentTransactionsError):
            await producer.send("t", b"x", partition=0)
        assert len(cluster.times("ProduceStream")) < 60, "in 20 s"
        cluster.faults[T0].clear()
        await producer.abort_transaction()

    play(story)


ABORTABLE = [
    ErrorCode.TRANSACTION_ABORTABLE,
    ErrorCode.INVALID_TXN_STATE,
    ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER,
    ErrorCode.UNKNOWN_PRODUCER_ID,
    ErrorCode.MESSAGE_TOO_LARGE,
    ErrorCode.UNKNOWN_SERVER_ERROR,
]


@pytest.mark.parametrize("code", ABORTABLE)
def test_a_lost_batch_lets_nothing_but_an_abort_happen(code: ErrorCode) -> None:
    async def story(cluster: TransactionalCluster, producer: AsyncProducer) -> None:
        cluster.faults[T0].append(Fault(code))
        producer.begin_transaction()
        lost = producer.send("t", b"lost", partition=0)
        await asyncio.gather(lost, return_exceptions=True)
        assert isinstance(lost.exception(), type(error_for(code)))
        with pytest.raises(TransactionAbortableError, match="abort_transaction"):
            producer.send("t", b"x")
        with pytest.raises(TransactionAbortableError):
            producer.begin_transaction()
        with pytest.raises(TransactionAbortableError) as told:
            await producer.commit_transaction()
        assert isinstance(told.value.__cause__, type(error_for(code)))
        await producer.abort_transaction()
        await works(cluster, producer)
        assert cluster.committed() == [b"works"]
        assert [e.committed for e in cluster.ends] == [False, True]

    play(story)


def test_the_other_records_of_a_transaction_fail_with_the_lost_one() -> None:
    async def story(cluster: TransactionalCluster, producer: AsyncProducer) -> None:
        held = asyncio.Event()
        cluster.faults[T1].append(Fault(wait_for=held))
        cluster.faults[T0].append(Fault(ErrorCode.TRANSACTION_ABORTABLE))
        with pytest.raises(TransactionAbortableError):
            async with producer.transaction():
                other = producer.send("t", b"1", partition=1)
                await asyncio.sleep(0.01)
                producer.send("t", b"0", partition=0)
                behind = producer.send("t", b"1", partition=1)
        for one in (other, behind):
            with pytest.raises(TransactionAbortedError):
                await one
        held.set()
        await asyncio.sleep(0.1)
        await works(cluster, producer)
        assert cluster.committed() == [b"works"]

    play(story, nodes=2)


FATAL = [
    ErrorCode.PRODUCER_FENCED,
    ErrorCode.INVALID_PRODUCER_EPOCH,
    ErrorCode.INVALID_PRODUCER_ID_MAPPING,
]


@pytest.mark.parametrize("code", FATAL)
@pytest.mark.parametrize("where", ["produce", "commit", "abort", "offsets"])
def test_a_fenced_producer_can_only_be_closed(code: ErrorCode, where: str) -> None:
    async def story(cluster: TransactionalCluster, producer: AsyncProducer) -> None:
        kind = type(error_for(code))
        producer.begin_transaction()
        sent = producer.send("t", b"x", partition=0)
        if where == "produce":
            cluster.faults[T0].append(Fault(code))
        else:
            await sent
            cluster.fates["TxnOffsetCommit" if where == "offsets" else "EndTxn"].append(code)
        with pytest.raises(kind):
            if where == "abort":
                await producer.abort_transaction()
            elif where == "offsets":
                await producer.send_offsets_to_transaction({T0: 1}, GROUP)
            else:
                await producer.commit_transaction()
        calls: list[Callable[[], Awaitable[Any]]] = [
            producer.init_transactions,
            producer.commit_transaction,
            producer.abort_transaction,
            lambda: producer.send_offsets_to_transaction({T0: 1}, GROUP),
        ]
        for call in calls:
            with pytest.raises(kind):
                await call()
        with pytest.raises(kind):
            producer.send("t", b"x")
        with pytest.raises(kind):
            async with producer.transaction():
                pass
        asked = len(cluster.ends)
        await producer.close()
        assert len(cluster.ends) == asked

    play(story)


def test_a_second_producer_fences_the_first() -> None:
    async def story(cluster: TransactionalCluster, make: Make) -> None:
        first, second = make(transactional_id="x"), make(transactional_id="x")
        await first.init_transactions()
        first.begin_transaction()
        await first.send("t", b"first", partition=0)
        await second.init_transactions()
        with pytest.raises(ProducerFencedError):
            await first.commit_transaction()
        await works(cluster, second)
        assert cluster.committed() == [b"works"]
        await first.close()
        await second.close()

    scenario(story, cluster_type=TransactionalCluster)


def test_a_record_that_fits_no_request_or_no_partition_makes_the_transaction_abortable() -> None:
    async def story(cluster: TransactionalCluster, producer: AsyncProducer) -> None:
        for value, partition in ((b"x" * 2_000, 0), (b"x", 9), (b"x", -1)):
            await works(cluster, producer)
            with pytest.raises(TransactionAbortableError):
                async with producer.transaction():
                    producer.send("t", b"fits", partition=0)
                    producer.send("t", value, partition=partition)
        with pytest.raises(TransactionAbortableError) as told:
            async with producer.transaction():
                table = pa.RecordBatch.from_pydict({"other": [b"a"]})
                producer.send_arrow("t", table)
        assert told.value.__cause__ is not None
        assert cluster.committed() == [b"works"] * 3

    play(story, max_request_size=1_000)


def test_an_error_that_nobody_foresaw_fails_the_transaction() -> None:
    async def story(cluster: TransactionalCluster, producer: AsyncProducer) -> None:
        producer.begin_transaction()
        parked = producer.send("unknown", b"x")

        def broken(*_: object, **__: object) -> None:
            raise RuntimeError("nobody foresaw it")

        with pytest.MonkeyPatch.context() as patched:
            patched.setattr(producer._core, "dispatch", broken)
            with pytest.raises(RuntimeError):
                await parked
        with pytest.raises(TransactionAbortableError, match="nobody foresaw it"):
            await producer.commit_transaction()
        await producer.abort_transaction()
        await works(cluster, producer)

    play(story)


def test_a_partition_without_a_leader_ends_in_an_abort() -> None:
    async def story(cluster: TransactionalCluster, producer: AsyncProducer) -> None:
        producer.begin_transaction()
        await producer.send("t", b"gone", partition=0)
        cluster.hung.add(2)
        producer.send("t", b"stuck", partition=1)
        begun = now_s()
        with pytest.raises(TransactionAbortableError) as told:
            await producer.commit_transaction()
        assert isinstance(told.value.__cause__, RequestTimedOutError)
        assert now_s() - begun < 21, "delivery.timeout.ms"
        await producer.abort_transaction()
        await works(cluster, producer)

    play(story, nodes=2)


def test_offsets_go_along_with_the_members_epoch() -> None:
    async def story(cluster: TransactionalCluster, producer: AsyncProducer) -> None:
        await works(cluster, producer)
        cluster.fates["TxnOffsetCommit"].extend(
            [
                ErrorCode.CONCURRENT_TRANSACTIONS,
                ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
                ErrorCode.NOT_COORDINATOR,
            ]
        )
        async with producer.transaction():
            offsets: dict[TopicPartition, int | OffsetAndMetadata] = {
                T0: OffsetAndMetadata(4, 2, "m"),
                T1: 9,
            }
            await producer.send_offsets_to_transaction(offsets, GROUP)
        async with producer.transaction():
            asked = len(cluster.times("FindCoordinator"))
            await producer.send_offsets_to_transaction({T0: 5}, ConsumerGroupMetadata("g"))
            assert len(cluster.times("FindCoordinator")) == asked, "it is known"
        first, second = cluster.offsets
        assert (first.transactional_id, first.producer_epoch) == ("x", 1)
        assert second.producer_epoch == 2
        assert (first.offsets.group_id, first.offsets.member_id) == ("g", "m")
        assert first.offsets.member_epoch == 7
        assert not second.offsets.HasField("member_epoch")
        (topic,) = first.offsets.topics
        assert [p.committed_offset for p in topic.partitions] == [4, 9]
        assert topic.partitions[0].committed_leader_epoch == 2
        assert [e.committed for e in cluster.ends] == [True] * 3
        producer.begin_transaction()
        with pytest.raises(ValueError, match="not negative"):
            await producer.send_offsets_to_transaction({T0: -1}, GROUP)
        for wrong in ("4", None, True):
            with pytest.raises(TypeError, match="an int or OffsetAndMetadata"):
                await producer.send_offsets_to_transaction({T0: wrong}, GROUP)  # type: ignore[dict-item]
        with pytest.raises(TypeError, match="group_metadata"):
            await producer.send_offsets_to_transaction({T0: 4}, "g")  # type: ignore[arg-type]
        await producer.commit_transaction()

    play(story)


@pytest.mark.parametrize(
    ("code", "kind"),
    [
        (ErrorCode.ILLEGAL_GENERATION, CommitFailedError),
        (ErrorCode.UNKNOWN_MEMBER_ID, CommitFailedError),
        (ErrorCode.FENCED_INSTANCE_ID, CommitFailedError),
        (ErrorCode.STALE_MEMBER_EPOCH, CommitFailedError),
        (ErrorCode.OFFSET_METADATA_TOO_LARGE, TidemarkError),
    ],
)
def test_offsets_that_are_refused_make_the_transaction_abortable(
    code: ErrorCode, kind: type[Exception]
) -> None:
    async def story(cluster: TransactionalCluster, producer: AsyncProducer) -> None:
        cluster.fates["TxnOffsetCommit"].append(code)
        producer.begin_transaction()
        with pytest.raises(kind):
            await producer.send_offsets_to_transaction({T0: 1}, GROUP)
        with pytest.raises(TransactionAbortableError):
            await producer.commit_transaction()
        await producer.abort_transaction()
        assert [e.committed for e in cluster.ends] == [False], "it may have been added"
        await works(cluster, producer)

    play(story)


def test_offsets_whose_answer_does_not_come_make_the_transaction_abortable() -> None:
    async def story(cluster: TransactionalCluster, producer: AsyncProducer) -> None:
        cluster.fates["TxnOffsetCommit"].extend([HANG] * 20)
        producer.begin_transaction()
        with pytest.raises(TransactionAbortableError, match="abort_transaction") as told:
            await producer.send_offsets_to_transaction({T0: 1}, GROUP, 2_000)
        assert isinstance(told.value.__cause__, RequestTimedOutError)
        with pytest.raises(TransactionAbortableError):
            producer.send("t", b"x")
        await producer.abort_transaction()
        producer.begin_transaction()
        offsets = producer.send_offsets_to_transaction({T0: 1}, GROUP)
        task = asyncio.create_task(offsets)
        await asyncio.sleep(0.1)
        task.cancel()
        await asyncio.wait([task])
        with pytest.raises(TransactionAbortableError, match="interrupted"):
            await producer.commit_transaction()

    play(story)


def test_records_that_are_too_large_together_are_cut_and_stay_transactional() -> None:
    async def story(cluster: TransactionalCluster, producer: AsyncProducer) -> None:
        cluster.max_batch_bytes = 400
        async with producer.transaction():
            for number in range(40):
                producer.send("t", b"%032d" % number, partition=0)
        assert cluster.committed() == [b"%032d" % number for number in range(40)]
        await works(cluster, producer)

    play(story)


def test_an_error_of_the_callers_own_does_not_fail_the_transaction() -> None:
    async def story(cluster: TransactionalCluster, producer: AsyncProducer) -> None:
        async with producer.transaction():
            with pytest.raises(TypeError):
                producer.send("t", "text")  # type: ignore[arg-type]
            producer.send("t", b"kept", partition=0)
        assert cluster.committed() == [b"kept"]

    play(story)
