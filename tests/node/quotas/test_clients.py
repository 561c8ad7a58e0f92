"""Use of quotas by clients: shares, changes, and what is forgotten."""

from __future__ import annotations

import pytest

from node.quotas import clients
from node.quotas.clients import Caller, ClientQuotas
from quorum.image import EMPTY_IMAGE, MetadataDelta, MetadataImage, diff
from quorum.image.records import client_quota_record
from tidemark.quotas.entities import (
    CONSUMER_BYTE_RATE,
    PRODUCER_BYTE_RATE,
    REQUEST_PERCENTAGE,
    QuotaEntity,
)

ETL, WEB = Caller("alice", "etl"), Caller("alice", "web")


class Broker:
    """Quotas that follow an image."""

    def __init__(self) -> None:
        self.image: MetadataImage = EMPTY_IMAGE
        self.quotas = ClientQuotas()

    def set(self, entity: QuotaEntity, value: float | None, key: str = PRODUCER_BYTE_RATE) -> None:
        delta = MetadataDelta(self.image)
        delta.replay(client_quota_record(entity, key, value))
        self.image = delta.apply(self.image.offset + 1, 1)
        self.quotas.on_metadata_update(delta, self.image)

    def restart(self) -> None:
        """Begins anew from a snapshot."""
        loaded = MetadataDelta(EMPTY_IMAGE)
        for value in self.image.values():
            loaded.replay_value(value)
        self.image = loaded.apply(self.image.offset, 1)
        self.quotas = ClientQuotas()
        self.quotas.on_metadata_update(diff(EMPTY_IMAGE, self.image), self.image)

    def use(
        self, caller: Caller, amount: float, now_s: float = 0.0, key: str = PRODUCER_BYTE_RATE
    ) -> float:
        """Returns the time to wait afterwards."""
        self.quotas.use(key, caller, amount, now_s)
        return self.quotas.wait_s(key, caller, now_s)


def test_without_a_quota_nothing_is_counted() -> None:
    broker = Broker()
    assert not broker.quotas.is_active
    assert broker.use(ETL, 1e12) == 0
    broker.set(QuotaEntity("alice"), 100)
    assert broker.quotas.is_active
    assert broker.use(ETL, 1) == 0, "what was used before is not counted"
    assert broker.use(Caller("bob", "etl"), 1e12) == 0, "no quota applies"
    assert broker.use(ETL, 1e12, key=CONSUMER_BYTE_RATE) == 0, "none of this key is set"


def test_clients_of_one_user_share_the_users_quota() -> None:
    broker = Broker()
    broker.set(QuotaEntity("alice"), 100)
    assert broker.use(ETL, 1_000) == 0, "ten windows at once"
    assert broker.use(WEB, 100) == 1


@pytest.mark.parametrize("entity", [QuotaEntity("alice", ""), QuotaEntity(None, "")])
def test_a_default_is_granted_to_each_client_anew(entity: QuotaEntity) -> None:
    broker = Broker()
    broker.set(entity, 100)
    assert broker.use(ETL, 2_000) == 10
    assert broker.use(WEB, 1_000) == 0


def test_a_client_id_shares_its_quota_across_users() -> None:
    broker = Broker()
    broker.set(QuotaEntity(None, "etl"), 100)
    broker.use(ETL, 1_000)
    assert broker.use(Caller("bob", "etl"), 100) == 1


def test_two_greedy_clients_each_come_to_their_rate() -> None:
    broker = Broker()
    broker.set(QuotaEntity(None, ""), 1_000)
    totals, due_s = {ETL: 0, WEB: 0}, {ETL: 0.0, WEB: 0.0}
    sizes = {ETL: 100, WEB: 9_000}
    while (now_s := min(due_s.values())) < 2_000:
        caller = min(due_s, key=lambda c: due_s[c])
        totals[caller] += sizes[caller]
        due_s[caller] = now_s + (broker.use(caller, sizes[caller], now_s) or 0.01)
    for total in totals.values():
        assert total == pytest.approx(1_000 * 2_010, rel=0.01)


