"""The world that a process takes for granted: clocks, randomness, network, disks, threads.

A running node or client has the machine's. A simulation gives each of its processes another one, by
context: code that runs in the context of `use(...)` finds that here. Objects ask once, when they
are made, so nothing is looked up on a hot path.

`network` and `open_directory` of None stand for gRPC (`tidemark.wire.network`) and the file system
(`commitlog.disk.os_files`), which know their own types.
"""

from __future__ import annotations

import contextlib
import os
import random
import time
from collections.abc import Callable, Iterator
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any


def _wall_ms() -> int:
    return time.time_ns() // 1_000_000


def _mono_ms() -> int:
    return time.monotonic_ns() // 1_000_000


@dataclass(frozen=True, slots=True)
class Surroundings:
    """One process's world; the defaults are the machine's."""

    wall_ms: Callable[[], int] = _wall_ms
    """Wall-clock time in ms, which stamps records and ages segments."""
    mono_ms: Callable[[], int] = _mono_ms
    """Monotonic time in ms, for durations."""
    random_bytes: Callable[[int], bytes] = os.urandom
    make_rng: Callable[[], random.Random] = random.Random
    network: Any = None
    open_directory: Any = None
    has_threads: bool = True
    """Whether work may be spread over threads that the event loop does not know."""
    loop_thread: Any = None
    """The loop of the blocking clients; None: one background thread of the process."""


_MACHINE = Surroundings()
_CURRENT: ContextVar[Surroundings] = ContextVar("surroundings", default=_MACHINE)


def surroundings() -> Surroundings:
    """The world of the running context."""
    return _CURRENT.get()


def make_rng(seed: int | None = None) -> random.Random:
    """A generator of `seed`; None: of the running context's choice."""
    return surroundings().make_rng() if seed is None else random.Random(seed)


def settle(world: Surroundings) -> None:
    """Makes `world` that of the running context from now on."""
    _CURRENT.set(world)


@contextlib.contextmanager
def use(world: Surroundings) -> Iterator[None]:
    """Makes `world` that of everything called or started inside."""
    token = _CURRENT.set(world)
    try:
        yield
    finally:
        _CURRENT.reset(token)


_security: Any = None


def secure(security: Any) -> None:
    """Makes `security` that of all clients of this process which are given none.

    It is a `tidemark.config.security.ClientSecurity`; None: plain text.
    """
    global _security
    _security = security


def process_security() -> Any:
    """The value of the last `secure`, for clients on whatever thread."""
    return _security
