"""Fetches with isolation level read_committed: what they name, and what plain records leave out."""

from __future__ import annotations

import asyncio

import pytest

from commitlog.segment import txn_recovery
from commitlog.segment.indexes import CorruptIndexError
from commitlog.types import AppendOrigin, TransactionsUncheckedError
from tests import virtual_time
from tests.node.cluster import TOPIC, Cluster, Node, batch, values_of
from tests.node.fakes import WALL_START_MS, FakeContext
from tests.node.replication.test_replication import scenario
from tests.node.replication.test_tier import FakeTier
from tidemark.errors import ErrorCode
from tidemark.records import EndTransactionMarker, encode_control_batch
from tidemark.v1 import log_pb2
from tidemark.wire import FetchPartitionData, decode_fetch_response


def write(node: Node, *values: str, producer: int, sequence: int) -> None:
    """Records of a transaction, as with a coordinator that knows it."""
    options = {"producer_id": producer, "producer_epoch": 0, "base_sequence": sequence}
    data = batch(*values, transactional=True, **options)
    hosted = node.hosted()
    hosted.log.append_as_leader(data, hosted.core.leader_epoch, WALL_START_MS, verified=True)
    hosted.appended(0)


def end(node: Node, producer: int, *, committed: bool) -> None:
    marker = encode_control_batch(
        [EndTransactionMarker(committed, 0)],
        base_offset=0,
        timestamp_ms=WALL_START_MS,
        partition_leader_epoch=-1,
        producer_id=producer,
        producer_epoch=0,
    )
    hosted = node.hosted()
    epoch = hosted.core.leader_epoch
    hosted.log.append_as_leader(marker, epoch, WALL_START_MS, origin=AppendOrigin.COORDINATOR)
    hosted.appended(0)


def transactions(node: Node) -> None:
    """Writes offsets 0 to 10; two transactions are aborted, that of the last record is open."""
    node.hosted().log.append_as_leader(batch("a"), 0, WALL_START_MS)
    write(node, "x", producer=5, sequence=0)
    write(node, "y", producer=6, sequence=0)
    write(node, "z", producer=5, sequence=1)
    end(node, 5, committed=False)  # offset 4
    end(node, 6, committed=True)
    write(node, "u", producer=5, sequence=2)  # 6
    end(node, 5, committed=True)
    write(node, "v", producer=6, sequence=1)
    end(node, 6, committed=False)
    write(node, "w", producer=7, sequence=0)  # 10


async def fetch(
    node: Node, offset: int, isolation_level: int, *, plain: bool = False, max_bytes: int = 1 << 20
) -> FetchPartitionData:
    request = log_pb2.FetchRequest(
        min_bytes=1, max_wait_ms=500, isolation_level=isolation_level, plain_records=plain
    )
    request.partitions.add(
        topic=TOPIC,
        fetch_offset=offset,
        current_leader_epoch=-1,
        last_fetched_epoch=-1,
        partition_max_bytes=max_bytes,
    )
    (answer,) = decode_fetch_response(await node.service.fetch(request, FakeContext())).responses
    assert answer.error_code == ErrorCode.NONE, answer.error_message
    return answer


def plain_of(answer: FetchPartitionData) -> list[tuple[int, str]]:
    assert not answer.payload
    return [(record.offset, record.value.decode()) for record in answer.plain_records]


def test_an_answer_names_the_aborted_transactions_with_records_in_it() -> None:
    async def test(cluster: Cluster) -> None:
        cluster.create_topic(replicas=(1,))
        node = cluster.nodes[1]
        transactions(node)
        one = len(batch("a"))
        for offset, max_bytes, aborted, next_offset in (
            (0, 1 << 20, ((5, 1), (6, 8)), 10),
            (0, one, (), 1),
            (0, 2 * one, ((5, 1),), 2),
            (2, one, ((5, 1),), 3),  # a transaction that began before and ends behind
            (5, 1 << 20, ((6, 8),), 10),
            (9, 1 << 20, ((6, 8),), 10),
        ):
            answer = await fetch(node, offset, 1, max_bytes=max_bytes)
            assert (answer.aborted_transactions, answer.next_offset) == (aborted, next_offset)
        answer = await fetch(node, 0, 0)
        assert (answer.aborted_transactions, answer.next_offset) == ((), 11)
        assert values_of(answer.payload)[:1] == ["a"]
        answer = await fetch(node, 10, 1)
        assert (answer.aborted_transactions, answer.next_offset, answer.payload) == ((), 0, b"")

    scenario(test, nodes=(1,))


