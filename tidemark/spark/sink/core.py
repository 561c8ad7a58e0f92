"""The driver's part of the exactly-once sink. No IO: `SinkCoordinators` does it.

Tasks leave their transactions open. The commit of a batch takes these steps:

1. fence earlier drivers of the sink, which resolves a decision that they left half made
2. read the last decision, and end its winners again: nothing decided stays open
3. if it is of this batch: abort this run, and be done; if it is of a later one: fail
4. prepare each winner, so that none times out any more
5. decide: one record, in a transaction of the driver, names the batch and its winners
6. commit the winners, and abort what other attempts left open

Before 5 nothing is visible, and after it nothing can be lost. Batches grow, so a transaction of a
decided batch, or an earlier one, that is no winner never becomes one.

After an error in 5 the decision may stand or not. Only the next driver's fence tells, so nothing
is aborted then. Spark calls `abort_run` after any error, in a process of its own.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterable, Sequence
from typing import NamedTuple, Protocol

from tidemark.errors import (
    InvalidProducerEpochError,
    InvalidProducerIdMappingError,
    InvalidTxnStateError,
    ProducerFencedError,
    TidemarkError,
    UnsupportedVersionError,
)
from tidemark.spark.sink.decision import Attempt, Decision, SinkError, check_owner

logger = logging.getLogger(__name__)

_AT_ONCE = 64  # calls of coordinators
_GONE = (
    InvalidProducerEpochError,
    InvalidProducerIdMappingError,
    InvalidTxnStateError,
    ProducerFencedError,
)


class OpenAttempt(NamedTuple):
    """An open transaction of the sink, with the batch and the run that its id names."""

    batch: int
    run: str
    attempt: Attempt


class SinkCoordinators(Protocol):
    """The coordinators of one sink. Calls are repeated within until they succeed or can not."""

    async def fence(self) -> None:
        """Fences earlier drivers. Their decision stands or never will, and is readable."""

    async def last_decision(self) -> Decision | None:
        """The decision that stands."""

    async def prepare(self, attempt: Attempt) -> None:
        """Ends the timeout of an open transaction; idempotent."""

    async def end(self, attempt: Attempt, *, committed: bool) -> None:
        """Ends a transaction; idempotent."""

    async def propose(self, decision: Decision) -> None:
        """Writes a decision that does not count yet."""

    async def confirm(self) -> None:
        """Has the proposed decision count. After an error it may, or may not."""

    async def open_attempts(self) -> Sequence[OpenAttempt]:
        """The open transactions of the sink, as far as coordinators can be asked."""


async def commit_batch(coordinators: SinkCoordinators, wanted: Decision) -> bool:
    """Makes the batch count, once. Returns whether it does by this call.

    Raises SinkError if an attempt can not be committed any more, ConfigError as `check_owner`, and
    errors of coordinators. After any of them the same batch may come again.
    """
    await coordinators.fence()
    last = await coordinators.last_decision()
    check_owner(last, wanted)
    if last is not None:
        await _commit_all(coordinators, last)
        if last.batch == wanted.batch:
            if last.run != wanted.run:
                await _abort_all(coordinators, wanted.winners)
            await _sweep(coordinators, lambda each: each.batch <= last.batch)
            return False
    try:
        await _prepare_all(coordinators, wanted)
        await coordinators.propose(wanted)
    except Exception:
        await _abort_all(coordinators, wanted.winners)  # nobody has asked to confirm it
        raise
    await coordinators.confirm()
    await _commit_all(coordinators, wanted)
    await _sweep(coordinators, lambda each: each.batch <= wanted.batch)
    return True


async def abort_run(
    coordinators: SinkCoordinators, batch: int, run: str, attempts: Sequence[Attempt]
) -> None:
    """Aborts a run's attempts, unless its batch was decided for it: Spark aborts also after a
    commit that raised.

    Spark does not have the messages of all tasks, so the open transactions of the run are looked
    for. One that begins later is aborted by its timeout. Raises errors of coordinators.
    """
    await coordinators.fence()
    last = await coordinators.last_decision()
    if last is not None and (last.batch, last.run) == (batch, run):
        await _commit_all(coordinators, last)
        attempts = [each for each in attempts if each not in last.winners]
    await _abort_all(coordinators, attempts)
    await _sweep(coordinators, lambda each: (each.batch, each.run) == (batch, run))


async def recover(coordinators: SinkCoordinators) -> tuple[Decision | None, int]:
    """Ends all that a driver left behind which does not come back: commits the winners of the last
    decision, aborts the rest. Returns the decision, and the number of those aborted.

    No driver may be at work: what it decides meanwhile would be aborted. Raises errors of
    coordinators, and SinkError if a winner was ended by somebody else, when all others are ended.
    """
    await coordinators.fence()
    last = await coordinators.last_decision()
    winners: frozenset[Attempt] = frozenset()
    lost: SinkError | None = None
    if last is not None:
        winners = frozenset(last.winners)
        try:
            await _commit_all(coordinators, last)
        except SinkError as error:
            lost = error
    rest = [each.attempt for each in await coordinators.open_attempts()]
    rest = [each for each in rest if each not in winners]
    await _each(rest, lambda each: coordinators.end(each, committed=False))
    if lost is not None:
        raise lost
    return last, len(rest)


async def _prepare_all(coordinators: SinkCoordinators, wanted: Decision) -> None:
    try:
        await _each(wanted.winners, coordinators.prepare)
    except UnsupportedVersionError as error:
        raise SinkError(
            f"batch {wanted.batch} is not written: {error}; set it, or write with"
            " delivery.guarantee=at-least-once"
        ) from error
    except _GONE as error:
        raise SinkError(
            f"batch {wanted.batch} is not written: a task's transaction can not be committed any"
            " more. Did the batch take longer than transaction.timeout.ms, or does another driver"
            f" write to the same sinkId? ({error})"
        ) from error


async def _commit_all(coordinators: SinkCoordinators, decided: Decision) -> None:
    """Commits the winners, some of which may be committed already."""

    async def commit(attempt: Attempt) -> None:
        try:
            await coordinators.end(attempt, committed=True)
        except InvalidProducerIdMappingError:
            # An open transaction does not expire: this one was ended days ago.
            logger.debug("%s ended long ago, and is forgotten", attempt.transactional_id)

    try:
        await _each(decided.winners, commit)
    except _GONE as error:
        raise SinkError(
            f"batch {decided.batch} was decided, but somebody else ended one of its transactions"
            f" ({error}): its records are lost, unless it was committed before. Look which are"
            " there, and go on with another sinkId"
        ) from error


async def _abort_all(coordinators: SinkCoordinators, attempts: Iterable[Attempt]) -> None:
    """Aborts attempts that can not count. One that remains is aborted by its timeout, or by the
    sweep of the batch if it is prepared."""

    async def abort(attempt: Attempt) -> None:
        try:
            await coordinators.end(attempt, committed=False)
        except TidemarkError as error:
            logger.info("%s is not aborted: %r", attempt.transactional_id, error)

    await _each(attempts, abort)


async def _sweep(coordinators: SinkCoordinators, is_over: Callable[[OpenAttempt], bool]) -> None:
    """Aborts what is open and can not count any more. Winners are not open by now, and a later
    batch may be that of a newer driver."""
    try:
        found = await coordinators.open_attempts()
    except TidemarkError as error:
        logger.info("leftovers of the sink are not looked for: %r", error)
        return
    await _abort_all(coordinators, [each.attempt for each in found if is_over(each)])


async def _each(attempts: Iterable[Attempt], call: Callable[[Attempt], Awaitable[None]]) -> None:
    """Calls for each attempt, some at once. Raises the first error when all are done."""
    room = asyncio.Semaphore(_AT_ONCE)

    async def one(attempt: Attempt) -> None:
        async with room:
            await call(attempt)

    found = await asyncio.gather(*map(one, attempts), return_exceptions=True)
    for error in found:
        if isinstance(error, BaseException):
            raise error
