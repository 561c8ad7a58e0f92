"""Spark and coordinators in memory, where every call may fail or hang, and every process may die.

Rows are numbers. A task attempt's rows are in its transaction, and readers see those of committed
ones. Tasks take their transactional ids as those of Spark do (`write_attempt`). Coordinators abort
what is open of an id, unless they are asked to keep it.

A driver that hangs goes on later, call by call among those of its successor.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Collection, Coroutine, Sequence
from dataclasses import dataclass, field
from random import Random
from typing import Any

import pyarrow as pa

from tidemark.client.transactions.core import Identity
from tidemark.errors import (
    InvalidTxnStateError,
    ProducerFencedError,
    RequestTimedOutError,
    TidemarkError,
)
from tidemark.spark.sink.core import OpenAttempt, abort_run, commit_batch, recover
from tidemark.spark.sink.decision import Attempt, Decision, from_pieces, slots, to_pieces
from tidemark.spark.sink.options import parse_sink_options
from tidemark.spark.sink.tasks import write_attempt

SINK = "tidemark-sink-s"
OPTIONS = parse_sink_options({"bootstrap.servers": "h:1", "topic": "t"}, is_stream=True)
UNENDED = ("open", "prepared")


class Killed(BaseException):
    """The end of a driver's process."""


@dataclass
class Transaction:
    """The last transaction of an id."""

    attempt: Attempt
    rows: tuple[int, ...] = ()
    state: str = "open"  # then prepared, or at once committed or aborted; lost: by force


@dataclass
class Cluster:
    """State of the coordinators."""

    last: dict[str, Transaction] = field(default_factory=dict)
    rows: list[int] = field(default_factory=list)  # of committed transactions
    driver_epoch: int = 0
    pieces: dict[int, str] = field(default_factory=dict)
    in_flight: tuple[int, list[str]] | None = None  # a confirmation that comes late

    def visible(self) -> list[int]:
        return sorted(self.rows)

    def unended(self) -> list[Transaction]:
        return [each for each in self.last.values() if each.state in UNENDED]

    def state(self, attempt: Attempt) -> str:
        found = self.last[attempt.transactional_id]
        return found.state if found.attempt == attempt else "replaced"

    def time_out(self) -> None:
        """Transactions that are only open reach the end of their time."""
        for transaction in self.last.values():
            if transaction.state == "open":
                transaction.state = "aborted"

    def confirm(self, epoch: int, pieces: list[str]) -> None:
        if epoch == self.driver_epoch:
            self.pieces |= dict(enumerate(pieces))

    def take(self, transactional_id: str, keep_open: bool) -> Attempt:
        """InitProducerId, and the first rows: the id has the next transaction."""
        found = self.last.get(transactional_id)
        if found is None:
            attempt = Attempt(transactional_id, len(self.last), 0)
        elif keep_open and found.state in (*UNENDED, "lost"):
            raise InvalidTxnStateError(f"it is {found.state}")
        else:
            before = found.attempt
            attempt = before._replace(producer_epoch=before.producer_epoch + 2)
        self.last[transactional_id] = Transaction(attempt)
        return attempt

    def end(self, attempt: Attempt, committed: bool, keep_prepared: bool) -> None:
        found = self.last[attempt.transactional_id]
        wanted = "committed" if committed else "aborted"
        if found.attempt != attempt:
            raise ProducerFencedError("another one has the id")
        if found.state not in UNENDED:
            if found.state != wanted:
                raise InvalidTxnStateError(f"it was {found.state}")
        elif keep_prepared and found.state == "prepared":
            raise InvalidTxnStateError("it is prepared")
        else:
            found.state = wanted
            self.rows += found.rows if committed else ()


class TaskProducer:
    """The producer of a task, as far as `write_attempt` needs one."""

    def __init__(self, cluster: Cluster, transactional_id: str) -> None:
        self._cluster = cluster
        self._id = transactional_id
        self._rows: tuple[int, ...] = ()

    def __enter__(self) -> TaskProducer:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    close = begin_transaction = lambda self: None

    def init_transactions(self, *, keep_open: bool = False) -> None:
        self._attempt = self._cluster.take(self._id, keep_open)

    def send_arrow(self, _: str, table: pa.RecordBatch) -> None:
        self._rows += tuple(table["value"].to_pylist())

    def hand_over_transaction(self) -> Identity:
        found = self._cluster.last[self._id]
        if found.attempt != self._attempt:
            raise ProducerFencedError
        found.rows = self._rows
        return Identity(*self._attempt[1:])


def write(cluster: Cluster, partition: int, number: int, rows: Sequence[int]) -> Attempt:
    """Runs a task attempt."""

    def make(_: str, *, transactional_id: str, **settings: Any) -> Any:
        return TaskProducer(cluster, transactional_id)

    batch = pa.record_batch({"value": pa.array(rows, pa.int64())})
    attempt, _ = write_attempt(OPTIONS, slots(SINK, partition, number), [batch], make)
    assert attempt is not None
    return attempt