def test_others_have_their_turn_while_an_index_is_checked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(txn_recovery, "_CHUNK_BYTES", len(batch("a")) + 1)
    turns = 0

    async def turn() -> None:
        nonlocal turns
        while True:
            turns += 1
            await asyncio.sleep(0)

    async def test(cluster: Cluster) -> None:
        cluster.create_topic(replicas=(1,))
        node = cluster.nodes[1]
        transactions(node)
        index = node.hosted().log.active_segment.txn_index
        index.is_checked = False  # as after a restart
        others = asyncio.ensure_future(turn())
        one, other = await asyncio.gather(fetch(node, 0, 1), fetch(node, 8, 1))
        others.cancel()
        assert index.is_checked
        assert (one.aborted_transactions, one.next_offset) == (((5, 1), (6, 8)), 10)
        assert (other.aborted_transactions, other.next_offset) == (((6, 8),), 10)
        assert values_of(one.payload)[:1] == ["a"]

    scenario(test, nodes=(1,))
    assert turns > 3


@pytest.mark.parametrize("paced", [False, True])
def test_records_whose_aborted_transactions_are_unknown_are_not_given_out(
    monkeypatch: pytest.MonkeyPatch, paced: bool
) -> None:
    async def test(cluster: Cluster) -> None:
        cluster.create_topic(replicas=(1,))
        node = cluster.nodes[1]
        transactions(node)
        errors: list[Exception] = [TransactionsUncheckedError()] if paced else []
        errors.append(CorruptIndexError("not an index"))

        def unknown(*_: object, **__: object) -> None:
            raise errors.pop(0)

        monkeypatch.setattr(node.hosted().log, "aborted_transactions", unknown)
        request = log_pb2.FetchRequest(min_bytes=1, isolation_level=1)
        request.partitions.add(
            topic=TOPIC, current_leader_epoch=-1, last_fetched_epoch=-1, partition_max_bytes=1 << 20
        )
        (answer,) = decode_fetch_response(
            await node.service.fetch(request, FakeContext())
        ).responses
        assert answer.error_code == ErrorCode.KAFKA_STORAGE_ERROR
        assert (answer.payload, answer.next_offset) == (b"", 0)

    scenario(test, nodes=(1,))


def test_plain_records_are_those_of_committed_transactions_and_of_none() -> None:
    async def test(cluster: Cluster) -> None:
        cluster.create_topic(replicas=(1,))
        node = cluster.nodes[1]
        transactions(node)
        committed = await fetch(node, 0, 1, plain=True)
        assert plain_of(committed) == [(0, "a"), (2, "y"), (6, "u")]
        assert (committed.next_offset, committed.aborted_transactions) == (10, ())
        everything = await fetch(node, 0, 0, plain=True)
        assert "".join(value for _, value in plain_of(everything)) == "axyzuvw"
        assert plain_of(await fetch(node, 2, 1, plain=True)) == [(2, "y"), (6, "u")]

    scenario(test, nodes=(1,))


def test_a_plain_reader_gets_past_what_is_left_out_and_sees_each_record_once() -> None:
    async def test(cluster: Cluster) -> None:
        cluster.create_topic(replicas=(1,))
        node = cluster.nodes[1]
        transactions(node)
        offset, found = 0, []
        while offset < 10:
            answer = await fetch(node, offset, 1, plain=True, max_bytes=1)
            assert answer.next_offset > offset
            found += plain_of(answer)
            offset = answer.next_offset
        assert found == [(0, "a"), (2, "y"), (6, "u")]

    scenario(test, nodes=(1,))


def test_an_answer_of_the_tier_names_them_too() -> None:
    async def main() -> None:
        tier = FakeTier()
        cluster = Cluster(tier)
        cluster.start(1)
        cluster.create_topic((1,), remote_storage_enable="true", local_retention_bytes="1")
        node = cluster.nodes[1]
        transactions(node)
        end(node, 7, committed=True)
        log = node.hosted().log
        log.roll(WALL_START_MS)
        await node.produce("tail")
        tier.aborted = log.aborted_transactions(0, 10)
        tier.archive(log, WALL_START_MS)
        assert log.local_log_start_offset == 12
        answer = await fetch(node, 5, 1)
        assert (answer.aborted_transactions, answer.next_offset) == (((6, 8),), 12)
        assert (await fetch(node, 5, 0)).aborted_transactions == ()
        plain = plain_of(await fetch(node, 0, 1, plain=True))
        assert plain == [(0, "a"), (2, "y"), (6, "u"), (10, "w")]
        await cluster.stop()

    virtual_time.run(main())
