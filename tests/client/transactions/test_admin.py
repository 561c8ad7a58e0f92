"""Administration of transactions on whole brokers, in virtual time."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from tests.node.coordination.stubs import SETTINGS, Stubs, Transactions
from tidemark.client import AsyncAdmin
from tidemark.client.coordinators import CoordinatorCalls
from tidemark.client.metadata import MetadataCache
from tidemark.client.transactions import leaders
from tidemark.client.transactions.admin import AsyncTransactionAdmin
from tidemark.errors import (
    CoordinatorNotAvailableError,
    InvalidRegularExpressionError,
    InvalidRequestError,
    InvalidTxnStateError,
    ProducerFencedError,
    TransactionalIdNotFoundError,
    TransactionCoordinatorFencedError,
    UnknownServerError,
    UnknownTopicOrPartitionError,
)
from tidemark.records import Record, encode_batch
from tidemark.testing import Cluster
from tidemark.testing.node import EPOCH_MS
from tidemark.types import TopicPartition
from tidemark.v1 import transaction_pb2 as pb

A0, A1, B0 = TopicPartition("a", 0), TopicPartition("a", 1), TopicPartition("b", 0)
MINUTE_MS = 60_000
STRANGER = 4711

Story = Callable[[Stubs, AsyncAdmin], Coroutine[Any, Any, None]]


def told(story: Story, *, options: dict[str, Any] | None = None, **settings: str) -> None:
    """Runs a story on three brokers with the topics a and b, of two partitions each."""
    more = {key.replace("_", "."): value for key, value in settings.items()}
    with Cluster(seed=3, brokers=3, controllers=1, settings=SETTINGS | more) as cluster:
        for topic in ("a", "b"):
            cluster.create_topic(topic, 2, min_insync_replicas="2")

        async def run() -> None:
            async with cluster.asyncio.admin(**(options or {})) as admin:
                await story(Stubs(cluster), admin)

        cluster.run(run())


def append(stubs: Stubs, partition: TopicPartition, data: bytes) -> int:
    """Appends a batch that no coordinator was asked about; returns its offset."""
    node = stubs.cluster.leader(*partition)
    server: Any = None if node is None else stubs.cluster.nodes[node].server
    hosted = server.broker.partitions.find(partition)
    begin: int = hosted.log.log_end_offset
    now_ms = EPOCH_MS + stubs.cluster.now_ms
    hosted.log.append_as_leader(data, hosted.core.leader_epoch, now_ms, verified=True)
    hosted.appended(0)
    return begin


def hang(stubs: Stubs, partition: TopicPartition, epoch: int = 2) -> int:
    """Begins a transaction that no coordinator knows; returns its offset."""
    now_ms = EPOCH_MS + stubs.cluster.now_ms
    data = encode_batch(
        [Record(0, now_ms, None, b"lost")],
        producer_id=STRANGER,
        producer_epoch=epoch,
        base_sequence=0,
        transactional=True,
    )
    return append(stubs, partition, data)


def test_transactional_ids_of_all_brokers_are_listed_and_filtered() -> None:
    async def story(stubs: Stubs, admin: AsyncAdmin) -> None:
        made = {}
        for name in ("one", "two", "three", "four"):
            made[name] = await Transactions(stubs, name).init()
        await made["one"].send("a", 0, "x")
        await asyncio.sleep(5)
        await made["two"].send("a", 1, "y")
        listed = await admin.transactions.list()
        assert [each.transactional_id for each in listed] == ["four", "one", "three", "two"]
        assert len({each.coordinator_id for each in listed}) > 1
        for each in listed:
            assert each.coordinator_id == await stubs.coordinator(each.transactional_id)
            assert each.producer_id == made[each.transactional_id].producer_id

        async def names(**filters: Any) -> list[str]:
            return [each.transactional_id for each in await admin.transactions.list(**filters)]

        assert await names(states=["ongoing"]) == ["one", "two"]
        assert await names(states=["Empty"], pattern="t.*") == ["three"]
        assert await names(older_than_ms=4_000) == ["one"]
        assert await names(older_than_ms=0) == ["one", "two"]
        assert await names(producer_ids=[made["two"].producer_id]) == ["two"]
        assert await names(pattern="tw") == []
        with pytest.raises(InvalidRequestError, match=r"no state 'Onging': say one of Empty, "):
            await names(states=["Onging"])
        with pytest.raises(InvalidRegularExpressionError):
            await names(pattern="(")

    told(story)


def test_a_transaction_is_described_while_it_is_open_and_behind_its_end() -> None:
    async def story(stubs: Stubs, admin: AsyncAdmin) -> None:
        one = await Transactions(stubs, "one", timeout_ms=45_000).init()
        begun_ms = EPOCH_MS + stubs.cluster.now_ms
        await one.send("b", 1, "x")
        await one.send("a", 0, "x")
        found = (await admin.transactions.describe(["one"]))["one"]
        assert (found.state, found.timeout_ms) == ("Ongoing", 45_000)
        assert (found.producer_id, found.producer_epoch) == (one.producer_id, one.epoch)
        assert found.partitions == (A0, TopicPartition("b", 1))
        assert found.start_time_ms is not None and 0 <= found.start_time_ms - begun_ms < 1_000
        await one.end(committed=True)
        await one.until("CompleteCommit")
        found = (await admin.transactions.describe(["one"]))["one"]
        assert (found.state, found.start_time_ms, found.partitions) == ("CompleteCommit", None, ())
        with pytest.raises(TransactionalIdNotFoundError):
            await admin.transactions.describe(["one", "no"])

    told(story)


def test_producers_are_described_at_the_leader_wherever_it_moves() -> None:
    async def story(stubs: Stubs, admin: AsyncAdmin) -> None:
        one = await Transactions(stubs, "one").init()
        await one.send("a", 0, "x", "y")
        await one.send("b", 0, "x")
        found = await admin.transactions.describe_producers([A0, A1, B0])
        assert list(found) == [A0, A1, B0]
        assert found[A1] == ()
        ((producer,), (other,)) = found[A0], found[B0]
        assert (producer.producer_id, producer.producer_epoch) == (one.producer_id, one.epoch)
        assert (producer.last_sequence, producer.txn_start_offset) == (1, 0)
        assert (other.last_sequence, producer.coordinator_epoch) == (0, None)
        leader = stubs.cluster.leader("a")
        assert leader is not None
        stubs.cluster.kill(leader)
        assert (await admin.transactions.describe_producers([A0]))[A0] == (producer,)
        await one.end(committed=True)
        await one.until("CompleteCommit")
        ((producer,),) = (await admin.transactions.describe_producers([A0])).values()
        assert producer.txn_start_offset is None and producer.coordinator_epoch is not None
        for unknown in (TopicPartition("no", 0), TopicPartition("a", 2)):
            begun_ms = stubs.cluster.now_ms
            with pytest.raises(UnknownTopicOrPartitionError):
                await admin.transactions.describe_producers([A0, unknown])
            assert stubs.cluster.now_ms - begun_ms < 5_000

    told(story)


def test_more_partitions_than_fit_into_a_request_are_asked_for_in_turn(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(leaders, "_PARTITIONS_MAX", 1)

    async def story(stubs: Stubs, admin: AsyncAdmin) -> None:
        one = await Transactions(stubs, "one").init()
        partitions = [A0, A1, B0, TopicPartition("b", 1)]
        for partition in partitions:
            await one.send(*partition, "x")
        found = await admin.transactions.describe_producers(partitions)
        assert list(found) == partitions
        assert {each.txn_start_offset for known in found.values() for each in known} == {0}

    told(story)


def test_what_hangs_is_found_and_what_a_coordinator_will_end_is_not() -> None:
    async def story(stubs: Stubs, admin: AsyncAdmin) -> None:
        one = await Transactions(stubs, "one", timeout_ms=5 * MINUTE_MS).init()
        await one.send("a", 0, "x")
        await one.send("b", 0, "x")
        offset = hang(stubs, A0)
        await asyncio.sleep(30)
        assert await admin.transactions.find_hanging([A0, A1, B0], MINUTE_MS) == []
        await asyncio.sleep(40)
        (found,) = await admin.transactions.find_hanging([A0, A1, B0], MINUTE_MS)
        assert (found.topic_partition, found.producer.producer_id) == (A0, STRANGER)
        assert found.producer.txn_start_offset == offset == 1
        assert await admin.transactions.find_hanging([A0]) == [], "15 minutes"
        assert await admin.transactions.find_hanging([A1, B0], 0) == []

        # The same producer hangs in a partition that its transaction does not have.
        append(stubs, A1, one.batch(["lost"], 0))
        hanging = await admin.transactions.find_hanging([A0, A1, B0], MINUTE_MS)
        assert [each.topic_partition for each in hanging] == [A0, A1]
        assert hanging[1].producer.producer_id == one.producer_id

    told(story)


def test_a_transaction_that_ends_while_it_is_looked_up_does_not_hang(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def story(stubs: Stubs, admin: AsyncAdmin) -> None:
        one = await Transactions(stubs, "one").init()
        await one.send("a", 0, "x")
        whole = AsyncTransactionAdmin._open_of

        async def ends_first(self: AsyncTransactionAdmin, producer_ids: Any) -> Any:
            await one.end(committed=True)
            await one.until("CompleteCommit")
            found = await whole(self, producer_ids)
            assert found == []
            return found

        monkeypatch.setattr(AsyncTransactionAdmin, "_open_of", ends_first)
        assert await admin.transactions.find_hanging([A0], 0) == []

    told(story)


def test_an_abort_ends_what_hangs_and_readers_go_on() -> None:
    async def story(stubs: Stubs, admin: AsyncAdmin) -> None:
        one = await Transactions(stubs, "one").init()
        await one.send("a", 0, "before")
        await one.end(committed=True)
        await one.until("CompleteCommit")
        hang(stubs, A0)
        await one.send("a", 0, "behind")
        await one.end(committed=True)
        await one.until("CompleteCommit")
        assert await stubs.read("a") == ["before"]
        (found,) = await admin.transactions.find_hanging([A0], 0)
        hanging = found.producer
        await admin.transactions.abort(A0, hanging.producer_id, hanging.producer_epoch, 0)
        assert await stubs.read("a") == ["before", "behind"]
        assert await admin.transactions.find_hanging([A0], 0) == []
        await admin.transactions.abort(A0, hanging.producer_id, hanging.producer_epoch, 0)
        known = (await admin.transactions.describe_producers([A0]))[A0]
        assert [each.producer_epoch for each in known if each.producer_id == STRANGER] == [3]

    told(story)


def test_an_abort_is_refused_where_the_coordinator_will_end_the_transaction() -> None:
    async def story(stubs: Stubs, admin: AsyncAdmin) -> None:
        one = await Transactions(stubs, "one").init()
        await one.send("a", 0, "x")
        await one.send("b", 0, "y")
        with pytest.raises(InvalidTxnStateError, match=r"force-terminate --transactional-id one"):
            await admin.transactions.abort(A0, one.producer_id, one.epoch, 0)
        found = await admin.transactions.open_transaction(A0, one.producer_id)
        assert found is not None and found.transactional_id == "one"
        assert await admin.transactions.open_transaction(A1, one.producer_id) is None
        await admin.transactions.abort(A0, one.producer_id, one.epoch, 0, force=True)
        await one.end(committed=True)
        await one.until("CompleteCommit")
        assert (await stubs.read("a"), await stubs.read("b")) == ([], ["y"]), "it is torn"
        for epoch in (-1, 32_767):
            with pytest.raises(InvalidRequestError, match="describe-producers"):
                await admin.transactions.abort(A0, one.producer_id, epoch, 0)

    told(story)


def test_an_abort_of_a_coordinator_epoch_before_the_last_one_is_refused() -> None:
    async def story(stubs: Stubs, admin: AsyncAdmin) -> None:
        epoch = hang(stubs, A0)
        await admin.transactions.abort(A0, STRANGER, 2, 7)
        epoch = hang(stubs, A0, epoch=3)
        with pytest.raises(TransactionCoordinatorFencedError):
            await admin.transactions.abort(A0, STRANGER, 3, 6)
        ((open_,),) = (await admin.transactions.describe_producers([A0])).values()
        assert (open_.coordinator_epoch, open_.txn_start_offset) == (7, epoch)

    told(story)


def test_a_coordinator_that_can_not_be_asked_is_not_taken_for_one_that_knows_nothing() -> None:
    async def story(stubs: Stubs, admin: AsyncAdmin) -> None:
        cluster = stubs.cluster
        one = await Transactions(stubs, "one").init()
        gone = await stubs.coordinator("one")
        await one.send("a", 0, "x")
        assert await admin.transactions.find_hanging([A0], 0) == []
        cluster.kill(gone)
        await asyncio.sleep(5)
        with pytest.raises(CoordinatorNotAvailableError, match="__transaction_state"):
            await admin.transactions.find_hanging([A0], 0)
        with pytest.raises(CoordinatorNotAvailableError, match="__transaction_state"):
            await admin.transactions.abort(A0, one.producer_id, one.epoch, 0)
        assert [each.transactional_id for each in await admin.transactions.list()] == []
        assert (await admin.transactions.describe_producers([A0]))[A0][0].txn_start_offset == 0

    told(
        story,
        options={"default_api_timeout_ms": 20_000},
        transaction_state_log_replication_factor="1",
        transaction_state_log_min_isr="1",
    )


def test_coordinators_that_move_while_they_are_asked_are_asked_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The first listing misses a transactional id, because its coordinator moved."""

    async def story(stubs: Stubs, admin: AsyncAdmin) -> None:
        one = await Transactions(stubs, "one").init()
        await one.send("a", 0, "x")
        listings = 0
        whole = AsyncTransactionAdmin._list

        async def list_(self: AsyncTransactionAdmin, *asked: Any) -> Any:
            nonlocal listings
            listings += 1
            if listings == 1:
                leader = stubs.cluster.leader("__transaction_state", 0)
                assert leader is not None
                stubs.cluster.kill(leader)
                await asyncio.sleep(5)
                return []
            return await whole(self, *asked)

        monkeypatch.setattr(AsyncTransactionAdmin, "_list", list_)
        assert await admin.transactions.find_hanging([A0], 0) == []
        assert listings > 1

    told(story)


