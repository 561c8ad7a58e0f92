"""The life of a transactional id (KIP-98, KIP-360, KIP-890), in the scenarios of Kafka's tests."""

from __future__ import annotations

from dataclasses import replace

import pytest

from coordinator.records.transactions import TransactionLogKey, TransactionState
from coordinator.runtime.result import CoordinatorResult
from coordinator.transactions.shard import TransactionSettings
from coordinator.transactions.transaction import LAST_EPOCH, ProducerIdAndEpoch
from tests.coordinator.transactions.driver import (
    P0,
    P1,
    TIMEOUT_MS,
    TXN,
    AppendFailedError,
    Driver,
)
from tidemark.errors import (
    ApiError,
    ConcurrentTransactionsError,
    InvalidProducerIdMappingError,
    InvalidRequestError,
    InvalidTransactionTimeoutError,
    InvalidTxnStateError,
    ProducerFencedError,
    TransactionalIdNotFoundError,
)
from tidemark.types import TopicPartition

S = TransactionState


@pytest.fixture
def driver() -> Driver:
    return Driver()


def later(producer: ProducerIdAndEpoch, by: int = 1) -> ProducerIdAndEpoch:
    return ProducerIdAndEpoch(producer.producer_id, producer.producer_epoch + by)


# --- init_producer_id


def test_the_first_producer_has_a_new_id_and_epoch_0(driver: Driver) -> None:
    assert driver.init() == ProducerIdAndEpoch(1_001, 0)
    assert driver.init(transactional_id="other") == ProducerIdAndEpoch(1_002, 0)
    assert driver.status() is S.EMPTY


def test_the_next_producer_fences_the_one_before(driver: Driver) -> None:
    first = driver.init()
    second = driver.init()
    assert second == later(first)
    with pytest.raises(ProducerFencedError):
        driver.add(first, P0)
    with pytest.raises(ProducerFencedError):
        driver.end(first)
    driver.add(second, P0)


@pytest.mark.parametrize("timeout_ms", [0, -1, 900_001])
def test_a_timeout_out_of_bounds_is_refused(driver: Driver, timeout_ms: int) -> None:
    with pytest.raises(InvalidTransactionTimeoutError, match=r"transaction\.max\.timeout\.ms"):
        driver.shard.init_producer_id(TXN, timeout_ms, None, driver.new_producer_id, driver.now)


def test_an_empty_transactional_id_is_refused(driver: Driver) -> None:
    producer = ProducerIdAndEpoch(1, 0)
    with pytest.raises(InvalidRequestError):
        driver.init(transactional_id="")
    with pytest.raises(InvalidRequestError):
        driver.add(producer, P0, transactional_id="")
    with pytest.raises(InvalidRequestError):
        driver.end(producer, transactional_id="")


def test_a_new_producer_aborts_the_open_transaction_first(driver: Driver) -> None:
    first = driver.init()
    driver.add(first, P0, P1)
    assert driver.try_init() is None
    assert driver.status() is S.PREPARE_ABORT
    assert not driver.markers().committed
    assert driver.markers().producer_epoch == first.producer_epoch + 1
    with pytest.raises(ConcurrentTransactionsError):
        driver.init()
    driver.written()
    assert driver.status() is S.COMPLETE_ABORT
    assert driver.init() == later(first, 2)


def test_no_producer_comes_while_a_transaction_is_being_committed(driver: Driver) -> None:
    first = driver.init()
    driver.add(first, P0)
    driver.end(first)
    with pytest.raises(ConcurrentTransactionsError):
        driver.init()
    driver.written()
    assert driver.init() == later(first, 2)


def test_a_producer_goes_on_after_an_error_and_may_ask_twice(driver: Driver) -> None:
    first = driver.init()
    second = driver.init(first)
    assert second == later(first)
    assert driver.init(first) == second
    with pytest.raises(ProducerFencedError):
        driver.init(ProducerIdAndEpoch(77, first.producer_epoch))
    assert driver.init(second) == later(second)
    with pytest.raises(ProducerFencedError):
        driver.init(first)


def test_a_producer_whose_new_epoch_was_not_appended_asks_again_and_gets_it(
    driver: Driver,
) -> None:
    first = driver.init()
    driver.appends_fail = True
    with pytest.raises(AppendFailedError):
        driver.init(first)
    driver.appends_fail = False
    assert driver.init(first) == later(first)


