"""The transactions that clients began, their outcomes, and the records that readers saw of them.

A record's value is `TRANSACTION:NUMBER`, which may go on with `|` and more. A transaction's name is
`PRODUCER/NUMBER`, with a number that rises over all lives of a transactional id.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field
from enum import Enum

from tidemark.types import TopicPartition


class TransactionViolation(AssertionError):
    """A promise of transactions is broken."""


class Outcome(Enum):
    """State of a transaction as its client knows it; IN_DOUBT: a commit was not answered."""

    OPEN = 0
    COMMITTED = 1
    ABORTED = 2
    IN_DOUBT = 3


@dataclass
class Transaction:
    """One transaction: its records by partition, in order, and how many of them were seen."""

    producer: str
    number: int
    sent: dict[TopicPartition, list[bytes]] = field(default_factory=lambda: defaultdict(list))
    seen: dict[TopicPartition, int] = field(default_factory=lambda: defaultdict(int))
    outcome: Outcome = Outcome.OPEN
    count: int = 0

    @property
    def name(self) -> str:
        return f"{self.producer}/{self.number}"

    def add(self, partition: TopicPartition, more: bytes = b"") -> bytes:
        """Returns the value of the next record."""
        value = f"{self.name}:{self.count}".encode() + (b"|" + more if more else b"")
        self.count += 1
        self.sent[partition].append(value)
        return value


class View:
    """The records of one partition at read_committed, in order."""

    def __init__(self) -> None:
        self.offsets: list[int] = []
        self.values: list[bytes] = []

    @property
    def passed(self) -> int:
        """Everything below this offset was told to some reader."""
        return self.offsets[-1] + 1 if self.offsets else 0


class Ledger:
    """All transactions of a seed. `volatile` names topics that are deleted and made anew: their
    records may be missing, but none of an aborted transaction may be seen.
    """

    def __init__(self, volatile: str, copies: tuple[str, str]) -> None:
        """`copies`: topics of which the second one has the records of the first."""
        self.volatile = volatile
        self.source, self.target = copies
        self.transactions: dict[str, Transaction] = {}
        self.views: dict[TopicPartition, View] = defaultdict(View)
        self._numbers: dict[str, int] = defaultdict(int)
        self._last: dict[tuple[TopicPartition, str], Transaction] = {}

    def begin(self, producer: str) -> Transaction:
        self._numbers[producer] += 1
        begun = Transaction(producer, self._numbers[producer])
        self.transactions[begun.name] = begun
        return begun

    def end(self, transaction: Transaction, outcome: Outcome) -> None:
        """Takes an outcome that the client knows."""
        transaction.outcome = outcome
        if outcome is Outcome.ABORTED and any(transaction.seen.values()):
            raise TransactionViolation(
                f"records of an aborted transaction are visible: {transaction.name}"
            )

    # --- reading

    def read(self, partition: TopicPartition, offset: int, value: bytes, index: int) -> None:
        """Takes a record that a reader got as its record number `index` of the partition."""
        if partition.topic == self.volatile:
            self._find(partition, value)
            return
        view = self.views[partition]
        if index < len(view.offsets):
            if (view.offsets[index], view.values[index]) != (offset, value):
                raise TransactionViolation(
                    f"what readers passed changes: {partition} has {value!r} at {offset}, after"
                    f" {view.values[index]!r} at {view.offsets[index]}"
                )
            return
        if offset < view.passed:
            raise TransactionViolation(
                f"offsets go back: {partition} has {value!r} at {offset} behind {view.passed}"
            )
        self._see(partition, value)
        view.offsets.append(offset)
        view.values.append(value)
        if partition.topic in (self.source, self.target):
            self._check_copy(partition.partition, len(view.values) - 1)

    def _find(self, partition: TopicPartition, value: bytes) -> Transaction:
        name = value.split(b":", 1)[0].decode()
        transaction = self.transactions[name]
        if transaction.outcome is Outcome.ABORTED:
            raise TransactionViolation(
                f"records of an aborted transaction are visible: {partition} has {value!r}"
            )
        return transaction

    def _see(self, partition: TopicPartition, value: bytes) -> None:
        transaction = self._find(partition, value)
        if transaction.outcome is Outcome.OPEN:
            raise TransactionViolation(
                f"records of an open transaction are visible: {partition} has {value!r}"
            )
        number = transaction.seen[partition]
        sent = transaction.sent[partition]
        if number >= len(sent) or sent[number] != value:
            raise TransactionViolation(
                f"records of a transaction are repeated or lost: {partition} has {value!r} as"
                f" record {number} of {sent}"
            )
        transaction.seen[partition] = number + 1
        before = self._last.get((partition, transaction.producer), transaction)
        self._last[partition, transaction.producer] = transaction
        if before is transaction:
            return
        if before.number > transaction.number:
            raise TransactionViolation(f"transactions change their order: {partition} {value!r}")
        if before.seen[partition] != len(before.sent[partition]):
            raise TransactionViolation(f"a transaction is visible in part: {before.name}")

    def _check_copy(self, partition: int, index: int) -> None:
        source = self.views[TopicPartition(self.source, partition)].values
        target = self.views[TopicPartition(self.target, partition)].values
        if index < len(source) and index < len(target):
            copied = target[index].split(b"|", 1)[1]
            if copied != source[index]:
                raise TransactionViolation(
                    f"records are not copied exactly once: {self.target}-{partition} has"
                    f" {target[index]!r} as record {index}, which is {source[index]!r}"
                )

    # --- the end

    def missing_copies(self) -> int:
        """Records of the source that readers have not seen in the target."""
        return sum(
            len(view.values) - len(self.views[TopicPartition(self.target, p.partition)].values)
            for p, view in list(self.views.items())
            if p.topic == self.source
        )

    def check(self) -> None:
        """All readers are at the end: each transaction is there as a whole, or not at all, and each
        record is copied."""
        if self.missing_copies():
            raise TransactionViolation(
                f"records are not copied exactly once: {-self.missing_copies()} too many"
            )
        for transaction in self.transactions.values():
            stable = {p: s for p, s in transaction.sent.items() if p.topic != self.volatile}
            wanted = sum(map(len, stable.values()))
            seen = sum(transaction.seen[p] for p in stable)
            if transaction.outcome is Outcome.COMMITTED and seen != wanted:
                raise TransactionViolation(
                    f"a committed transaction is not visible: {transaction.name} with {seen} of"
                    f" {wanted} records"
                )
            if 0 < seen < wanted:
                raise TransactionViolation(
                    f"a transaction is visible in part: {transaction.name} with {seen} of"
                    f" {wanted} records"
                )
