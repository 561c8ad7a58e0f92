"""The driver's part of the exactly-once sink. No IO: `SinkCoordinators` does it.

Tasks leave their transactions open. The commit of a batch takes these steps:

1. list what is open, and what of it is prepared
2. fence earlier drivers of the sink, which resolves a decision that they left half made
3. read the last decision, and end its winners again: nothing decided stays open
4. if it is of this batch: abort this run, and be done; if it is of a later one: fail
5. prepare each winner, so that none times out any more
6. decide: one record, in a transaction of the driver, names the batch and its winners
7. commit the winners, and abort what was listed and is none

Before 6 nothing is visible, and after it nothing can be lost:

- A driver decides only for attempts of its own run, which it has prepared behind its own fence. One
  that step 1 finds prepared is of a driver that step 2 fences. It is decided by step 3, or never.
- Any other may become a winner of a newer driver, so it is aborted only while it is not prepared.
  The coordinator checks that.
- Attempts take ids in turn, but only an id that is free (`tasks`). So a winner whose id another one
  has by now was committed. If it was aborted by force, its id keeps a mark, and is not free.

After an error in 6 the decision may stand or not. Only the next driver's fence tells, so nothing
is aborted then. Spark calls `abort_run` after any error, in a process of its own.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Collection, Iterable, Sequence
from typing import NamedTuple, Protocol, TypeVar

from tidemark.errors import (
    InvalidProducerEpochError,
    InvalidProducerIdMappingError,
    InvalidTxnStateError,
    ProducerFencedError,
    TidemarkError,
    UnsupportedVersionError,
)
from tidemark.spark.sink.decision import Attempt, Decision, SinkError, check_owner, sink_of

T = TypeVar("T")

logger = logging.getLogger(__name__)

_AT_ONCE = 64  # calls of coordinators
_GONE = (
    InvalidProducerEpochError,
    InvalidProducerIdMappingError,
    InvalidTxnStateError,
    ProducerFencedError,
)


class OpenAttempt(NamedTuple):
    """An open transaction of the sink, as it was when it was listed."""

    attempt: Attempt
    is_prepared: bool


class Recovery(NamedTuple):
    """The last decision, the number of transactions that were aborted, and the winners that were
    lost."""

    last: Decision | None
    aborted: int
    lost: tuple[Attempt, ...]


class SinkCoordinators(Protocol):
    """The coordinators of one sink. Calls are repeated within until they succeed or can not."""

    async def fence(self) -> None:
        """Fences earlier drivers. Their decision stands or never will, and is readable."""

    async def last_decision(self) -> Decision | None:
        """The decision that stands."""

    async def prepare(self, attempt: Attempt) -> None:
        """Ends the timeout of an open transaction; idempotent."""

    async def end(self, attempt: Attempt, *, committed: bool, keep_prepared: bool = False) -> None:
        """Ends a transaction; idempotent. With `keep_prepared` it fails if it is prepared."""

    async def propose(self, decision: Decision) -> None:
        """Writes a decision that does not count yet."""

    async def confirm(self) -> None:
        """Has the proposed decision count. After an error it may, or may not."""

    async def open_attempts(self, but: Collection[str]) -> Sequence[OpenAttempt]:
        """The open transactions of the sink, as far as coordinators can be asked, without those of
        these ids."""


async def commit_batch(coordinators: SinkCoordinators, wanted: Decision) -> bool:
    """Makes the batch count, once. Returns whether it does by this call. One call per run.

    Raises SinkError if an attempt can not be committed any more, ConfigError as `check_owner`, and
    errors of coordinators. After any of them the same batch may come again.
    """
    found = await _listed(coordinators, wanted.winners)
    await coordinators.fence()
    last = await coordinators.last_decision()
    check_owner(last, wanted)
    if last is not None:
        await _commit_all(coordinators, last)
        if last.batch == wanted.batch:
            if last.run != wanted.run:
                await _abort_all(coordinators, wanted.winners)
            await _sweep(coordinators, found, last)
            return False
    try:
        await _prepare_all(coordinators, wanted)
        await coordinators.propose(wanted)
    except Exception:
        await _abort_all(coordinators, wanted.winners)  # nobody has asked to confirm it
        raise
    await coordinators.confirm()
    await _commit_all(coordinators, wanted)
    await _sweep(coordinators, found, last)
    return True


async def abort_run(
    coordinators: SinkCoordinators, batch: int, run: str, attempts: Sequence[Attempt]
) -> None:
    """Aborts a run's attempts, unless its batch was decided for it: Spark aborts also after a
    commit that raised.

    Spark does not have the messages of all tasks, so open transactions of the sink are looked for.
    One that begins later is aborted by the next batch, or by its timeout. Raises errors of
    coordinators.
    """
    found = [*await _listed(coordinators, ())]
    seen = {each.attempt for each in found}
    found += [OpenAttempt(each, False) for each in attempts if each not in seen]
    await coordinators.fence()
    last = await coordinators.last_decision()
    if last is not None and (last.batch, last.run) == (batch, run):
        await _commit_all(coordinators, last)
    await _sweep(coordinators, found, last)


async def recover(coordinators: SinkCoordinators, *, accept_loss: bool = False) -> Recovery:
    """Ends all that a driver left behind which does not come back: commits the winners of the last
    decision, aborts the rest. A driver that is at work fails, and its batch may come again.

    Winners that were aborted by force are lost. With `accept_loss` the decision is written again
    without them, so that the next batch can come. Raises SinkError otherwise, when all others are
    ended, and errors of coordinators.
    """
    found = await coordinators.open_attempts(())
    await coordinators.fence()
    last = await coordinators.last_decision()
    lost: tuple[Attempt, ...] = ()
    if last is not None:
        lost = await _commit_winners(coordinators, last)
    aborted = await _sweep(coordinators, found, last)
    if last is not None and lost:
        if not accept_loss:
            raise _lost(last, lost)
        left = tuple(each for each in last.winners if each not in lost)
        await coordinators.propose(last._replace(winners=left))
        await coordinators.confirm()
    return Recovery(last, aborted, lost)


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
    """Commits the winners, some of which may be committed already. Raises SinkError."""
    if lost := await _commit_winners(coordinators, decided):
        raise _lost(decided, lost)


async def _commit_winners(coordinators: SinkCoordinators, decided: Decision) -> tuple[Attempt, ...]:
    """Commits the winners. Returns those that were aborted by force."""
    lost: dict[Attempt, TidemarkError] = {}

    async def commit(attempt: Attempt) -> None:
        try:
            await coordinators.end(attempt, committed=True)
        except (InvalidProducerIdMappingError, ProducerFencedError):
            logger.debug("%s has ended, and its id is another one's", attempt)
        except _GONE as error:
            lost[attempt] = error

    await _each(decided.winners, commit)
    return tuple(each for each in decided.winners if each in lost)


def _lost(decided: Decision, lost: Sequence[Attempt]) -> SinkError:
    ids = ", ".join(each.transactional_id for each in lost[:10])
    return SinkError(
        f"batch {decided.batch} was decided, but {len(lost)} of its {len(decided.winners)}"
        f" transactions were aborted by force ({ids}): their records are lost, and the other ones"
        " are there. Write the lost ones again, where they matter. Then `tidemark transactions"
        f" recover-sink --sink-id {sink_of(lost[0].transactional_id)} --accept-loss` lets the next"
        " batch come"
    )


async def _abort_all(coordinators: SinkCoordinators, attempts: Iterable[Attempt]) -> None:
    """Aborts attempts of this driver's own run, which it does not decide any more."""
    await _sweep(coordinators, [OpenAttempt(each, True) for each in attempts], None)


