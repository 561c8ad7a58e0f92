"""A transactional producer's core against the coordinator's: lost requests and answers, leaders and
coordinators that move, timeouts, and a second process that takes over."""

from __future__ import annotations

from random import Random

import pytest

from tests.client.transactions.world import Cluster, Process
from tests.coordinator.transactions.driver import TIMEOUT_MS, TXN
from tidemark.client.errors import (
    ClientClosedError,
    CommitFailedError,
    ErrorKind,
    IllegalStateError,
    TransactionAbortedError,
    TransactionInDoubtError,
    kind_of,
)
from tidemark.client.transactions.core import TransactionCore, TransactionState
from tidemark.errors import (
    ConcurrentTransactionsError,
    ErrorCode,
    IllegalGenerationError,
    InvalidProducerEpochError,
    InvalidProducerIdMappingError,
    InvalidTransactionTimeoutError,
    InvalidTxnStateError,
    MessageTooLargeError,
    NetworkError,
    ProducerFencedError,
    RequestTimedOutError,
    TidemarkError,
    TransactionAbortableError,
    UnknownServerError,
    UnsupportedVersionError,
)
from tidemark.v1 import log_pb2
from tidemark.v1 import transaction_pb2 as pb

S = TransactionState
LOSSES = ["", "", "", "request", "answer"]
REFUSALS = [
    *[ErrorCode.NONE] * 6,
    ErrorCode.NOT_LEADER_OR_FOLLOWER,
    ErrorCode.CONCURRENT_TRANSACTIONS,
    ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
    ErrorCode.NOT_COORDINATOR,
    ErrorCode.MESSAGE_TOO_LARGE,
]
RARE = [
    ErrorCode.UNKNOWN_SERVER_ERROR,
    ErrorCode.TRANSACTION_ABORTABLE,
    ErrorCode.INVALID_TXN_STATE,
    ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER,
]


def ready() -> TransactionCore:
    core = TransactionCore(TXN, 60_000, lambda _: None)
    core.initialized(log_pb2.InitProducerIdResponse(producer_id=5, producer_epoch=3))
    return core


def written() -> TransactionCore:
    core = ready()
    core.begin()
    core.wrote()
    return core


def committing() -> TransactionCore:
    core = written()
    core.begin_commit()
    assert core.commit_request() is not None
    return core


def aborting() -> TransactionCore:
    core = written()
    core.begin_abort()
    assert core.abort_request() is not None
    return core


def test_a_whole_life_of_a_producer() -> None:
    opened: list[bool] = []
    core = TransactionCore(TXN, 45_000, opened.append)
    asked = core.init_request()
    assert (asked.transaction_timeout_ms, asked.producer_id, asked.producer_epoch) == (
        45_000,
        -1,
        -1,
    )
    core.initialized(log_pb2.InitProducerIdResponse(producer_id=5, producer_epoch=3))
    core.begin()
    core.wrote()
    core.begin_commit()
    request = core.commit_request()
    assert request == pb.EndTxnRequest(
        transactional_id=TXN, producer_id=5, producer_epoch=3, committed=True
    )
    core.ended(pb.EndTxnResponse(producer_id=5, producer_epoch=4))
    core.begin()
    core.wrote()
    core.begin_abort()
    request = core.abort_request()
    assert request is not None
    assert (request.producer_epoch, request.committed) == (4, False)
    core.ended(pb.EndTxnResponse(producer_id=9, producer_epoch=0))
    assert core.identity == (9, 0)
    assert opened == [True, False, True, False]


def test_each_call_in_the_wrong_state_says_which_one_comes_next() -> None:
    core = TransactionCore(TXN, 60_000, lambda _: None)
    for call in (core.begin, core.check_send, core.begin_commit, core.begin_abort):
        with pytest.raises(IllegalStateError, match="init_transactions"):
            call()
    core = ready()
    for call in (core.check_send, core.begin_commit, core.begin_abort):
        with pytest.raises(IllegalStateError, match="begin_transaction"):
            call()
    with pytest.raises(IllegalStateError, match="is open"):
        written().begin()
    core = committing()
    for call in (core.begin, core.check_send, core.begin_abort, core.begin_commit):
        with pytest.raises(IllegalStateError, match=r"commit_transaction\(\) again"):
            call()
    core = aborting()
    for call in (core.begin, core.check_send, core.begin_commit):
        with pytest.raises(IllegalStateError, match=r"abort_transaction\(\) again"):
            call()