def test_a_coordinator_that_the_asked_node_does_not_know_yet_is_not_left_out(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def story(stubs: Stubs, admin: AsyncAdmin) -> None:
        one = await Transactions(stubs, "one").init()
        await one.send("a", 0, "x")
        coordinator = await stubs.coordinator("one")
        whole, stale = MetadataCache.refresh, 0

        async def refresh(self: MetadataCache) -> None:
            nonlocal stale
            await whole(self)
            if stale < 2:
                stale += 1
                del self.brokers[coordinator]

        await admin.transactions.describe_producers([A0])
        with monkeypatch.context() as patched:
            patched.setattr(MetadataCache, "refresh", refresh)
            assert await admin.transactions.open_transaction(A0, one.producer_id) is not None
            assert stale == 2
            stale = 0
            assert await admin.transactions.list() == [], "here it may have stopped"

    told(story)


def test_an_answer_that_says_nothing_is_an_error_of_the_server(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def empty(*_: Any) -> pb.DescribeTransactionsResponse:
        return pb.DescribeTransactionsResponse()

    async def story(stubs: Stubs, admin: AsyncAdmin) -> None:
        with monkeypatch.context() as patched:
            patched.setattr(CoordinatorCalls, "call", empty)
            with pytest.raises(UnknownServerError, match="nothing of one"):
                await admin.transactions.describe(["one"])

    told(story)


def test_a_producer_is_fenced_and_its_transaction_aborted_everywhere() -> None:
    async def story(stubs: Stubs, admin: AsyncAdmin) -> None:
        one = await Transactions(stubs, "one").init()
        await one.send("a", 0, "x")
        await one.send("b", 0, "y")
        await admin.transactions.force_terminate("one")
        for topic in ("a", "b"):
            assert await stubs.read(topic) == []
            hosted = await admin.transactions.describe_producers([TopicPartition(topic, 0)])
            assert [p.txn_start_offset for found in hosted.values() for p in found] == [None]
        with pytest.raises(ProducerFencedError):
            await one.send("a", 0, "late")
        with pytest.raises(ProducerFencedError):
            await one.end(committed=True)
        again = await Transactions(stubs, "one").init()
        await again.send("a", 0, "again")
        await again.end(committed=True)
        await again.until("CompleteCommit")
        assert await stubs.read("a") == ["again"]
        with pytest.raises(TransactionalIdNotFoundError):
            await admin.transactions.force_terminate("no")
        assert [each.transactional_id for each in await admin.transactions.list()] == ["one"]

    told(story)


def test_a_prepared_transaction_is_lost_only_on_demand_and_its_owner_finds_the_mark() -> None:
    async def story(stubs: Stubs, admin: AsyncAdmin) -> None:
        one = await Transactions(stubs, "one").init()
        identity = ("one", one.producer_id, one.epoch)
        await one.send("a", 0, "x")
        await admin.transactions.prepare(*identity)
        with pytest.raises(InvalidTxnStateError, match="is prepared: who prepared it may"):
            await admin.transactions.force_terminate("one")
        with pytest.raises(InvalidTxnStateError, match="whoever prepared it decides"):
            await admin.transactions.end(*identity, committed=False, keep_prepared=True)
        for _ in range(2):  # the second one does not remove the mark
            await admin.transactions.force_terminate("one", lose_prepared=True)
        found = (await admin.transactions.describe(["one"]))["one"]
        assert (found.state, found.is_prepared) == ("CompleteAbort", True)
        with pytest.raises(InvalidTxnStateError, match="was aborted"):
            await admin.transactions.end(*identity, committed=True)
        await Transactions(stubs, "one").init()  # the owner of the id begins anew
        assert await stubs.read("a") == []

    told(story)
