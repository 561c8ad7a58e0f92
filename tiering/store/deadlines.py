"""Wall-clock deadlines of HTTP calls: the time-out of a socket limits its silence alone, and a peer
that trickles bytes keeps a thread for ever.

A call's connection is shut down when its time is up, or when the store closes. So its reads and
writes end with an error. The pool's connections report to the call of their thread.
"""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any

import urllib3
from urllib3.connection import HTTPConnection, HTTPSConnection
from urllib3.connectionpool import HTTPConnectionPool, HTTPSConnectionPool

from tiering.errors import RetriableRemoteStorageError

_of_thread = threading.local()


class _Call:
    """A call under way: its end, and the socket it uses."""

    def __init__(self, ends_s: float) -> None:
        self.ends_s = ends_s
        self.cut = ""
        self._lock = threading.Lock()
        self._socket: Any = None

    def uses(self, sock: Any) -> None:
        """Notes the socket; shuts it down if the call was cut before."""
        with self._lock:
            self._socket = sock
        if self.cut:
            self.cut_off(self.cut)

    def cut_off(self, reason: str) -> None:
        """Ends the call's reads and writes."""
        with self._lock:
            self.cut = reason
            if self._socket is not None:
                with suppress(OSError, ValueError):
                    # Under TLS, too: the plain socket is shut down, and its owner closes it.
                    socket.socket.shutdown(self._socket, socket.SHUT_RDWR)

    def finish(self) -> None:
        """Forgets the socket: another call may use it from now on."""
        with self._lock:
            self._socket = None


class Deadlines:
    """The calls of one store, watched by a thread of its own while there are any."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._changed = threading.Condition()
        self._calls: set[_Call] = set()
        self._watched = False
        self.closed = threading.Event()

    @contextmanager
    def call(self, seconds: float) -> Iterator[None]:
        """Gives the calls of this thread `seconds`. Raises RetriableRemoteStorageError if they took
        longer, or the store was closed.
        """
        if self.closed.is_set():
            raise RetriableRemoteStorageError("the tier's store is closed: the node stops")
        call = _Call(self._clock() + seconds)
        with self._changed:
            self._calls.add(call)
            if not self._watched:
                self._watched = True
                threading.Thread(target=self._watch, name="remote-deadlines", daemon=True).start()
            self._changed.notify()
        _of_thread.call = call
        try:
            yield
        except Exception as error:
            if call.cut:
                raise RetriableRemoteStorageError(call.cut) from error
            raise
        finally:
            _of_thread.call = None
            call.finish()
            with self._changed:
                self._calls.discard(call)
        if call.cut:
            raise RetriableRemoteStorageError(call.cut)

    def sleep(self, seconds: float) -> None:
        """Sleeps, at most until the store is closed."""
        self.closed.wait(seconds)

    def close(self) -> None:
        """Cuts all calls, and refuses new ones."""
        self.closed.set()
        with self._changed:
            calls = list(self._calls)
            self._changed.notify()
        for call in calls:
            call.cut_off("the tier's store was closed: the node stops")

    def _watch(self) -> None:
        while True:
            with self._changed:
                if not self._calls:
                    self._changed.wait(10)
                if not self._calls:
                    self._watched = False
                    return
                now_s = self._clock()
                late = [call for call in self._calls if call.ends_s <= now_s and not call.cut]
                waiting = [call.ends_s for call in self._calls if not call.cut]
                if not late:
                    self._changed.wait(max(0.001, min(waiting) - now_s) if waiting else 1)
                    continue
            for call in late:
                call.cut_off("the store took longer than the call may")


class _Watched:
    """A connection that tells the call of its thread its socket."""

    sock: Any

    def connect(self) -> None:
        super().connect()  # type: ignore[misc]
        self._tell()

    def putrequest(self, *args: Any, **options: Any) -> None:
        self._tell()
        super().putrequest(*args, **options)  # type: ignore[misc]

    def _tell(self) -> None:
        call = getattr(_of_thread, "call", None)
        if call is not None and self.sock is not None:
            call.uses(self.sock)


class _Connection(_Watched, HTTPConnection):  # type: ignore[misc]
    pass


class _TlsConnection(_Watched, HTTPSConnection):  # type: ignore[misc]
    pass


class _Bounded:
    """A pool whose callers wait for a connection no longer than their call may take."""

    def _get_conn(self, timeout: float | None = None) -> Any:
        call = getattr(_of_thread, "call", None)
        if timeout is None and call is not None:
            timeout = max(0.001, call.ends_s - time.monotonic())
        return super()._get_conn(timeout)  # type: ignore[misc]


class _Pool(_Bounded, HTTPConnectionPool):  # type: ignore[misc]
    ConnectionCls = _Connection


class _TlsPool(_Bounded, HTTPSConnectionPool):  # type: ignore[misc]
    ConnectionCls = _TlsConnection


def watched_pool(**options: Any) -> urllib3.PoolManager:
    """Returns a PoolManager whose connections keep to the deadlines of their threads' calls."""
    manager = urllib3.PoolManager(**options)
    manager.pool_classes_by_scheme = {"http": _Pool, "https": _TlsPool}
    return manager
