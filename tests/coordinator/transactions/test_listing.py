"""Lists of transactions, of which there are many more than open ones."""

from __future__ import annotations

from typing import Any, ClassVar

from coordinator.records.transactions import TransactionState as S
from tests.coordinator.transactions.driver import P0, Driver


def test_a_list_of_open_transactions_looks_at_no_other() -> None:
    class Watched(dict[str, Any]):
        looked: ClassVar[list[str]] = []

        def __getitem__(self, key: str) -> Any:
            self.looked.append(key)
            return super().__getitem__(key)

    driver = Driver()
    for number in range(20):
        driver.init(transactional_id=f"idle-{number}")
    producer = driver.init(transactional_id="open")
    driver.add(producer, P0, transactional_id="open")
    driver.reload(compacted=True)
    driver.shard.transactions = Watched(driver.shard.transactions)
    for filters in ({"states": [S.ONGOING, S.PREPARE_ABORT]}, {"older_than_ms": 0}):
        driver.advance(1)
        found = driver.shard.list_transactions(driver.now, **filters)  # type: ignore[arg-type]
        assert [name for name, _ in found] == ["open"]
    assert set(Watched.looked) == {"open"}