def test_nothing_was_sent_so_nobody_is_asked() -> None:
    core = ready()
    core.begin()
    core.begin_commit()
    assert core.commit_request() is None
    assert core.state is S.READY
    core.begin()
    core.begin_abort()
    assert core.abort_request() is None
    assert core.state is S.READY


def test_a_flush_that_is_given_up_leaves_the_transaction_open() -> None:
    core = written()
    core.begin_commit()
    with pytest.raises(IllegalStateError, match="being committed"):
        core.check_send()
    core.give_up_flush()
    core.check_send()
    core.begin_commit()
    core.failed(MessageTooLargeError("big"))
    core.give_up_flush()
    assert core.state is S.ABORTABLE_ERROR


@pytest.mark.parametrize("in_flush", [False, True])
def test_a_lost_record_makes_the_transaction_abortable(in_flush: bool) -> None:
    core = written()
    if in_flush:
        core.begin_commit()
    core.failed(MessageTooLargeError("5 bytes"))
    core.failed(MessageTooLargeError("another"))
    assert isinstance(core.doom, TransactionAbortedError)
    for call in (core.check_send, core.begin, core.begin_commit, core.commit_request):
        with pytest.raises(TransactionAbortableError, match=r"5 bytes; call abort") as told:
            call()
        assert isinstance(told.value.__cause__, MessageTooLargeError)
    core.begin_abort()
    assert core.doom is None
    core.failed(RuntimeError("dropped"))
    assert core.abort_request() is not None
    core.ended(pb.EndTxnResponse(producer_id=5, producer_epoch=4))
    core.begin()
    core.check_send()


@pytest.mark.parametrize("make", [written, committing, aborting])
@pytest.mark.parametrize(
    "error",
    [ProducerFencedError("x"), InvalidProducerEpochError("x"), UnsupportedVersionError("x")],
)
def test_a_fenced_producer_tells_it_to_every_call(make: object, error: TidemarkError) -> None:
    core: TransactionCore = make()  # type: ignore[operator]
    if core.state is S.IN_TRANSACTION:
        core.failed(error)
    else:
        assert core.not_ended(error) is error
    assert core.state is S.FATAL_ERROR
    assert core.doom is error
    core.failed(RuntimeError("later"))
    for call in (core.check_send, core.begin, core.begin_commit, core.begin_abort):
        with pytest.raises(type(error)) as told:
            call()
        assert told.value is not error


def test_an_answer_that_is_lost_leaves_a_commit_in_doubt() -> None:
    core = committing()
    for error in (
        RequestTimedOutError(), ConcurrentTransactionsError(), UnknownServerError(),
        ClientClosedError(), RuntimeError(),
    ):  # fmt: skip
        told = core.not_ended(error)
        assert isinstance(told, TransactionInDoubtError)
        assert "commit_transaction() again" in str(told)
        assert core.state is S.COMMITTING
    again = core.commit_request()
    assert again is not None
    assert (again.producer_epoch, again.committed) == (3, True)
    core.ended(pb.EndTxnResponse(producer_id=5, producer_epoch=4))
    core.begin()


def test_a_commit_that_came_too_late_is_to_be_aborted() -> None:
    core = committing()
    told = core.not_ended(InvalidTxnStateError("was aborted"))
    assert isinstance(told, TransactionAbortableError)
    core.begin_abort()
    assert core.abort_request() is not None


def test_an_abort_without_an_answer_is_only_repeated() -> None:
    core = aborting()
    slow = RequestTimedOutError("slow")
    assert core.not_ended(slow) is slow
    assert core.state is S.ABORTING
    core.begin_abort()
    assert core.abort_request() is not None
    refused = InvalidTxnStateError("was committed")
    assert core.not_ended(refused) is refused
    with pytest.raises(InvalidTxnStateError):
        core.begin_abort()