def test_a_producer_that_another_one_followed_does_not_go_on(driver: Driver) -> None:
    first = driver.init()
    driver.init(first)
    driver.init()
    with pytest.raises(ProducerFencedError):
        driver.init(first)
    with pytest.raises(ProducerFencedError):
        driver.init(ProducerIdAndEpoch(77, 0))


def test_a_producer_that_goes_on_amid_a_transaction_aborts_it(driver: Driver) -> None:
    first = driver.init()
    driver.add(first, P0)
    assert driver.try_init(first) is None
    with pytest.raises(ConcurrentTransactionsError):
        driver.init(first)
    driver.written()
    assert driver.init(first) == later(first)


def test_who_is_fenced_does_not_abort_the_transaction_of_the_next_one(driver: Driver) -> None:
    first = driver.init()
    second = driver.init(first)
    driver.add(second, P0)
    with pytest.raises(ProducerFencedError):
        driver.init(first)
    assert driver.status() is S.ONGOING


# --- partitions


def test_the_first_partition_begins_a_transaction(driver: Driver) -> None:
    producer = driver.init()
    driver.add(producer, P0)
    state = driver.shard.describe(TXN)
    assert state.transaction_status == S.ONGOING
    assert state.transaction_start_timestamp_ms == driver.now.wall_ms
    driver.advance(10)
    driver.add(producer, P1)
    assert driver.shard.missing_partitions(TXN, producer, [P0, P1]) == frozenset()
    after = driver.shard.describe(TXN)
    assert after.transaction_start_timestamp_ms == state.transaction_start_timestamp_ms
    assert after.transaction_last_update_timestamp_ms == driver.now.wall_ms


def test_partitions_that_are_there_append_nothing(driver: Driver) -> None:
    producer = driver.init()
    driver.add(producer, P0, P1)
    before = len(driver.log)
    driver.add(producer, P0)
    driver.add(producer, P1, P0)
    assert len(driver.log) == before


def test_a_partition_that_was_not_added_is_missing(driver: Driver) -> None:
    producer = driver.init()
    assert driver.shard.missing_partitions(TXN, producer, [P0]) == {P0}
    driver.add(producer, P0)
    assert driver.shard.missing_partitions(TXN, producer, [P0, P1]) == {P1}
    after = driver.end(producer)
    with pytest.raises(ConcurrentTransactionsError):
        driver.shard.missing_partitions(TXN, after, [P0])
    with pytest.raises(ProducerFencedError):
        driver.shard.missing_partitions(TXN, producer, [P0])
    driver.written()
    assert driver.shard.missing_partitions(TXN, after, [P0]) == {P0}


def test_who_is_not_known_adds_nothing(driver: Driver) -> None:
    with pytest.raises(InvalidProducerIdMappingError):
        driver.add(ProducerIdAndEpoch(5, 0), P0)
    producer = driver.init()
    with pytest.raises(InvalidProducerIdMappingError):
        driver.add(ProducerIdAndEpoch(5, 0), P0)
    with pytest.raises(ProducerFencedError):
        driver.add(later(producer), P0)


def test_the_next_transaction_waits_for_the_markers_of_the_last(driver: Driver) -> None:
    producer = driver.init()
    driver.add(producer, P0)
    after = driver.end(producer)
    with pytest.raises(ConcurrentTransactionsError):
        driver.add(after, P1)
    for committed in (True, False):
        with pytest.raises(ConcurrentTransactionsError):
            driver.end(after, committed)
    driver.written()
    driver.add(after, P1)
    assert driver.shard.missing_partitions(TXN, after, [P0]) == {P0}


# --- the end


@pytest.mark.parametrize("committed", [True, False])
def test_a_transaction_ends_when_every_partition_has_its_marker(
    driver: Driver, committed: bool
) -> None:
    producer = driver.init()
    driver.add(producer, P0, P1)
    assert driver.end(producer, committed) == later(producer)
    markers = driver.markers()
    assert (markers.producer_id, markers.producer_epoch) == (producer.producer_id, 1)
    assert markers.committed is committed
    assert markers.partitions == {P0, P1}
    driver.written(P1)
    assert driver.markers().partitions == {P0}
    assert driver.status() is (S.PREPARE_COMMIT if committed else S.PREPARE_ABORT)
    driver.written(P0)
    assert driver.status() is (S.COMPLETE_COMMIT if committed else S.COMPLETE_ABORT)
    assert driver.shard.pending_markers() == []


