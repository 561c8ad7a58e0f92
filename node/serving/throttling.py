"""Holds clients to their quotas (KIP-124, KIP-219): a request is answered, and the next one waits.

An answer carries throttle_time_ms, and the client sends nothing to this broker for so long. Its
connection is muted for the same time: a request that comes nevertheless waits for its end. So a
client that ignores the answer is no faster than one that does not.

Request time is the time that a request's code holds the event loop, waits excluded.
"""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Callable, Coroutine, Generator
from functools import partial
from typing import Any, Generic, TypeVar

import grpc

from node.quotas.clients import Caller, ClientQuotas
from node.serving.callers import caller_of
from tidemark.quotas.entities import PRODUCER_BYTE_RATE, REQUEST_PERCENTAGE
from tidemark.wire.metering import ApiMeter
from tidemark.wire.primitives import int_field

T = TypeVar("T")

_INT32_MAX = (1 << 31) - 1
_MUTED_MAX = 10_000  # connections; beyond, those whose time is over are forgotten
_WAITING_MAX = 16  # calls of a muted connection; more are refused


class Throttling:
    """The quotas of one broker at work, on all of its listeners."""

    def __init__(
        self, quotas: ClientQuotas | None = None, timer_s: Callable[[], float] = time.perf_counter
    ) -> None:
        self._quotas = quotas or ClientQuotas()
        self._timer_s = timer_s
        self._muted_until_s: dict[str, float] = {}  # by peer, which is a connection
        self._waiting: dict[str, int] = {}

    @property
    def is_active(self) -> bool:
        """Whether requests are charged; if not, nothing else here needs to be called."""
        return self._quotas.is_active

    def begin(self, context: Any) -> Charge:
        """The charge of a request that begins now."""
        return Charge(self, self._quotas, caller_of(context), context.peer(), self._timer_s)

    def muted_s(self, context: Any) -> float:
        """Returns the time for which requests of this connection wait, in s; 0: go on."""
        if not self._muted_until_s or not self._quotas.is_active:
            return 0.0
        peer = context.peer()
        until_s = self._muted_until_s.get(peer)
        if until_s is None:
            return 0.0
        left_s = until_s - now_s()
        if left_s <= 0:
            del self._muted_until_s[peer]
        return max(0.0, left_s)

    def mute(self, peer: str, wait_s: float) -> None:
        """Has further requests of a connection wait."""
        now = now_s()
        muted = self._muted_until_s
        if len(muted) >= _MUTED_MAX and peer not in muted:
            self._muted_until_s = muted = {p: until for p, until in muted.items() if until > now}
        muted[peer] = max(muted.get(peer, 0.0), now + wait_s)

    async def until_unmuted(self, context: Any) -> None:
        """Waits while the connection of a call is muted.

        Ends the call with RESOURCE_EXHAUSTED where too many of the connection wait already.
        """
        if not self.muted_s(context):
            return
        peer = context.peer()
        if self._waiting.get(peer, 0) >= _WAITING_MAX:
            text = "this client is above its quota: wait for the throttle_time_ms of the answers"
            await context.abort(grpc.StatusCode.RESOURCE_EXHAUSTED, text)
        self._waiting[peer] = self._waiting.get(peer, 0) + 1
        try:
            while (left_s := self.muted_s(context)) > 0:  # noqa: ASYNC110  # it may be extended
                await asyncio.sleep(left_s)
        finally:
            self._waiting[peer] -= 1
            if not self._waiting[peer]:
                del self._waiting[peer]


class Charge:
    """The use of a client's quotas by one request."""

    __slots__ = ("_peer", "_quotas", "_spent_s", "_throttling", "_timer_s", "caller")

    def __init__(
        self,
        throttling: Throttling,
        quotas: ClientQuotas,
        caller: Caller,
        peer: str,
        timer_s: Callable[[], float],
    ) -> None:
        self._throttling = throttling
        self._quotas = quotas
        self._peer = peer
        self._timer_s = timer_s
        self._spent_s = 0.0
        self.caller = caller

    def most_bytes(self, key: str, limit: int) -> int:
        """Returns `limit`, or what the quota allows in one request, if that is less."""
        return max(1, int(min(limit, self._quotas.most(key, self.caller, now_s()))))

    def use(self, key: str, size_bytes: int) -> None:
        """Counts bytes of the request or of its answer."""
        self._quotas.use(key, self.caller, size_bytes, now_s())

    def spend(self, work: Callable[[], T]) -> T:
        """Calls `work` and counts its time."""
        begin_s = self._timer_s()
        try:
            return work()
        finally:
            self._spent_s += self._timer_s() - begin_s

    def spending(self, work: Coroutine[Any, Any, T]) -> Timed[T]:
        """`work`, to be awaited: its turns on the loop are counted, and its waits are not."""
        return Timed(work, self)

    def throttle_ms(self, *keys: str) -> int:
        """Returns the throttle time of the answer by these keys and by request time, in ms.

        To be called once, when the answer is made: mutes the connection for that time.
        """
        now, spent_s = now_s(), self._spent_s
        self._spent_s = 0.0
        if spent_s:
            self._quotas.use(REQUEST_PERCENTAGE, self.caller, spent_s, now)
        every = (*keys, REQUEST_PERCENTAGE)
        wait_s = max(self._quotas.wait_s(key, self.caller, now) for key in every)
        if wait_s <= 0:
            return 0
        wait_ms = min(math.ceil(wait_s * 1000), _INT32_MAX)
        self._throttling.mute(self._peer, wait_ms / 1000)
        return wait_ms


class Timed(Generic[T]):
    """An awaitable that counts the time of each turn of a coroutine."""

    def __init__(self, work: Coroutine[Any, Any, T], charge: Charge) -> None:
        self._work = work
        self._charge = charge

    def __await__(self) -> Generator[Any, Any, T]:
        work, spend = self._work, self._charge.spend
        turn: Callable[[], Any] = partial(work.send, None)
        while True:
            try:
                waits_for = spend(turn)
            except StopIteration as end:
                result: T = end.value
                return result
            try:
                yield waits_for
                turn = partial(work.send, None)
            except BaseException as error:
                turn = partial(work.throw, error)


def throttle_field(charge: Charge, meter: ApiMeter) -> bytes:
    """`throttle_time_ms` of a ProduceResponse; a message may be continued by its fields."""
    throttle_ms = charge.throttle_ms(PRODUCER_BYTE_RATE)
    meter.throttle_s += throttle_ms / 1000
    return int_field(2, throttle_ms)


def now_s() -> float:
    """The time of quotas: that of the event loop, in s."""
    return asyncio.get_running_loop().time()