async def _listed(
    coordinators: SinkCoordinators, winners: Iterable[Attempt]
) -> Sequence[OpenAttempt]:
    """Leftovers; those that can not be found now are ended by a later batch, or by their time."""
    try:
        return await coordinators.open_attempts({each.transactional_id for each in winners})
    except TidemarkError as error:
        logger.info("leftovers of the sink are not looked for: %r", error)
        return ()


async def _sweep(
    coordinators: SinkCoordinators, found: Iterable[OpenAttempt], last: Decision | None
) -> int:
    """Aborts what was listed before the fence, and is no winner of the decision that was read
    behind it. Returns the number of those aborted."""
    winners = frozenset(() if last is None else last.winners)
    aborted = 0

    async def abort(each: OpenAttempt) -> None:
        nonlocal aborted
        try:
            await coordinators.end(
                each.attempt, committed=False, keep_prepared=not each.is_prepared
            )
            aborted += 1
        except TidemarkError as error:
            logger.info("%s is not aborted: %r", each.attempt.transactional_id, error)

    await _each((each for each in found if each.attempt not in winners), abort)
    return aborted


async def _each(attempts: Iterable[T], call: Callable[[T], Awaitable[None]]) -> None:
    """Calls for each attempt, some at once. Raises the first error when all are done."""
    room = asyncio.Semaphore(_AT_ONCE)

    async def one(attempt: T) -> None:
        async with room:
            await call(attempt)

    found = await asyncio.gather(*map(one, attempts), return_exceptions=True)
    for error in found:
        if isinstance(error, BaseException):
            raise error