@pytest.mark.parametrize("committed", [True, False])
def test_an_end_that_comes_again_has_the_same_answer(driver: Driver, committed: bool) -> None:
    producer = driver.init()
    driver.add(producer, P0)
    after = driver.end(producer, committed)
    with pytest.raises(ConcurrentTransactionsError):
        driver.end(producer, committed)
    with pytest.raises(InvalidTxnStateError):
        driver.end(producer, not committed)
    driver.written()
    before = len(driver.log)
    assert driver.end(producer, committed) == after
    with pytest.raises(InvalidTxnStateError):
        driver.end(producer, not committed)
    assert len(driver.log) == before


def test_an_end_of_two_transactions_ago_is_fenced(driver: Driver) -> None:
    producer = driver.init()
    after = driver.ended(producer)
    driver.ended(after)
    with pytest.raises(ProducerFencedError):
        driver.end(producer)


def test_without_a_transaction_there_is_an_abort_but_no_commit(driver: Driver) -> None:
    producer = driver.init()
    with pytest.raises(InvalidTxnStateError):
        driver.end(producer)
    after = driver.end(producer, committed=False)
    assert after == later(producer)
    assert driver.status() is S.COMPLETE_ABORT
    assert driver.shard.pending_markers() == []
    assert driver.end(producer, committed=False) == after
    with pytest.raises(ProducerFencedError):
        driver.add(producer, P0)
    with pytest.raises(InvalidTxnStateError):
        driver.end(driver.ended(after))


def test_the_producer_goes_on_after_its_transaction(driver: Driver) -> None:
    producer = driver.init()
    for _ in range(3):
        producer = driver.ended(producer)
    assert producer.producer_epoch == 3
    assert driver.init(producer) == later(producer)


def test_a_late_answer_about_markers_does_not_end_the_next_transaction(driver: Driver) -> None:
    producer = driver.init()
    driver.add(producer, P0)
    after = driver.end(producer)
    old = driver.markers()
    driver.written()
    driver.add(after, P0)
    driver.end(after)
    driver.apply(driver.shard.markers_written(old, [P0], driver.now))
    assert driver.status() is S.PREPARE_COMMIT


def test_a_completion_that_could_not_be_appended_is_tried_again(driver: Driver) -> None:
    producer = driver.init()
    driver.add(producer, P0)
    driver.end(producer)
    driver.appends_fail = True
    with pytest.raises(AppendFailedError):
        driver.written()
    driver.appends_fail = False
    assert driver.markers().partitions == frozenset()
    driver.written()
    assert driver.status() is S.COMPLETE_COMMIT


# --- epochs that are used up


def exhausted(driver: Driver) -> ProducerIdAndEpoch:
    """A producer with the last epoch."""
    driver.init()
    last = replace(driver.shard.describe(TXN), producer_epoch=LAST_EPOCH)
    driver.apply(CoordinatorResult(None, ((TransactionLogKey(TXN), last),)))
    return ProducerIdAndEpoch(last.producer_id, LAST_EPOCH)


def test_the_transaction_of_the_last_epoch_ends_with_a_new_producer_id(driver: Driver) -> None:
    producer = exhausted(driver)
    driver.add(producer, P0)
    after = driver.end(producer)
    assert after == ProducerIdAndEpoch(driver.next_producer_id, 0)
    assert driver.markers().producer_id == producer.producer_id
    assert driver.markers().producer_epoch == LAST_EPOCH + 1
    with pytest.raises(ConcurrentTransactionsError):
        driver.end(producer)
    with pytest.raises(ConcurrentTransactionsError):
        driver.add(after, P0)
    driver.written()
    assert driver.end(producer) == after
    assert driver.shard.describe(TXN).next_producer_id == -1
    driver.ended(after)
    with pytest.raises(InvalidProducerIdMappingError):
        driver.end(producer)


def test_an_empty_abort_of_the_last_epoch_has_a_new_producer_id(driver: Driver) -> None:
    producer = exhausted(driver)
    after = driver.end(producer, committed=False)
    assert after == ProducerIdAndEpoch(driver.next_producer_id, 0)
    driver.ended(after)


def test_a_producer_that_comes_after_the_last_epoch_has_a_new_id(driver: Driver) -> None:
    producer = exhausted(driver)
    after = driver.init(producer)
    assert after == ProducerIdAndEpoch(driver.next_producer_id, 0)
    assert driver.init(producer) == after
    with pytest.raises(InvalidProducerIdMappingError):
        driver.add(producer, P0)