def test_offsets_of_a_member_that_was_removed_are_told_as_a_failed_commit() -> None:
    core = written()
    told = core.offsets_failed(IllegalGenerationError("4"))
    assert isinstance(told, CommitFailedError)
    assert core.state is S.ABORTABLE_ERROR
    core = written()
    fenced = ProducerFencedError()
    assert core.offsets_failed(fenced) is fenced
    assert core.state is S.FATAL_ERROR


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        (NetworkError(), ErrorKind.RETRIABLE),
        (ConcurrentTransactionsError(), ErrorKind.RETRIABLE),
        (TransactionInDoubtError(), ErrorKind.RETRIABLE),
        (TransactionAbortableError(), ErrorKind.ABORTABLE),
        (InvalidTxnStateError(), ErrorKind.ABORTABLE),
        (CommitFailedError(), ErrorKind.ABORTABLE),
        (MemoryError(), ErrorKind.ABORTABLE),
        (ProducerFencedError(), ErrorKind.RECOVERABLE),
        (ClientClosedError(), ErrorKind.RECOVERABLE),
        (InvalidProducerEpochError(), ErrorKind.RECOVERABLE),
        (InvalidProducerIdMappingError(), ErrorKind.RECOVERABLE),
        (InvalidTransactionTimeoutError(), ErrorKind.CONFIGURATION),
        (UnsupportedVersionError(), ErrorKind.CONFIGURATION),
    ],
)
def test_errors_say_what_they_ask_of_the_caller(error: BaseException, kind: ErrorKind) -> None:
    assert kind_of(error) is kind


def test_the_first_fatal_error_is_the_one_that_is_told() -> None:
    core = written()
    core.failed(ProducerFencedError("first"))
    core.failed(UnsupportedVersionError("second"))
    with pytest.raises(ProducerFencedError, match="first"):
        core.begin_abort()


def test_an_answer_that_does_not_fit_the_state_is_a_bug_and_changes_nothing() -> None:
    core = written()
    with pytest.raises(AssertionError, match="can not go"):
        core.ended(pb.EndTxnResponse(producer_id=1, producer_epoch=2))
    assert core.state is S.IN_TRANSACTION


# In a world with leaders and the coordinator.


def rounds(process: Process, count: int = 30) -> None:
    """Lets everything succeed for some rounds."""
    for _ in range(count):
        process.refresh()
        process.step(flush=True)
        process.encode()
        process.cut()
        process.step()
        process.deliver(lambda: ErrorCode.NONE)
        process.answer()
        process.go_on()
        process.check()
        process.cluster.tell()
        process.now_ms += 25


def test_sequences_begin_anew_with_each_transaction() -> None:
    cluster = Cluster(1)
    process = cluster.start()
    process.init()
    for number in range(3):
        process.begin()
        for _ in range(6):
            process.put()
        if number == 1:
            process.step(flush=True)
            process.encode()
            process.step()
            process.deliver(lambda: ErrorCode.NONE)
            process.abort()
        else:
            process.commit()
        rounds(process)
    stamps = {stamp for leader in cluster.leaders.values() for stamp in leader.seen}
    assert {epoch for _, epoch, _ in stamps} == {0, 1, 2}
    assert all((p, e, 0) in stamps for p, e, _ in stamps)
    assert [t.outcome for t in process.transactions] == ["committed", "aborted", "committed"]
    cluster.check()


def test_a_late_batch_of_an_aborted_transaction_is_refused() -> None:
    cluster = Cluster(2, partitions=1)
    process = cluster.start()
    process.init()
    process.begin()
    process.put()
    process.step(flush=True)
    process.encode()
    process.step()
    process.lose(NetworkError("cut"))
    process.abort()
    rounds(process)
    process.begin()
    process.put()
    process.commit()
    rounds(process)
    process.deliver_late()
    (leader,) = cluster.leaders.values()
    assert leader.committed == process.transactions[1].ids
    cluster.tell()
    cluster.check()


def test_no_epoch_is_bumped_within_a_transaction() -> None:
    cluster = Cluster(3, partitions=1)
    process = cluster.start()
    process.init()
    process.begin()
    process.put()
    process.step(flush=True)
    process.encode()
    process.step()
    process.put()
    process.deliver(lambda: ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER)
    process.answer()
    assert process.state is S.ABORTABLE_ERROR
    process.step()
    assert process.core.is_empty, "nothing of it is sent any more"
    assert [sent.state() for sent in process.sent] == ["failed", "failed"]
    with pytest.raises(TransactionAbortableError):
        process.commit()
    process.abort()
    rounds(process)
    process.begin()
    process.put()
    process.commit()
    rounds(process)
    (leader,) = cluster.leaders.values()
    assert {(epoch, sequence) for _, epoch, sequence in leader.seen} == {(1, 0)}
    cluster.check()


