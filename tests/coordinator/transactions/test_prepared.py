"""Transactions that are prepared, for a decision made elsewhere (in the manner of KIP-939)."""

from __future__ import annotations

import pytest

from coordinator.records.transactions import TransactionState
from coordinator.transactions.shard import TransactionSettings
from coordinator.transactions.transaction import NO_TIMEOUT_MS, ProducerIdAndEpoch
from tests.coordinator.transactions.driver import P0, P1, TIMEOUT_MS, TXN, Driver
from tidemark.errors import (
    ConcurrentTransactionsError,
    InvalidProducerIdMappingError,
    InvalidTxnStateError,
    ProducerFencedError,
    UnsupportedVersionError,
)

S = TransactionState
_LONG_MS = 10 * 24 * 3_600_000


@pytest.fixture
def driver() -> Driver:
    return Driver()


def prepare(driver: Driver, producer: ProducerIdAndEpoch, transactional_id: str = TXN) -> None:
    driver.apply(driver.shard.prepare_txn(transactional_id, producer, driver.now))


def opened(driver: Driver) -> ProducerIdAndEpoch:
    producer = driver.init()
    driver.add(producer, P0)
    return producer


def timeout_ms(driver: Driver) -> int:
    return driver.shard.describe(TXN).transaction_timeout_ms


@pytest.mark.parametrize("committed", [True, False])
def test_a_prepared_transaction_waits_for_its_end_without_a_timeout(
    driver: Driver, committed: bool
) -> None:
    producer = opened(driver)
    driver.advance(TIMEOUT_MS - 1)
    prepare(driver, producer)
    driver.advance(_LONG_MS)
    assert driver.status() is S.ONGOING and timeout_ms(driver) == NO_TIMEOUT_MS
    driver.end(producer, committed)
    driver.written()
    assert driver.status() is (S.COMPLETE_COMMIT if committed else S.COMPLETE_ABORT)


def test_a_coordinator_that_moves_arms_no_timer_for_it(driver: Driver) -> None:
    producer = opened(driver)
    prepare(driver, producer)
    driver.reload(compacted=True)
    driver.advance(_LONG_MS)
    assert driver.status() is S.ONGOING
    driver.end(producer)
    assert driver.status() is S.PREPARE_COMMIT


def test_a_prepared_one_is_prepared_again_without_a_record(driver: Driver) -> None:
    producer = opened(driver)
    prepare(driver, producer)
    count = len(driver.log)
    prepare(driver, producer)
    assert len(driver.log) == count


def test_only_an_open_transaction_of_the_same_producer_is_prepared(driver: Driver) -> None:
    with pytest.raises(InvalidProducerIdMappingError):
        prepare(driver, ProducerIdAndEpoch(1, 0))
    producer = driver.init()
    with pytest.raises(InvalidTxnStateError, match="no open transaction to prepare"):
        prepare(driver, producer)
    driver.add(producer, P0)
    with pytest.raises(InvalidProducerIdMappingError):
        prepare(driver, ProducerIdAndEpoch(producer.producer_id + 1, 0))
    with pytest.raises(ProducerFencedError):
        prepare(driver, ProducerIdAndEpoch(producer.producer_id, 1))
    driver.advance(TIMEOUT_MS)
    with pytest.raises(ProducerFencedError):
        prepare(driver, producer)
    with pytest.raises(InvalidTxnStateError):
        prepare(driver, ProducerIdAndEpoch(producer.producer_id, 1))
    assert driver.status() is S.PREPARE_ABORT


def test_the_transaction_after_a_prepared_one_has_a_timeout(driver: Driver) -> None:
    producer = opened(driver)
    prepare(driver, producer)
    following = driver.end(producer)
    driver.written()
    driver.add(following, P1)
    assert timeout_ms(driver) == driver.settings.transaction_max_timeout_ms
    driver.advance(driver.settings.transaction_max_timeout_ms)
    assert driver.status() is S.PREPARE_ABORT


def test_the_next_producer_aborts_a_prepared_one_and_has_its_own_timeout(driver: Driver) -> None:
    old = opened(driver)
    prepare(driver, old)
    assert driver.try_init() is None
    driver.written()
    assert driver.status() is S.COMPLETE_ABORT
    driver.init()
    assert timeout_ms(driver) == TIMEOUT_MS
    with pytest.raises(ProducerFencedError):
        prepare(driver, old)


def test_a_prepared_one_does_not_expire_with_its_transactional_id() -> None:
    driver = Driver(TransactionSettings(transactional_id_expiration_ms=1_000))
    producer = opened(driver)
    prepare(driver, producer)
    driver.advance(_LONG_MS)
    driver.end(producer)


def test_without_the_setting_nothing_is_prepared() -> None:
    driver = Driver(TransactionSettings(two_phase_commit_enable=False))
    producer = opened(driver)
    with pytest.raises(UnsupportedVersionError, match=r"transaction\.two\.phase\.commit\.enable"):
        prepare(driver, producer)
    driver.end(producer)


@pytest.mark.parametrize("is_prepared", [False, True])
def test_a_producer_that_keeps_open_transactions_takes_an_id_only_when_it_is_free(
    driver: Driver, is_prepared: bool
) -> None:
    producer = opened(driver)
    if is_prepared:
        prepare(driver, producer)
    with pytest.raises(InvalidTxnStateError, match="is open"):
        driver.try_init(keep_open=True)
    driver.end(producer)
    with pytest.raises(ConcurrentTransactionsError):
        driver.try_init(keep_open=True)
    driver.written()
    following = driver.try_init(keep_open=True)
    assert following is not None and following.producer_epoch == producer.producer_epoch + 2
    with pytest.raises(ProducerFencedError):  # the outcome of the one before can not be told
        driver.end(producer)


def test_an_abort_that_keeps_prepared_ones_ends_only_what_can_still_time_out(
    driver: Driver,
) -> None:
    producer = opened(driver)
    prepare(driver, producer)
    for _ in range(2):
        with pytest.raises(InvalidTxnStateError, match="is prepared"):
            driver.end(producer, committed=False, keep_prepared=True)
    driver.end(producer)
    driver.written()
    following = driver.ended(driver.init())
    driver.add(following, P0)
    driver.end(following, committed=False, keep_prepared=True)
    driver.written()
    assert driver.status() is S.COMPLETE_ABORT


def test_the_mark_of_a_prepared_one_that_was_aborted_by_force_stays_for_its_owner(
    driver: Driver,
) -> None:
    producer = opened(driver)
    prepare(driver, producer)
    following = driver.end(producer, committed=False, by_force=True)
    driver.written()
    driver.reload(compacted=True)
    assert timeout_ms(driver) == NO_TIMEOUT_MS
    with pytest.raises(InvalidTxnStateError, match="prepared, and aborted by force"):
        driver.try_init(keep_open=True)
    with pytest.raises(InvalidTxnStateError, match="was aborted"):
        driver.end(producer)
    assert driver.end(producer, committed=False) == following
    driver.add(following, P1)  # a client that was not told
    assert timeout_ms(driver) == driver.settings.transaction_max_timeout_ms


@pytest.mark.parametrize("by_force", [False, True])
def test_an_abort_leaves_no_mark_of_one_that_was_not_prepared_or_by_its_owner(
    driver: Driver, by_force: bool
) -> None:
    producer = opened(driver)
    if not by_force:
        prepare(driver, producer)
    driver.end(producer, committed=False, by_force=by_force)
    driver.written()
    assert driver.try_init(keep_open=True) is not None