def test_the_last_epoch_can_be_fenced_and_is_given_to_nobody(driver: Driver) -> None:
    producer = exhausted(driver)
    driver.add(producer, P0)
    assert driver.try_init() is None
    driver.written()
    fence = later(producer)
    with pytest.raises(ProducerFencedError):
        driver.end(producer, committed=False)
    with pytest.raises(ProducerFencedError):
        driver.add(fence, P0)
    assert driver.init() == ProducerIdAndEpoch(driver.next_producer_id, 0)


def test_a_producer_with_the_last_epoch_goes_on_after_its_abort_with_a_new_id(
    driver: Driver,
) -> None:
    producer = exhausted(driver)
    driver.add(producer, P0)
    assert driver.try_init(producer) is None
    driver.written()
    assert driver.init(producer) == ProducerIdAndEpoch(driver.next_producer_id, 0)


# --- time


def test_a_transaction_that_takes_too_long_is_aborted_and_its_producer_fenced(
    driver: Driver,
) -> None:
    producer = driver.init()
    driver.add(producer, P0)
    driver.advance(TIMEOUT_MS - 1)
    driver.add(producer, P1)
    assert driver.status() is S.ONGOING
    driver.advance(1)
    assert driver.status() is S.PREPARE_ABORT
    assert driver.markers().partitions == {P0, P1}
    driver.written()
    with pytest.raises(ProducerFencedError):
        driver.add(producer, P0)
    with pytest.raises(InvalidTxnStateError):
        driver.end(producer)


def test_a_transaction_whose_outcome_is_decided_does_not_time_out(driver: Driver) -> None:
    producer = driver.init()
    driver.add(producer, P0)
    driver.end(producer)
    driver.advance(10 * TIMEOUT_MS)
    assert driver.status() is S.PREPARE_COMMIT


def test_each_transaction_has_its_whole_time(driver: Driver) -> None:
    producer = driver.init()
    driver.add(producer, P0)
    driver.advance(TIMEOUT_MS - 1)
    after = driver.end(producer)
    driver.written()
    driver.add(after, P0)
    driver.advance(TIMEOUT_MS - 1)
    assert driver.status() is S.ONGOING
    driver.advance(1)
    assert driver.status() is S.PREPARE_ABORT


def test_an_abort_by_timeout_that_could_not_be_appended_is_tried_again(driver: Driver) -> None:
    producer = driver.init()
    driver.add(producer, P0)
    driver.appends_fail = True
    with pytest.raises(AppendFailedError):
        driver.advance(TIMEOUT_MS)
    driver.appends_fail = False
    driver.advance(driver.settings.retry_ms)
    assert driver.status() is S.PREPARE_ABORT


@pytest.mark.parametrize("jump_ms", [-86_400_000, 86_400_000])
def test_a_wall_clock_that_jumps_ends_no_transaction(driver: Driver, jump_ms: int) -> None:
    producer = driver.init()
    driver.add(producer, P0)
    driver.wall_ahead_ms += jump_ms
    driver.advance(TIMEOUT_MS - 1)
    assert driver.status() is S.ONGOING
    updated_ms = driver.shard.describe(TXN).transaction_last_update_timestamp_ms
    driver.end(producer)
    assert driver.shard.describe(TXN).transaction_last_update_timestamp_ms >= updated_ms


def test_transactional_ids_that_nobody_uses_expire(driver: Driver) -> None:
    week_ms = driver.settings.transactional_id_expiration_ms
    used = driver.init()
    driver.init(transactional_id="idle")
    open_one = driver.init(transactional_id="open")
    driver.advance(week_ms - 10)
    driver.ended(used)
    driver.add(open_one, P0, transactional_id="open")
    driver.advance(10 + driver.settings.remove_expired_interval_ms)
    driver.advance(1)
    assert sorted(driver.shard.transactions) == ["open", TXN]
    driver.reload()
    assert sorted(driver.shard.transactions) == ["open", TXN]
    with pytest.raises(TransactionalIdNotFoundError):
        driver.shard.describe("idle")
    assert driver.init(transactional_id="idle").producer_epoch == 0


def test_an_outcome_that_partitions_do_not_know_yet_does_not_expire(driver: Driver) -> None:
    producer = driver.init()
    driver.add(producer, P0)
    driver.end(producer)
    driver.advance(2 * driver.settings.transactional_id_expiration_ms)
    assert driver.markers().partitions == {P0}