def test_batches_behind_a_lost_one_keep_the_epoch() -> None:
    cluster = Cluster(3, partitions=1)
    process = cluster.start()
    process.init()
    process.begin()
    process.put()
    process.step(flush=True)
    process.encode()
    process.step()
    process.put()
    process.step(flush=True)
    process.deliver(lambda: ErrorCode.UNKNOWN_SERVER_ERROR)
    process.answer()
    (left,) = process.core.accumulator.pending()
    assert left.stamp is not None
    assert left.stamp[1:] == (0, 1)


def application(process: Process, draw: Random) -> None:
    """One step of a program that follows the rules."""
    state = process.state
    if state is S.UNINITIALIZED:
        process.init(draw.choice(LOSSES))
    elif process.wants or state is S.FATAL_ERROR:
        process.go_on(draw.choice(LOSSES))
    elif state is S.READY:
        process.begin()
    elif state is S.ABORTABLE_ERROR:
        process.abort()
    elif draw.random() < 0.8:
        process.put(draw.randrange(100))
    elif draw.random() < 0.8:
        process.commit()
    else:
        process.abort()


def network(process: Process, draw: Random) -> None:
    """Some of what may happen to requests."""
    process.step(flush=draw.random() < 0.5)
    process.encode()
    process.cut()
    process.step()
    chance = draw.random()
    if chance < 0.1:
        process.lose(NetworkError("cut"))
    elif chance < 0.13:
        process.deliver(lambda: draw.choice(RARE))
    elif chance < 0.2:
        process.deliver_late()
    else:
        process.deliver(lambda: draw.choice(REFUSALS))
    if draw.random() < 0.8:
        process.answer()
    process.refresh()
    process.check()


@pytest.mark.parametrize("seed", range(40))
def test_transactions_are_whole_whatever_gets_lost(seed: int) -> None:
    draw = Random(seed)
    cluster = Cluster(seed)
    process, zombies = cluster.start(), list[Process]()
    for _ in range(350):
        application(process, draw)
        network(process, draw)
        for zombie in zombies:  # it does not know yet that another one took over
            if zombie.state is not S.FATAL_ERROR and draw.random() < 0.5:
                application(zombie, draw)
                network(zombie, draw)
        if draw.random() < 0.3:
            cluster.tell(0.5)
        if draw.random() < 0.03:
            process.move()
        if draw.random() < 0.02:
            cluster.coordinator.reload()
        by_ms = draw.choice([1, 5, 20]) if draw.random() < 0.99 else TIMEOUT_MS // 2
        cluster.coordinator.advance(by_ms)
        for each in (process, *zombies):
            each.advance(by_ms)
        if process.state is S.FATAL_ERROR or draw.random() < 0.004:
            zombies.append(process)
            process = cluster.start()
            process.now_ms = zombies[-1].now_ms
    for zombie in zombies:
        zombie.give_up()
    finish(cluster, process)
    cluster.check()
    outcomes = [t.outcome for each in cluster.processes for t in each.transactions]
    assert outcomes.count("committed") > 2, outcomes
    assert "aborted" in outcomes


def finish(cluster: Cluster, process: Process) -> None:
    """Faults end: the last transaction is committed, or aborted if it can not be."""
    for _ in range(40):
        if process.state is S.UNINITIALIZED:
            process.init()
        elif process.state is S.READY or process.state is S.FATAL_ERROR:
            break
        elif process.state is S.ABORTABLE_ERROR:
            process.abort()
        elif process.state is S.IN_TRANSACTION:
            process.commit()
        rounds(process, 10)
        cluster.coordinator.advance(100)
    assert process.state in (S.READY, S.FATAL_ERROR), "stuck"
    process.give_up()
    last = cluster.start()  # aborts what was left open, as any new producer does
    last.now_ms = process.now_ms
    while last.state is S.UNINITIALIZED:
        last.init()
        cluster.tell()
    for each in (process, *cluster.processes):
        while each.late:
            each.deliver_late()
        cluster.tell()