def test_a_more_specific_quota_takes_effect_at_once_and_its_removal_too() -> None:
    broker = Broker()
    broker.set(QuotaEntity(""), 100)
    assert broker.use(ETL, 1_500) == 5
    broker.set(QuotaEntity("alice", "etl"), 10)
    assert broker.use(ETL, 200) == 10
    assert broker.quotas.wait_s(PRODUCER_BYTE_RATE, WEB, 0.0) == 5
    broker.set(QuotaEntity("alice", "etl"), None)
    assert broker.quotas.wait_s(PRODUCER_BYTE_RATE, ETL, 0.0) == 5
    broker.set(QuotaEntity(""), None)
    assert broker.quotas.wait_s(PRODUCER_BYTE_RATE, ETL, 0.0) == 0
    assert not broker.quotas.is_active


def test_a_changed_quota_counts_what_was_used() -> None:
    broker = Broker()
    broker.set(QuotaEntity("alice"), 100)
    assert broker.use(ETL, 2_000) == 10
    broker.set(QuotaEntity("alice"), 1_000)
    assert broker.quotas.wait_s(PRODUCER_BYTE_RATE, ETL, 0.0) == 0
    broker.set(QuotaEntity("bob"), 5)
    broker.set(QuotaEntity("alice"), 100)
    assert broker.quotas.wait_s(PRODUCER_BYTE_RATE, ETL, 0.0) == 10


def test_quotas_come_back_with_a_snapshot_and_what_was_used_does_not() -> None:
    broker = Broker()
    broker.set(QuotaEntity("", "etl"), 100)
    assert broker.use(ETL, 2_000) == 10
    broker.restart()
    assert broker.quotas.is_active
    assert broker.use(ETL, 1_200) == 2


def test_request_time_is_a_share_of_the_loop_and_waits_a_window_at_most() -> None:
    broker = Broker()
    broker.set(QuotaEntity("alice"), 50, REQUEST_PERCENTAGE)
    assert broker.use(ETL, 5.0, key=REQUEST_PERCENTAGE) == 0, "half a second of each of ten"
    assert broker.use(ETL, 0.25, key=REQUEST_PERCENTAGE) == 0.5
    assert broker.use(ETL, 60, key=REQUEST_PERCENTAGE) == 1


def test_one_request_uses_no_more_than_the_windows_hold() -> None:
    broker = Broker()
    assert broker.quotas.most(CONSUMER_BYTE_RATE, ETL, 0.0) == float("inf")
    broker.set(QuotaEntity("alice"), 100, CONSUMER_BYTE_RATE)
    assert broker.quotas.most(CONSUMER_BYTE_RATE, ETL, 0.0) == 1_000


def test_clients_that_are_idle_are_forgotten_and_those_in_debt_are_not(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(clients, "_BUCKETS_MAX", 100)
    monkeypatch.setattr(clients, "_CALLERS_MAX", 100)
    broker = Broker()
    broker.set(QuotaEntity(None, ""), 100)
    broker.use(ETL, 1e9)
    for number in range(1_000):
        broker.use(Caller("alice", str(number)), 1, float(number))
    quota = broker.quotas._of_key[PRODUCER_BYTE_RATE]
    assert len(quota._buckets) <= 100
    assert len(quota._callers) <= 100
    assert broker.quotas.wait_s(PRODUCER_BYTE_RATE, ETL, 1_000.0) > 0


def test_of_clients_that_are_all_in_debt_the_older_half_is_forgotten(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(clients, "_BUCKETS_MAX", 100)
    broker = Broker()
    broker.set(QuotaEntity(None, ""), 100)
    for number in range(1_000):
        assert broker.use(Caller("alice", str(number)), 2_000) == 10
    assert len(broker.quotas._of_key[PRODUCER_BYTE_RATE]._buckets) <= 100
    assert broker.quotas.wait_s(PRODUCER_BYTE_RATE, Caller("alice", "999"), 0.0) == 10