def test_many_transactional_ids_expire_some_at_a_time() -> None:
    driver = Driver(TransactionSettings(transactional_id_expiration_ms=1_000))
    for number in range(2_500):
        driver.init(transactional_id=f"id {number}")
    driver.mono_ms += driver.settings.remove_expired_interval_ms
    sizes = []
    while driver.shard.transactions:
        (result,) = driver.shard.on_deadline(driver.now)
        sizes.append(len(result.records))
        driver.apply(result)
    assert sizes == [1_000, 1_000, 500]


# --- another coordinator


def test_markers_are_sent_again_by_the_next_coordinator(driver: Driver) -> None:
    producer = driver.init()
    driver.add(producer, P0, P1)
    driver.end(producer)
    driver.written(P0)
    first = driver.markers()
    driver.reload(compacted=True)
    markers = driver.markers()
    assert markers.partitions == {P0, P1}
    assert markers.committed
    assert markers.coordinator_epoch == first.coordinator_epoch + 1
    driver.written()
    assert driver.status() is S.COMPLETE_COMMIT


def test_the_next_coordinator_gives_a_transaction_the_rest_of_its_time(driver: Driver) -> None:
    producer = driver.init()
    driver.add(producer, P0)
    driver.advance(TIMEOUT_MS - 5_000)
    driver.reload()
    driver.advance(4_999)
    assert driver.status() is S.ONGOING
    driver.advance(1)
    assert driver.status() is S.PREPARE_ABORT


@pytest.mark.parametrize("jump_ms", [-86_400_000, 86_400_000])
def test_the_next_coordinators_wall_clock_gives_no_more_than_the_whole_time(
    driver: Driver, jump_ms: int
) -> None:
    producer = driver.init()
    driver.add(producer, P0)
    driver.wall_ahead_ms += jump_ms
    driver.reload()
    driver.advance(TIMEOUT_MS)
    assert driver.status() is S.PREPARE_ABORT


def test_the_next_coordinator_knows_retries_of_an_end(driver: Driver) -> None:
    producer = driver.init()
    driver.add(producer, P0)
    after = driver.end(producer)
    driver.reload()
    with pytest.raises(ConcurrentTransactionsError):
        driver.end(producer)
    driver.written()
    driver.reload(compacted=True)
    assert driver.end(producer) == after


# --- looking


def test_transactions_are_listed_by_state_producer_and_age(driver: Driver) -> None:
    driver.init(transactional_id="empty")
    first = driver.init(transactional_id="open")
    driver.add(first, P0, transactional_id="open")
    driver.advance(5_000)
    second = driver.init(transactional_id="younger")
    driver.add(second, P1, transactional_id="younger")
    driver.advance(1_000)

    def listed(**filters: object) -> list[str]:
        found = driver.shard.list_transactions(driver.now, **filters)  # type: ignore[arg-type]
        return [name for name, _ in found]

    assert listed() == ["empty", "open", "younger"]
    assert listed(states=[S.ONGOING]) == ["open", "younger"]
    assert listed(producer_ids=[second.producer_id]) == ["younger"]
    assert listed(older_than_ms=0) == ["open", "younger"]
    assert listed(older_than_ms=1_000) == ["open"]
    assert listed(states=[S.EMPTY], older_than_ms=0) == []


def test_partitions_are_kept_by_topic_in_order(driver: Driver) -> None:
    producer = driver.init()
    driver.add(producer, P1, TopicPartition("a", 3), P0)
    found = driver.shard.describe(TXN).transaction_partitions
    assert found is not None
    assert [(t.topic, t.partition_ids) for t in found] == [("a", (3,)), ("t", (0, 1))]


def test_a_marker_in_the_topic_itself_changes_nothing(driver: Driver) -> None:
    producer = driver.init()
    driver.add(producer, P0)
    driver.shard.end_transaction(producer.producer_id, True)
    assert driver.status() is S.ONGOING


def test_a_decision_that_is_not_appended_changes_nothing(driver: Driver) -> None:
    producer = driver.init()
    driver.add(producer, P0)
    before = dict(driver.shard.transactions)
    driver.appends_fail = True
    for call in (
        lambda: driver.add(producer, P1),
        lambda: driver.end(producer),
        lambda: driver.try_init(),
        lambda: driver.try_init(producer),
        lambda: driver.init(transactional_id="other"),
    ):
        with pytest.raises((AppendFailedError, ApiError)):
            call()
    assert driver.shard.transactions == before
    assert driver.shard.pending_markers() == []
    driver.appends_fail = False
    driver.end(producer)
