"""Transactions on whole brokers in virtual time, with stubs alone."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from node.partition.core import Partition
from tests.node.coordination.stubs import SETTINGS, Stubs, Transactions
from tidemark.errors import (
    ErrorCode,
    InvalidProducerIdMappingError,
    InvalidTxnStateError,
    NotEnoughReplicasError,
    ProducerFencedError,
    UnsupportedVersionError,
)
from tidemark.records import Record, encode_batch
from tidemark.testing import Cluster
from tidemark.types import TopicPartition
from tidemark.v1 import group_pb2, log_pb2
from tidemark.v1 import transaction_pb2 as pb

Story = Callable[[Stubs], Coroutine[Any, Any, None]]


def told(story: Story, seed: int = 1, **settings: str) -> None:
    """Runs a story on three brokers with the topics a and b, of two partitions each."""
    with Cluster(seed=seed, brokers=3, settings=SETTINGS | settings) as cluster:
        for topic in ("a", "b"):
            cluster.create_topic(topic, 2, min_insync_replicas="2")
        cluster.run(story(Stubs(cluster)))


def test_records_of_many_partitions_are_seen_together_or_never() -> None:
    async def story(stubs: Stubs) -> None:
        one = await Transactions(stubs, "one").init()
        await one.send("a", 0, "kept")
        await one.send("b", 1, "kept")
        assert await stubs.read("a") == []
        assert await stubs.read("a", committed=False) == ["kept"]
        await one.end(committed=True)
        await one.until("CompleteCommit")
        await one.send("a", 0, "dropped")
        await one.send("b", 1, "dropped")
        await one.end(committed=False)
        await one.until("CompleteAbort")
        await one.send("a", 0, "kept, too")
        await one.end(committed=True)
        await one.until("CompleteCommit")
        assert await stubs.read("a") == ["kept", "kept, too"]
        assert await stubs.read("b", 1) == ["kept"]
        assert await stubs.read("b", 1, committed=False) == ["kept", "dropped"]

    told(story)


def test_a_new_producer_fences_the_one_before_and_aborts_what_it_left_open() -> None:
    async def story(stubs: Stubs) -> None:
        old = await Transactions(stubs, "one").init()
        await old.send("a", 0, "of the old one")
        new = await Transactions(stubs, "one").init()
        assert (new.producer_id, new.epoch) == (old.producer_id, old.epoch + 2)
        await new.send("a", 0, "of the new one")
        with pytest.raises(ProducerFencedError):
            await old.send("a", 0, "late")
        with pytest.raises(ProducerFencedError):
            await old.send("b", 0, "late")
        with pytest.raises(ProducerFencedError):
            await old.end(committed=True)
        await new.end(committed=True)
        await new.until("CompleteCommit")
        assert await stubs.read("a") == ["of the new one"]
        assert await stubs.read("b", committed=False) == []

    told(story)


def test_a_transaction_that_takes_too_long_is_aborted() -> None:
    async def story(stubs: Stubs) -> None:
        one = await Transactions(stubs, "one", timeout_ms=5_000).init()
        await one.send("a", 0, "too slow")
        await asyncio.sleep(6)
        await one.until("CompleteAbort")
        with pytest.raises(InvalidTxnStateError, match="was aborted"):
            await one.end(committed=True)
        await one.end(committed=False)  # it may go on with the next epoch
        await one.send("a", 0, "in time")
        await one.end(committed=True)
        await one.until("CompleteCommit")
        assert await stubs.read("a") == ["in time"]

    told(story)


def test_a_prepared_transaction_has_no_timeout_also_at_the_next_coordinator() -> None:
    async def story(stubs: Stubs) -> None:
        one = await Transactions(stubs, "one", timeout_ms=5_000).init()
        await one.send("a", 0, "waits")
        await one.prepare()
        await one.prepare()
        stubs.cluster.kill(await stubs.coordinator("one"))
        await asyncio.sleep(30)
        found = await one.describe()
        assert (found.transaction_state, found.transaction_timeout_ms) == ("Ongoing", 2**31 - 1)
        assert await stubs.read("a") == []
        await one.end(committed=True)
        await one.until("CompleteCommit")
        assert await stubs.read("a") == ["waits"]

    told(story)


def test_the_setting_refuses_to_prepare_a_transaction() -> None:
    async def story(stubs: Stubs) -> None:
        one = await Transactions(stubs, "one").init()
        await one.send("a", 0, "x")
        with pytest.raises(UnsupportedVersionError, match=r"phase\.commit\.enable=false"):
            await one.prepare()

    told(story, 1, **{"transaction.two.phase.commit.enable": "false"})


def test_a_batch_of_no_transaction_is_refused() -> None:
    async def story(stubs: Stubs) -> None:
        one = await Transactions(stubs, "one").init()
        one.producer_id += 1_000
        with pytest.raises(InvalidProducerIdMappingError):
            await one.send("a", 0, "x")
        assert await stubs.read("a", committed=False) == []

    told(story)


def test_a_batch_before_which_another_one_failed_is_not_the_first_of_its_transaction() -> None:
    """Of two on their way the first is refused, as while its coordinator moves."""

    async def story(stubs: Stubs) -> None:
        one = await Transactions(stubs, "one").init()
        first, second = (one.request("a", 0, value) for value in ("first", "second"))
        for request, code in (
            (second, ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER),
            (first, ErrorCode.NONE),
            (second, ErrorCode.NONE),
        ):
            leader = stubs.cluster.leader("a")
            assert leader is not None
            assert (await stubs.call(leader, request)).responses[0].error_code == code
        await one.end(committed=True)
        await one.until("CompleteCommit")
        assert await stubs.read("a") == ["first", "second"]

    told(story)


def test_offsets_count_when_their_transaction_is_committed() -> None:
    async def story(stubs: Stubs) -> None:
        one = await Transactions(stubs, "one").init()
        await one.commit_offset("g", "a", 5)
        assert await offset(stubs, "g") == (-1, ErrorCode.UNSTABLE_OFFSET_COMMIT)
        assert await offset(stubs, "g", stable=False) == (-1, ErrorCode.NONE)
        await one.end(committed=True)
        await one.until("CompleteCommit")
        assert await offset(stubs, "g") == (5, ErrorCode.NONE)
        await one.commit_offset("g", "a", 9)
        await one.end(committed=False)
        await one.until("CompleteAbort")
        assert await offset(stubs, "g") == (5, ErrorCode.NONE)

    told(story)


async def offset(stubs: Stubs, group: str, *, stable: bool = True) -> tuple[int, int]:
    """The offset of a-0 that a group has, and its error."""
    request = group_pb2.OffsetFetchRequest(require_stable=stable)
    request.groups.add(group_id=group).topics.add(name="a", partition_indexes=[0])
    node = await stubs.coordinator(group, group_pb2.GROUP)
    answer = await stubs.call(node, request)
    (found,) = answer.groups[0].topics[0].partitions
    return found.committed_offset, found.error_code


def test_the_next_transaction_does_not_meet_the_end_of_the_last_one() -> None:
    """CONCURRENT_TRANSACTIONS is not told while markers are written in time."""

    async def story(stubs: Stubs) -> None:
        one = await Transactions(stubs, "one").init()
        for number in range(20):
            for topic, partition in (("a", 0), ("a", 1), ("b", 0)):
                leader = stubs.cluster.leader(topic, partition)
                assert leader is not None
                answer = await stubs.call(leader, one.request(topic, partition, f"{number}"))
                assert answer.responses[0].error_code == ErrorCode.NONE
            node = await stubs.coordinator("one")
            ended = await stubs.call(node, one.end_request(committed=True))
            assert ended.error_code == ErrorCode.NONE
            one.become(ended)
        await one.until("CompleteCommit")
        assert await stubs.read("b") == [f"{number}" for number in range(20)]

    told(story)


@pytest.mark.parametrize("power", [False, True])
def test_a_coordinator_killed_after_its_answer_leaves_the_markers_to_the_next_one(
    power: bool,
) -> None:
    async def story(stubs: Stubs) -> None:
        one = await Transactions(stubs, "one").init()
        coordinator = await stubs.coordinator("one")
        await one.send("a", 0, "kept")
        await one.send("b", 1, "kept")
        await one.end(committed=True)
        stubs.cluster.kill(coordinator, power=power)
        await one.until("CompleteCommit")
        assert await stubs.read("a") == ["kept"]
        assert await stubs.read("b", 1) == ["kept"]

    told(story)


def test_a_leader_that_is_gone_gets_its_marker_when_another_one_leads() -> None:
    async def story(stubs: Stubs) -> None:
        cluster = stubs.cluster
        one = await Transactions(stubs, "one").init()
        coordinator = await stubs.coordinator("one")
        topic, partition = next(
            (topic, number)
            for topic in ("a", "b")
            for number in range(2)
            if cluster.leader(topic, number) != coordinator
        )
        await one.send(topic, partition, "kept")
        gone = cluster.leader(topic, partition)
        assert gone is not None
        cluster.kill(gone)
        await one.end(committed=True)
        assert (await one.describe()).transaction_state == "PrepareCommit"
        await one.until("CompleteCommit")
        assert await stubs.read(topic, partition) == ["kept"]

    told(story)


def test_a_transaction_ends_though_a_topic_of_it_was_deleted() -> None:
    async def story(stubs: Stubs) -> None:
        one = await Transactions(stubs, "one").init()
        await one.send("a", 0, "gone")
        await one.send("b", 0, "kept")
        admin = stubs.cluster.asyncio.admin()
        await admin.delete_topics(["a"])
        await admin.close()
        await one.end(committed=True)
        await one.until("CompleteCommit")
        assert await stubs.read("b") == ["kept"]

    told(story)


def test_a_marker_that_comes_twice_or_late_does_not_end_the_next_transaction() -> None:
    async def story(stubs: Stubs) -> None:
        one = await Transactions(stubs, "one").init()
        await one.send("a", 0, "first")
        await one.end(committed=True)
        await one.until("CompleteCommit")
        (known,) = await producers(stubs)
        again = marker(one.producer_id, one.epoch, known.coordinator_epoch)
        assert await written(stubs, again) == ErrorCode.NONE
        assert [p.current_txn_start_offset for p in await producers(stubs)] == [-1]
        await one.send("a", 0, "second")
        assert await written(stubs, again) == ErrorCode.INVALID_PRODUCER_EPOCH
        old = marker(one.producer_id, one.epoch + 1, known.coordinator_epoch - 1)
        assert await written(stubs, old) == ErrorCode.TRANSACTION_COORDINATOR_FENCED
        assert [p.current_txn_start_offset for p in await producers(stubs)] == [2]
        await one.end(committed=True)
        await one.until("CompleteCommit")
        assert await stubs.read("a") == ["first", "second"]

    told(story)


def test_a_transaction_whose_end_was_lost_does_not_end_as_the_next_one() -> None:
    """As after an unclean election: its coordinator has told this partition, and forgotten it."""

    async def story(stubs: Stubs) -> None:
        one = await Transactions(stubs, "one").init()
        lost = one.batch(["its outcome is lost"], 0)
        await one.send("b", 0, "kept")
        await one.end(committed=True)
        await one.until("CompleteCommit")
        leader = stubs.cluster.leader("a")
        assert leader is not None
        server = stubs.cluster.nodes[leader].server
        assert server is not None and server.broker is not None
        hosted = server.broker.partitions.find(TopicPartition("a", 0))
        assert hosted is not None
        epoch, now_ms = hosted.core.leader_epoch, 1_400_000_000_000
        hosted.log.append_as_leader(lost, epoch, now_ms, verified=True)
        hosted.appended(0)
        await one.send("b", 0, "kept, too")
        with pytest.raises(InvalidTxnStateError, match="whose end was lost"):
            await one.send("a", 0, "refused")
        await one.end(committed=True)
        await one.until("CompleteCommit")
        assert await stubs.read("a") == []
        assert [p.current_txn_start_offset for p in await producers(stubs)] == [0]
        assert await written(stubs, marker(one.producer_id, 1, 0)) == ErrorCode.NONE
        one.sequences.clear()
        await one.send("a", 0, "seen")
        await one.end(committed=True)
        await one.until("CompleteCommit")
        assert await stubs.read("a") == ["seen"]

    told(story)


def marker(producer_id: int, epoch: int, coordinator_epoch: int) -> pb.WriteTxnMarkersRequest:
    """An abort of a-0."""
    request = pb.WriteTxnMarkersRequest()
    request.markers.add(
        producer_id=producer_id,
        producer_epoch=epoch,
        coordinator_epoch=coordinator_epoch,
        topics=[pb.TxnTopic(name="a", partitions=[0])],
    )
    return request


async def written(stubs: Stubs, request: pb.WriteTxnMarkersRequest) -> int:
    """The code that the leader of a-0 answers."""
    leader = stubs.cluster.leader("a")
    assert leader is not None
    answer = await stubs.call(leader, request)
    code: int = answer.markers[0].topics[0].partitions[0].error_code
    return code


async def producers(stubs: Stubs) -> list[Any]:
    """The producers that the leader of a-0 knows."""
    request = pb.DescribeProducersRequest(topics=[pb.TxnTopic(name="a", partitions=[0])])
    part = await stubs.led("a", 0, request, lambda answer: answer.topics[0].partitions[0])
    return list(part.active_producers)


def test_requests_that_are_no_transactions_are_refused() -> None:
    async def story(stubs: Stubs) -> None:
        one = await Transactions(stubs, "one").init()
        leader = stubs.cluster.leader("a")
        assert leader is not None

        async def code(request: log_pb2.ProduceRequest) -> int:
            found: int = (await stubs.call(leader, request)).responses[0].error_code
            return found

        two = log_pb2.ProduceRequest(acks=-1, timeout_ms=5_000, transactional_id="one")
        two.partition_data.add(
            topic="a", index=0, records=one.batch(["x"], 0) + one.batch(["y"], 1)
        )
        assert await code(two) == ErrorCode.INVALID_REQUEST
        plain = log_pb2.ProduceRequest(acks=-1, timeout_ms=5_000, transactional_id="one")
        plain.partition_data.add(topic="a", index=0).plain_records.add(value=b"x")
        assert await code(plain) == ErrorCode.INVALID_REQUEST
        idempotent = log_pb2.ProduceRequest(acks=-1, timeout_ms=5_000, transactional_id="one")
        records = encode_batch(
            [Record(0, 1, None, b"x")], producer_id=one.producer_id, producer_epoch=0
        )
        idempotent.partition_data.add(topic="a", index=0, records=records)
        assert await code(idempotent) == ErrorCode.INVALID_REQUEST
        hasty = one.request("a", 0, "x")
        hasty.acks = 1
        assert await code(hasty) == ErrorCode.INVALID_REQUIRED_ACKS
        nameless = one.request("a", 0, "x")
        nameless.transactional_id = ""
        assert await code(nameless) == ErrorCode.INVALID_TXN_STATE
        assert await stubs.read("a", committed=False) == []
        assert await producers(stubs) == []

    told(story)


def test_clients_write_nothing_where_coordinators_do() -> None:
    async def story(stubs: Stubs) -> None:
        one = await Transactions(stubs, "one").init()
        topic = "__transaction_state"
        plain = log_pb2.ProduceRequest(acks=-1, timeout_ms=5_000)
        plain.partition_data.add(topic=topic, index=0).plain_records.add(value=b"x")
        leader = stubs.cluster.leader(topic)
        assert leader is not None
        for request in (plain, one.request(topic, 0, "x")):
            (part,) = (await stubs.call(leader, request)).responses
            assert part.error_code == ErrorCode.INVALID_TOPIC_EXCEPTION
        assert (await one.describe()).transaction_state == "Empty", "it is not in a transaction"

    told(story)


def test_an_operator_sees_what_is_open_and_where() -> None:
    async def story(stubs: Stubs) -> None:
        one = await Transactions(stubs, "one").init()
        await Transactions(stubs, "two").init()
        await one.send("a", 0, "x")
        await one.send("b", 1, "x", "y")
        assert (await one.describe()).transaction_start_time_ms > 0
        found = await one.describe()
        assert found.transaction_state == "Ongoing"
        assert [(t.name, list(t.partitions)) for t in found.topics] == [("a", [0]), ("b", [1])]
        assert (found.producer_id, found.producer_epoch) == (one.producer_id, one.epoch)
        listed: list[tuple[str, str]] = []
        for node in stubs.cluster.brokers:
            request = pb.ListTransactionsRequest(state_filters=["Ongoing", "Strange"])
            answer = await stubs.call(node.node_id, request)
            assert list(answer.unknown_state_filters) == ["Strange"]
            listed += [(t.transactional_id, t.transaction_state) for t in answer.transactions]
        assert listed == [("one", "Ongoing")]
        (producer,) = await producers(stubs)
        assert producer.producer_id == one.producer_id
        assert (producer.current_txn_start_offset, producer.last_sequence) == (0, 0)

    told(story)


def test_a_partition_without_its_replicas_delays_its_own_transaction_alone(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def story(stubs: Stubs) -> None:
        cluster = stubs.cluster
        one, two = (
            await Transactions(stubs, "one").init(),
            await Transactions(stubs, "two").init(),
        )
        leader = cluster.leader("a")
        assert leader is not None
        await one.send("a", 0, "waits")
        await two.send("a", 1, "goes on")
        server = cluster.nodes[leader].server
        assert server is not None and server.broker is not None
        hosted = server.broker.partitions.find(TopicPartition("a", 0))
        assert hosted is not None
        concerned, enough = hosted.core, Partition.check_enough_replicas

        def check(core: Partition) -> None:
            if core is concerned:
                raise NotEnoughReplicasError
            enough(core)

        monkeypatch.setattr(Partition, "check_enough_replicas", check)
        await one.end(committed=True)
        await two.end(committed=True)
        await two.until("CompleteCommit")
        assert (await one.describe()).transaction_state == "PrepareCommit"
        monkeypatch.setattr(Partition, "check_enough_replicas", enough)
        await one.until("CompleteCommit")

    told(story)
