"""Partitions are added to transactions in as few questions as there are producers."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from types import SimpleNamespace
from typing import Any, cast

import pytest

from commitlog.segment.producer_state import ProducerEntry
from coordinator.runtime.batches import TransactionalProducer
from node.coordination.verification import TransactionVerifier, partitions_in
from tests import virtual_time
from tidemark.errors import (
    ConcurrentTransactionsError,
    CoordinatorNotAvailableError,
    ErrorCode,
    NetworkError,
    TidemarkError,
    TransactionAbortableError,
)
from tidemark.types import TopicPartition
from tidemark.v1 import transaction_pb2 as pb

ONE, TWO = TransactionalProducer(1, 0), TransactionalProducer(2, 0)
PARTITIONS = [TopicPartition("t", number) for number in range(5)]


class FakePeers:
    """A coordinator that answers when the test says so."""

    def __init__(self) -> None:
        self.requests: list[pb.AddPartitionsToTxnRequest] = []
        self.answers: list[asyncio.Future[int]] = []

    async def call(self, broker_id: int, rpc: Any, request: Any, timeout_ms: int) -> Any:
        self.requests.append(request)
        answer = asyncio.get_running_loop().create_future()
        self.answers.append(answer)
        answered = pb.AddPartitionsToTxnResponse()
        answered.results.add(error_code=await answer)
        return answered


def told(scenario: Callable[[TransactionVerifier, FakePeers], Awaitable[None]]) -> None:
    async def main() -> None:
        peers = FakePeers()
        topic = SimpleNamespace(coordinator_of=lambda _: SimpleNamespace(broker_id=4))
        nothing = SimpleNamespace(find=lambda _: None)
        verifier = TransactionVerifier(cast(Any, nothing), cast(Any, topic), cast(Any, peers))
        await scenario(verifier, peers)
        await verifier.stop()

    virtual_time.run(main())


async def turn() -> None:
    for _ in range(5):
        await asyncio.sleep(0)


def test_partitions_of_one_request_are_added_together() -> None:
    async def scenario(verifier: TransactionVerifier, peers: FakePeers) -> None:
        added = [verifier.add("one", ONE, partition) for partition in PARTITIONS]
        other = verifier.add("two", TWO, PARTITIONS[0])
        await turn()
        asked = [partitions_in(r.transactions[0].topics) for r in peers.requests]
        assert asked == [PARTITIONS, [PARTITIONS[0]]]
        peers.answers[0].set_result(ErrorCode.NONE)
        await turn()
        assert all(found.done() for found in added)
        assert not other.done(), "each producer waits for its own transaction"
        peers.answers[1].set_result(ErrorCode.NONE)
        await other

    told(scenario)


def test_a_question_under_way_is_asked_once_and_later_ones_again() -> None:
    async def scenario(verifier: TransactionVerifier, peers: FakePeers) -> None:
        first = verifier.add("one", ONE, PARTITIONS[0])
        await turn()
        second = verifier.add("one", ONE, PARTITIONS[0])
        third = verifier.add("one", ONE, PARTITIONS[1])
        await turn()
        assert len(peers.requests) == 2
        for answer in peers.answers:
            answer.set_result(ErrorCode.NONE)
        await asyncio.gather(first, second, third)
        verifier.add("one", ONE, PARTITIONS[0])
        await turn()
        assert len(peers.requests) == 3

    told(scenario)


def test_who_comes_amid_the_answer_is_behind_those_that_waited() -> None:
    """Once the first batch is appended the third one does not wait: the second must not either."""

    async def scenario(verifier: TransactionVerifier, peers: FakePeers) -> None:
        order: list[int] = []
        first = verifier.add("one", ONE, PARTITIONS[0])
        first.add_done_callback(lambda _: order.append(1))
        await turn()
        peers.answers[0].set_result(ErrorCode.NONE)
        while not first.done():  # noqa: ASYNC110
            await asyncio.sleep(0)
        assert order == []
        second = verifier.add("one", ONE, PARTITIONS[0])
        second.add_done_callback(lambda _: order.append(2))
        await turn()
        assert order == [1, 2]
        assert not verifier._pending

    told(scenario)


@pytest.mark.parametrize(
    ("answered", "error"),
    [
        (ErrorCode.CONCURRENT_TRANSACTIONS, ConcurrentTransactionsError),
        (ErrorCode.INVALID_TXN_STATE, TransactionAbortableError),
        (NetworkError("hangs"), CoordinatorNotAvailableError),
        (RuntimeError("nobody foresaw"), RuntimeError),
    ],
)
def test_all_that_wait_are_told_why_not(
    answered: ErrorCode | Exception, error: type[Exception]
) -> None:
    async def scenario(verifier: TransactionVerifier, peers: FakePeers) -> None:
        added = [verifier.add("one", ONE, partition) for partition in PARTITIONS]
        await turn()
        if isinstance(answered, Exception):
            peers.answers[0].set_exception(answered)
        else:
            peers.answers[0].set_result(answered)
        for found in added:
            with pytest.raises(error):
                await found

    told(scenario)


def test_only_the_open_transaction_of_the_same_epoch_needs_no_question() -> None:
    async def scenario(verifier: TransactionVerifier, peers: FakePeers) -> None:
        known: dict[int, ProducerEntry] = {}
        log = SimpleNamespace(producers=SimpleNamespace(producers=known))
        hosted = {PARTITIONS[0]: SimpleNamespace(log=log)}
        verifier._partitions = cast(Any, SimpleNamespace(find=hosted.get))
        assert not verifier.is_open(PARTITIONS[0], ONE), "it never wrote here"
        known[1] = ProducerEntry(1, 0, current_txn_first_offset=7)
        assert verifier.is_open(PARTITIONS[0], ONE)
        assert not verifier.is_open(PARTITIONS[1], ONE), "another broker has the partition"
        assert not verifier.is_open(PARTITIONS[0], TransactionalProducer(1, 1))
        assert not verifier.is_open(PARTITIONS[0], TWO)
        await verifier.ensure("one", ONE, PARTITIONS[0])
        assert not peers.requests
        known[1] = ProducerEntry(1, 0)
        assert not verifier.is_open(PARTITIONS[0], ONE), "it has ended"

    told(scenario)


def test_without_a_coordinator_the_client_is_told_to_come_again() -> None:
    async def scenario(verifier: TransactionVerifier, peers: FakePeers) -> None:
        def unknown(_: str) -> None:
            raise CoordinatorNotAvailableError("no leader")

        verifier._topic = cast(Any, SimpleNamespace(coordinator_of=unknown))
        with pytest.raises(CoordinatorNotAvailableError, match="no leader"):
            await verifier.ensure("one", ONE, PARTITIONS[0])

    told(scenario)


def test_who_gives_up_takes_nothing_from_others() -> None:
    async def scenario(verifier: TransactionVerifier, peers: FakePeers) -> None:
        hasty = asyncio.ensure_future(verifier.ensure("one", ONE, PARTITIONS[0]))
        patient = asyncio.ensure_future(verifier.ensure("one", ONE, PARTITIONS[0]))
        await turn()
        hasty.cancel()
        await turn()
        peers.answers[0].set_result(ErrorCode.NONE)
        await patient

    told(scenario)


def test_a_stop_ends_what_waits() -> None:
    async def scenario(verifier: TransactionVerifier, peers: FakePeers) -> None:
        asked = verifier.add("one", ONE, PARTITIONS[0])
        await turn()
        waiting = verifier.add("one", ONE, PARTITIONS[1])  # not asked yet
        await verifier.stop()
        for found in (asked, waiting):
            with pytest.raises(TidemarkError, match="stopping"):
                await asyncio.wait_for(found, 1)

    told(scenario)