class Driver:
    """`SinkCoordinators` as one process of a driver sees them."""

    def __init__(self, cluster: Cluster, rng: Random, trouble: float, hangs: float = 0.0) -> None:
        self._cluster = cluster
        self._rng = rng
        self._trouble = trouble
        self._hangs = hangs
        self._epoch = -1
        self._proposed: list[str] = []
        self.hanging = asyncio.Event()
        self.woken = asyncio.Event()

    async def _stumble(self) -> None:
        chance = self._rng.random()
        if chance < self._trouble:
            if self._rng.random() < 0.5:
                raise Killed
            raise RequestTimedOutError("no answer")
        if chance < self._trouble * 1.25:
            self._cluster.time_out()
        elif chance > 1 - self._hangs and not self.hanging.is_set():
            self.hanging.set()
            await self.woken.wait()
        for _ in range(self._rng.randint(0, 2) if self._hangs else 0):
            await asyncio.sleep(0)  # others come between

    async def fence(self) -> None:
        await self._stumble()
        late, self._cluster.in_flight = self._cluster.in_flight, None
        if late is not None and self._rng.random() < 0.5:
            self._cluster.confirm(*late)  # it came before this one
        self._cluster.driver_epoch += 1
        self._epoch = self._cluster.driver_epoch
        await self._stumble()

    def _check(self) -> None:
        if self._epoch != self._cluster.driver_epoch:
            raise ProducerFencedError

    async def last_decision(self) -> Decision | None:
        await self._stumble()
        return from_pieces(SINK, self._cluster.pieces)

    async def prepare(self, attempt: Attempt) -> None:
        await self._stumble()
        found = self._cluster.last[attempt.transactional_id]
        if found.attempt != attempt:
            raise ProducerFencedError
        if found.state not in UNENDED:
            raise InvalidTxnStateError(f"it is {found.state}")
        found.state = "prepared"
        await self._stumble()

    async def end(self, attempt: Attempt, *, committed: bool, keep_prepared: bool = False) -> None:
        await self._stumble()
        self._cluster.end(attempt, committed, keep_prepared)
        await self._stumble()

    async def propose(self, decision: Decision) -> None:
        await self._stumble()
        self._check()
        self._proposed = to_pieces(decision)
        await self._stumble()

    async def confirm(self) -> None:
        await self._stumble()
        self._check()
        if self._rng.random() < self._trouble:
            self._cluster.in_flight = (self._epoch, self._proposed)
            raise Killed if self._rng.random() < 0.5 else RequestTimedOutError("on its way")
        self._cluster.confirm(self._epoch, self._proposed)
        await self._stumble()

    async def open_attempts(self, but: Collection[str]) -> Sequence[OpenAttempt]:
        await self._stumble()
        found = []
        for each in self._cluster.unended():
            is_missing = self._rng.random() < self._trouble
            if each.attempt.transactional_id not in but and not is_missing:
                found.append(OpenAttempt(each.attempt, each.state == "prepared"))
        await self._stumble()
        return found


class Query:
    """A query that writes batches, and its drivers one after the other."""

    def __init__(self, cluster: Cluster, rng: Random, trouble: float, hangs: float = 0.0) -> None:
        self.cluster = cluster
        self.rng = rng
        self._trouble = trouble
        self._hangs = hangs
        self._runs = 0
        self._hung: list[tuple[Driver, asyncio.Task[Any]]] = []
        self._awake: list[asyncio.Task[Any]] = []

    def driver(self) -> Driver:
        return Driver(self.cluster, self.rng, self._trouble, self._hangs)

    def tasks(self, batch: int, rows: Sequence[int]) -> Decision:
        """Runs a batch's tasks, some of them more than once, with a partitioning of its own."""
        self._runs += 1
        run, parts = f"run{self._runs}", self.rng.randint(1, 4)
        winners: list[Attempt] = []
        for partition in range(parts):
            own = tuple(rows[partition::parts])
            tries = 1 + (self.rng.random() < 0.4) + (self.rng.random() < 0.1)
            attempts = [write(self.cluster, partition, number, own) for number in range(tries)]
            winners.append(self.rng.choice(attempts))
        return Decision(batch, run, "q", tuple(winners))

    async def run(self, batch: int, rows: Sequence[int]) -> None:
        """Runs the batch again until a commit returns."""
        for _ in range(1_000):
            self._wake()
            wanted = self.tasks(batch, rows)
            if self.rng.random() < 0.2:  # a task that comes late, of any run
                write(self.cluster, self.rng.randint(0, 3), 0, rows)
            self._wake()
            driver = self.driver()
            try:
                if await self._unless_it_hangs(driver, commit_batch(driver, wanted)):
                    return
            except Killed:
                pass
            except TidemarkError:
                await self._abort(wanted)
        raise AssertionError(f"batch {batch} is never written")

    async def _unless_it_hangs(self, driver: Driver, work: Coroutine[Any, Any, Any]) -> bool:
        """Returns whether the work was done."""
        task = asyncio.ensure_future(caught(work))
        hangs = asyncio.ensure_future(driver.hanging.wait())
        await asyncio.wait((task, hangs), return_when=asyncio.FIRST_COMPLETED)
        hangs.cancel()
        if not task.done():
            self._hung.append((driver, task))
            return False
        if (error := await task) is not None:
            raise error
        return True

    async def _abort(self, wanted: Decision) -> None:
        driver = self.driver()
        with contextlib.suppress(Killed, TidemarkError):
            work = abort_run(driver, wanted.batch, wanted.run, wanted.winners)
            await self._unless_it_hangs(driver, work)

    def _wake(self) -> None:
        """Drivers that hang go on, and an operator may recover the sink meanwhile."""
        while self._hung and self.rng.random() < 0.3:
            driver, task = self._hung.pop(self.rng.randrange(len(self._hung)))
            driver.woken.set()
            self._awake.append(task)
        if self.rng.random() < self._hangs:
            driver = self.driver()
            driver.hanging.set()  # once is enough
            self._awake.append(asyncio.ensure_future(caught(recover(driver))))

    async def settle(self) -> None:
        """All that hangs goes on to its end."""
        for driver, _ in self._hung:
            driver.woken.set()
        await asyncio.gather(*self._awake, *(task for _, task in self._hung))


async def caught(work: Coroutine[Any, Any, Any]) -> BaseException | None:
    """The error of a process. None of another process ends the loop."""
    try:
        await work
    except (Killed, TidemarkError) as error:
        return error
    return None
