"""Spark and coordinators in memory, where every call may fail, and every process may die.

Rows are numbers. A task attempt's rows are in its transaction, and readers see those of committed
ones.
"""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from dataclasses import dataclass, field
from random import Random

from tidemark.errors import (
    InvalidTxnStateError,
    ProducerFencedError,
    RequestTimedOutError,
    TidemarkError,
)
from tidemark.spark.sink.core import OpenAttempt, abort_run, commit_batch
from tidemark.spark.sink.decision import (
    Attempt,
    Decision,
    attempt_id,
    from_pieces,
    run_of,
    to_pieces,
)

SINK = "tidemark-sink-s"


class Killed(BaseException):
    """The end of a driver's process."""


@dataclass
class Transaction:
    attempt: Attempt
    rows: tuple[int, ...]
    state: str = "open"  # then prepared, or at once committed or aborted


@dataclass
class Cluster:
    """State of the coordinators."""

    transactions: dict[str, Transaction] = field(default_factory=dict)
    driver_epoch: int = 0
    pieces: dict[int, str] = field(default_factory=dict)
    proposed: list[str] | None = None
    in_flight: tuple[int, list[str]] | None = None  # a confirmation that comes late

    def visible(self) -> list[int]:
        found = [t.rows for t in self.transactions.values() if t.state == "committed"]
        return sorted(row for rows in found for row in rows)

    def unended(self) -> list[Transaction]:
        return [t for t in self.transactions.values() if t.state in ("open", "prepared")]

    def time_out(self) -> None:
        """Transactions that are only open reach the end of their time."""
        for transaction in self.transactions.values():
            if transaction.state == "open":
                transaction.state = "aborted"

    def confirm(self, epoch: int, pieces: list[str]) -> None:
        if epoch == self.driver_epoch:
            self.pieces |= dict(enumerate(pieces))


class Driver:
    """`SinkCoordinators` as one process of a driver sees them."""

    def __init__(self, cluster: Cluster, rng: Random, trouble: float) -> None:
        self._cluster = cluster
        self._rng = rng
        self._trouble = trouble
        self._epoch = -1
        self._proposed: list[str] = []

    def _before(self) -> None:
        self._stumble()

    def _after(self) -> None:
        self._stumble()

    def _stumble(self) -> None:
        if self._rng.random() < self._trouble:
            if self._rng.random() < 0.5:
                raise Killed
            raise RequestTimedOutError("no answer")
        if self._rng.random() < self._trouble / 4:
            self._cluster.time_out()

    async def fence(self) -> None:
        self._before()
        late, self._cluster.in_flight = self._cluster.in_flight, None
        if late is not None and self._rng.random() < 0.5:
            self._cluster.confirm(*late)  # it came before this one
        self._cluster.driver_epoch += 1
        self._epoch = self._cluster.driver_epoch
        self._after()

    def _check(self) -> None:
        if self._epoch != self._cluster.driver_epoch:
            raise ProducerFencedError

    async def last_decision(self) -> Decision | None:
        self._before()
        return from_pieces(SINK, self._cluster.pieces)

    async def prepare(self, attempt: Attempt) -> None:
        self._before()
        found = self._cluster.transactions[attempt.transactional_id]
        if found.state in ("committed", "aborted"):
            raise InvalidTxnStateError(f"it is {found.state}")
        found.state = "prepared"
        self._after()

    async def end(self, attempt: Attempt, *, committed: bool) -> None:
        self._before()
        found = self._cluster.transactions[attempt.transactional_id]
        wanted = "committed" if committed else "aborted"
        if found.state in ("committed", "aborted"):
            if found.state != wanted:
                raise InvalidTxnStateError(f"it was {found.state}")
        else:
            found.state = wanted
        self._after()

    async def propose(self, decision: Decision) -> None:
        self._before()
        self._check()
        self._proposed = to_pieces(decision)
        self._after()

    async def confirm(self) -> None:
        self._before()
        self._check()
        if self._rng.random() < self._trouble:
            self._cluster.in_flight = (self._epoch, self._proposed)
            raise Killed if self._rng.random() < 0.5 else RequestTimedOutError("on its way")
        self._cluster.confirm(self._epoch, self._proposed)
        self._after()

    async def open_attempts(self) -> Sequence[OpenAttempt]:
        self._before()
        found = []
        for each in self._cluster.unended():
            run = run_of(each.attempt.transactional_id)
            if run is not None and self._rng.random() > self._trouble:  # one may be missing
                found.append(OpenAttempt(*run, each.attempt))
        return found


class Query:
    """A query that writes batches, and its drivers one after the other."""

    def __init__(self, cluster: Cluster, rng: Random, trouble: float) -> None:
        self.cluster = cluster
        self._rng = rng
        self._trouble = trouble
        self._runs = 0
        self._tasks = 0
        self.zombies: list[Decision] = []  # runs of drivers that may wake

    def driver(self) -> Driver:
        return Driver(self.cluster, self._rng, self._trouble)

    def _write(self, batch: int, run: str, partition: int, rows: tuple[int, ...]) -> Attempt:
        self._tasks += 1
        attempt = Attempt(attempt_id(SINK, batch, run, partition, self._tasks), self._tasks, 0)
        self.cluster.transactions[attempt.transactional_id] = Transaction(attempt, rows)
        return attempt

    def tasks(self, batch: int, rows: Sequence[int]) -> Decision:
        """Runs a batch's tasks, some of them more than once, with a partitioning of its own."""
        self._runs += 1
        run, parts = f"run{self._runs}", self._rng.randint(1, 4)
        winners: list[Attempt] = []
        for partition in range(parts):
            own = tuple(rows[partition::parts])
            tries = 1 + (self._rng.random() < 0.4) + (self._rng.random() < 0.1)
            attempts = [self._write(batch, run, partition, own) for _ in range(tries)]
            winners.append(self._rng.choice(attempts))
        return Decision(batch, run, "q", tuple(winners))

    async def run(self, batch: int, rows: Sequence[int]) -> None:
        """Runs the batch again until a commit returns."""
        for _ in range(1_000):
            wanted = self.tasks(batch, rows)
            try:
                await commit_batch(self.driver(), wanted)
            except Killed:
                self.zombies.append(wanted)
            except TidemarkError:
                await self._abort(wanted)
            else:
                await self._wake_a_zombie(wanted)
                return
            await self._wake_a_zombie(wanted)
        raise AssertionError(f"batch {batch} is never written")

    async def _abort(self, wanted: Decision) -> None:
        with contextlib.suppress(Killed, TidemarkError):
            await abort_run(self.driver(), wanted.batch, wanted.run, wanted.winners)

    async def _wake_a_zombie(self, wanted: Decision) -> None:
        """A task that comes late, or a whole driver of an earlier run."""
        chance = self._rng.random()
        if chance < 0.2:
            self._write(wanted.batch, wanted.run, 0, wanted_rows(self.cluster, wanted))
        elif chance < 0.4 and self.zombies:
            old = self._rng.choice(self.zombies)
            try:
                await commit_batch(self.driver(), old)
            except (Killed, TidemarkError):
                await self._abort(old)


def wanted_rows(cluster: Cluster, wanted: Decision) -> tuple[int, ...]:
    return cluster.transactions[wanted.winners[0].transactional_id].rows
