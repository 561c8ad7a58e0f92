"""Random histories of transactions, read at every offset and in every size.

Each answer has exactly the records that a reader of its isolation level may see.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable

import pytest

from commitlog.cleaner.manager import LogCleaner
from node.serving.fetch_session import ConsumerSession, FetchPartition
from node.serving.fetching import FetchParams
from tests.node.cluster import TOPIC, Cluster, Node
from tests.node.fakes import WALL_START_MS, FakeContext
from tests.node.histories import KEYS, Read, TransactionHistory
from tests.node.replication.test_replication import scenario
from tests.tiering.scenarios.table import A, B, Table
from tests.tiering.scenarios.table import scenario as tiered
from tidemark.client.records import RawBatches, decode
from tidemark.errors import ErrorCode
from tidemark.types import OffsetSpec, TopicPartition
from tidemark.v1 import log_pb2
from tidemark.wire import FetchPartitionData, decode_fetch_response

SIZES = (1, 200, 500, 1 << 20)
RACKS = {1: "a", 2: "b"}
ONE = TopicPartition(TOPIC, 0)


async def ask(
    node: Node,
    offset: int,
    *,
    committed: bool = True,
    plain: bool = False,
    max_bytes: int = 1 << 20,
    rack: str = "",
) -> FetchPartitionData:
    """One fetch."""
    request = log_pb2.FetchRequest(
        min_bytes=1,
        max_wait_ms=500,
        isolation_level=int(committed),
        plain_records=plain,
        rack_id=rack,
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


def rows_of(answer: FetchPartitionData, offset: int) -> Read:
    """The records that our consumer, or a stub with plain records, has of an answer."""
    if not answer.payload:
        return [(each.offset, each.value.decode()) for each in answer.plain_records]
    raw = RawBatches(
        ONE, memoryview(answer.payload), offset, answer.next_offset, 0, 0,
        answer.aborted_transactions,
    )  # fmt: skip
    rows = decode(raw)
    values = [value.decode() for value in rows.column("value").to_pylist()]
    return list(zip(rows.column("offset").to_pylist(), values, strict=True))


async def check(
    node: Node,
    history: TransactionHistory,
    offsets: Iterable[int],
    *,
    rack: str = "",
    sizes: Iterable[int] = SIZES,
) -> None:
    """Reads from each of the offsets."""
    for offset in offsets:
        for size in sizes:
            for plain in (False, True):
                answer = await ask(node, offset, plain=plain, max_bytes=size, rack=rack)
                where = (history.rng, offset, size, plain)
                assert offset < answer.next_offset <= history.stable, where
                expected = history.expected(offset, answer.next_offset)
                assert rows_of(answer, offset) == expected, where
        answer = await ask(node, offset, committed=False, rack=rack)
        assert rows_of(answer, offset) == history.expected(
            offset, answer.next_offset, committed=False
        )


def clock() -> int:
    return WALL_START_MS + round(asyncio.get_running_loop().time() * 1000)


def history_of(node: Node, seed: int, *, keyed: bool = False) -> TransactionHistory:
    return TransactionHistory(node.hosted, seed, clock, keyed=keyed)


@pytest.mark.parametrize("seed", range(6))
def test_an_answer_has_the_committed_records_at_every_offset_and_size(seed: int) -> None:
    async def test(cluster: Cluster) -> None:
        cluster.create_topic(replicas=(1,))
        node = cluster.nodes[1]
        history = history_of(node, seed)
        history.fill(90, leaves_open=True)
        assert history.aborted and history.marker_first
        await check(node, history, range(history.stable))

    scenario(test, nodes=(1,))


def test_a_reader_waits_at_the_open_transaction_and_there_alone() -> None:
    async def test(cluster: Cluster) -> None:
        cluster.create_topic(replicas=(1,))
        node = cluster.nodes[1]
        history = history_of(node, 1)
        history.write(None)
        begin = node.hosted().log.log_end_offset
        history.write(5)
        history.write(6)
        history.end(6, committed=True)
        history.write(None)
        assert history.stable == begin
        for plain in (False, True):
            for offset in range(begin, node.hosted().log.log_end_offset + 1):
                answer = await ask(node, offset, plain=plain)
                assert (rows_of(answer, offset), answer.next_offset) == ([], 0)
                assert answer.last_stable_offset == begin
            assert rows_of(await ask(node, 0, plain=plain), 0) == history.expected(0)
        everything = await ask(node, begin, committed=False)
        assert everything.next_offset == node.hosted().log.log_end_offset
        history.end(5, committed=False)
        await check(node, history, range(history.stable))

    scenario(test, nodes=(1,))


@pytest.mark.parametrize("committed", [True, False])
def test_a_fetch_that_waits_is_answered_when_the_transaction_ends(committed: bool) -> None:
    """By itself, and within a session, where more records of the open transaction wake nobody."""

    async def test(cluster: Cluster) -> None:
        cluster.create_topic(replicas=(1,))
        node, loop = cluster.nodes[1], asyncio.get_running_loop()
        history = history_of(node, 2)
        history.write(5, 2)
        session = ConsumerSession()
        session.apply([FetchPartition(TOPIC, 0, 0, 1 << 20)])
        params = FetchParams(60_000, 1, 1 << 20, read_committed=True)
        standing = asyncio.ensure_future(node.handlers.fetch.fetch(params, session))
        request = log_pb2.FetchRequest(min_bytes=1, max_wait_ms=60_000, isolation_level=1)
        request.partitions.add(
            topic=TOPIC, current_leader_epoch=-1, last_fetched_epoch=-1, partition_max_bytes=1 << 20
        )
        alone = asyncio.ensure_future(node.service.fetch(request, FakeContext()))
        await asyncio.sleep(10)
        history.write(5, 1)
        history.write(None, 1)
        await asyncio.sleep(10)
        assert not standing.done() and not alone.done()
        history.end(5, committed=committed)
        begun = loop.time()
        (answer,) = await standing
        (other,) = decode_fetch_response(await alone).responses
        assert loop.time() - begun < 1
        expected = history.expected(0)
        assert len(expected) == (4 if committed else 1)
        assert rows_of(answer, 0) == rows_of(other, 0) == expected
        assert answer.next_offset == 5

    scenario(test, nodes=(1,))


@pytest.mark.parametrize("seed", range(3))
def test_a_follower_answers_its_rack_as_the_leader_does(seed: int) -> None:
    async def test(cluster: Cluster) -> None:
        for number, rack in RACKS.items():
            cluster.start(
                number, broker_rack=rack, replica_selector_class="RackAwareReplicaSelector"
            )
        cluster.create_topic(replicas=(1, 2))
        history = history_of(cluster.nodes[1], seed)
        history.fill(40, leaves_open=True)
        await cluster.settle()
        follower = cluster.nodes[2]
        assert follower.hosted().log.last_stable_offset == history.stable
        await check(follower, history, range(history.stable), rack="b")
        answer = await ask(follower, history.stable, rack="b")
        assert (answer.payload, answer.next_offset) == (b"", 0)

    scenario(test, nodes=())


@pytest.mark.parametrize("committed", [True, False])
def test_a_marker_counts_when_its_replicas_have_it(committed: bool) -> None:
    async def test(cluster: Cluster) -> None:
        cluster.create_topic(replicas=(1, 2))
        node = cluster.nodes[1]
        history = history_of(node, 3)
        history.write(None, 1)
        history.write(5, 2)
        await cluster.settle()
        cluster.cut |= {(1, 2), (2, 1)}
        history.end(5, committed=committed)
        await asyncio.sleep(1)
        answer = await ask(node, 0)
        assert (answer.high_watermark, answer.last_stable_offset, answer.next_offset) == (3, 1, 1)
        assert (await ask(node, 1)).next_offset == 0
        cluster.cut.clear()
        await cluster.settle()
        assert (await ask(node, 1)).last_stable_offset == history.stable == 4
        await check(node, history, range(history.stable))

    scenario(test, nodes=(1, 2))


@pytest.mark.parametrize("clean", [True, False])
@pytest.mark.parametrize("seed", range(3))
def test_a_restarted_broker_and_a_new_leader_answer_the_same(seed: int, clean: bool) -> None:
    async def test(cluster: Cluster) -> None:
        cluster.create_topic(replicas=(1, 2))
        history = history_of(cluster.nodes[1], seed)
        history.fill(50, leaves_open=True)
        stable = history.stable
        await cluster.settle()
        cluster.change(leader=2)
        await cluster.stop(1, clean=clean)
        await check(cluster.nodes[2], history_at(history, cluster.nodes[2]), range(stable))
        cluster.start(1)
        await cluster.settle()
        cluster.change(leader=1)
        await cluster.settle()
        assert cluster.nodes[1].hosted().log.last_stable_offset == stable
        await check(cluster.nodes[1], history_at(history, cluster.nodes[1]), range(stable))

    scenario(test, nodes=(1, 2))


def history_at(history: TransactionHistory, node: Node) -> TransactionHistory:
    """The history, going on at another leader."""
    history.at(node.hosted)
    return history


@pytest.mark.parametrize("seed", range(5))
def test_a_compacted_log_keeps_what_a_reader_needs_to_leave_aborted_records_out(seed: int) -> None:
    """The newest committed record of each key is there after each cleaning, and no aborted one.

    Readers begin anywhere. Markers go when their time is over.
    """

    async def test(cluster: Cluster) -> None:
        cluster.create_topic(
            replicas=(1,),
            cleanup_policy="compact",
            min_cleanable_dirty_ratio="0.0",
            delete_retention_ms="1000",
        )
        node = cluster.nodes[1]
        cleaner = LogCleaner(node.logs, node.config, now_ms=clock)
        cleaner.start()
        history = history_of(node, seed, keyed=True)
        for part in range(5):
            history.fill(25, leaves_open=part == 4)
            history.roll()
            for wait_s in (0, 2):
                await asyncio.sleep(wait_s)
                while cleaner.clean_once() is not None:
                    pass
                await check_compacted(node, history)
        assert cleaner.uncleanable == {}
        kept = len(await read_all(node))
        assert kept < len(history.expected()) / 2, "it was cleaned"

    scenario(test, nodes=(1,))


async def check_compacted(node: Node, history: TransactionHistory) -> None:
    whole = await read_all(node)
    found = dict(whole)
    assert found.items() <= dict(history.expected()).items()
    newest = {history.keys[offset]: offset for offset, _ in history.expected()}
    assert set(newest.values()) <= found.keys()
    assert len(newest) <= KEYS
    for offset in range(0, history.stable, 2):
        for size, plain in ((1, True), (1, False), (300, False)):
            answer = await ask(node, offset, plain=plain, max_bytes=size)
            assert answer.next_offset > offset
            expected = [row for row in whole if offset <= row[0] < answer.next_offset]
            assert rows_of(answer, offset) == expected, (offset, size, plain)


async def read_all(node: Node) -> Read:
    """Reads from the beginning to the last stable offset."""
    offset, found = 0, []
    while offset < node.hosted().log.last_stable_offset:
        answer = await ask(node, offset)
        assert answer.next_offset > offset
        found += rows_of(answer, offset)
        offset = answer.next_offset
    return found


@pytest.mark.parametrize("seed", range(4))
def test_the_tier_and_the_local_log_answer_as_one_log(seed: int) -> None:
    """Transactions that began in the tier end in the local log; the leader that copied answers, and
    then one that began from the tier."""

    async def test(table: Table) -> None:
        table.begin()
        table.isolate(B)
        await asyncio.sleep(31)
        history = history_of(table.nodes[A], seed)
        history.fill(50)
        history.write(5, 2)  # ended in the local log
        history.write(6, 1)
        history.roll()
        history.write(None)
        border = table.log(A).log_end_offset
        history.roll()
        history.write(5, 1)
        history.end(5, committed=False)
        history.write(5, 1)
        history.end(6, committed=True)
        history.end(5, committed=True)
        history.fill(15, rolls=0, leaves_open=True)
        stable = history.stable
        await table.copy(A)
        table.drop_local(A, below=border)
        assert any(not each.txn_index_empty for each in table.remote_segments())
        await check(table.nodes[A], history, range(stable), sizes=(1, 400, 1 << 20))

        table.cut.clear()
        await table.settle()
        assert table.log(B).local_log_start_offset >= border
        table.lead(B)
        await table.settle()
        assert table.log(B).last_stable_offset == stable
        await check(
            table.nodes[B], history_at(history, table.nodes[B]), range(stable), sizes=(1, 1 << 20)
        )

    tiered(test)


def test_only_what_is_stable_is_copied_to_the_tier() -> None:
    async def test(table: Table) -> None:
        table.begin(A)
        history = history_of(table.nodes[A], 0)
        history.write(None, 2)
        history.roll()
        history.write(5, 2)  # at 2
        history.roll()
        history.write(None, 2)
        history.roll()
        history.write(None, 1)
        await table.copy(A)
        assert [each.end_offset for each in table.remote_segments()] == [1]
        history.end(5, committed=False)
        await table.copy(A)
        assert [each.end_offset for each in table.remote_segments()] == [1, 3, 5]

    tiered(test)


@pytest.mark.parametrize("seed", range(3))
def test_offsets_of_a_read_committed_reader_end_at_the_last_stable_one(seed: int) -> None:
    async def test(cluster: Cluster) -> None:
        cluster.create_topic(replicas=(1,))
        node = cluster.nodes[1]
        history = history_of(node, seed)

        async def find(timestamp: int, *, committed: bool) -> int:
            request = log_pb2.ListOffsetsRequest(replica_id=-1, isolation_level=int(committed))
            request.partitions.add(topic=TOPIC, current_leader_epoch=-1, timestamp=timestamp)
            (answer,) = (await node.service.list_offsets(request, None)).partitions
            assert not answer.error_code, answer.error_message
            return int(answer.offset)

        times: list[tuple[int, int]] = []  # of batches: the first offset, and its time
        for _ in range(60):
            await asyncio.sleep(1)
            times.append((node.hosted().log.log_end_offset, clock()))
            history.step()
            end, stable = node.hosted().log.log_end_offset, history.stable
            if end == times[-1][0]:
                times.pop()  # a roll
            assert await find(OffsetSpec.LATEST, committed=True) == stable
            assert await find(OffsetSpec.LATEST, committed=False) == end
            for offset, time_ms in times:
                assert await find(time_ms, committed=False) == offset
                expected = offset if offset < stable else -1
                assert await find(time_ms, committed=True) == expected
            newest = await find(OffsetSpec.MAX_TIMESTAMP, committed=True)
            assert newest == (times[-1][0] if times[-1][0] < stable else -1)

    scenario(test, nodes=(1,))
