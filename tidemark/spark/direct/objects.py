"""Gets byte ranges of objects: by http(s) with a presigned URL, or from a file of a shared
directory.

The bytes go straight into the buffer of the caller. A store that is overloaded or breaks a
connection is asked again after a random exponential wait, as the brokers do. What a URL means to
its store, only its first answer tells: one that is refused has mostly expired.

A read has a time in all, and each of its tries half of that. A store that sends a byte now and then
is asked over another connection, and counts then as one that does not answer.
"""

from __future__ import annotations

import functools
import http.client
import io
import os
import random
import socket
import ssl
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Any
from urllib.parse import SplitResult, urlsplit
from urllib.request import url2pathname

from tidemark.errors import TidemarkError

_TIMEOUT_S = 20.0
_TRIES = 5
DEADLINE_S = 120.0
_FIRST_WAIT_S = 0.1
_OVERLOADED = frozenset((408, 429, 500, 502, 503, 504))
_REFUSED = frozenset((400, 401, 403))  # AWS says 400 where the signer's token has expired


class ObjectUnreadableError(TidemarkError):
    """An object, or a part of it, that the store does not give."""


class StoreUnavailableError(ObjectUnreadableError):
    """A store that does not answer: it may have the object."""


class UrlExpiredError(ObjectUnreadableError):
    """A URL that the store refuses, and of which a new one may work."""


class _BusyError(Exception):
    """An answer or a failure after which the store is asked again."""


class _CheckedSocket(io.RawIOBase):
    """Bytes of a socket, each read of which calls `check` first."""

    def __init__(self, raw: io.RawIOBase, check: Callable[[], None]) -> None:
        self._raw = raw
        self._check = check

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int | None:
        self._check()
        return self._raw.readinto(buffer)  # type: ignore[attr-defined, no-any-return]

    def close(self) -> None:
        self._raw.close()
        super().close()


class _CheckedResponse(http.client.HTTPResponse):
    """An answer that calls `check` before each read of its socket, also while it has a status."""

    def __init__(self, *arguments: Any, check: Callable[[], None], **more: Any) -> None:
        super().__init__(*arguments, **more)
        self.fp = io.BufferedReader(_CheckedSocket(self.fp.detach(), check))


class Objects:
    """Reads objects for one slice, over one connection; used by one thread."""

    def __init__(
        self,
        sleep: Callable[[float], None] = time.sleep,
        tries: int = _TRIES,
        timeout_s: float = _TIMEOUT_S,
        deadline_s: float = DEADLINE_S,
        now_s: Callable[[], float] = time.monotonic,
    ) -> None:
        """Tries a read `tries` times, within `deadline_s`; each may be silent for `timeout_s`."""
        self._sleep = sleep
        self._deadline_s = deadline_s
        self._now_s = now_s
        self._until_s = 0.0
        self._tries = tries
        self._timeout_s = timeout_s
        self._connection: http.client.HTTPConnection | None = None
        self._server = ("", "")
        self._is_aborted = False

    def read(self, url: str, position: int, into: memoryview) -> None:
        """Fills the buffer with the bytes of an object from `position` on.

        Raises UrlExpiredError, StoreUnavailableError, and ObjectUnreadableError if the store has
        no such bytes.
        """
        parts = urlsplit(url)
        if parts.scheme == "file":
            _read_file(url2pathname(parts.path), position, into)
        elif parts.scheme in ("http", "https") and parts.hostname:
            self._read_http(parts, position, into)
        else:
            raise ObjectUnreadableError(f"a URL of scheme {parts.scheme!r} can not be read")

    def abort(self) -> None:
        """Has a read under way fail soon; called by another thread."""
        self._is_aborted = True
        connection = self._connection
        if connection is not None and connection.sock is not None:
            with suppress(OSError):
                connection.sock.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        """Closes the connection."""
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.close()

    def _read_http(self, parts: SplitResult, position: int, into: memoryview) -> None:
        end_s = self._now_s() + self._deadline_s
        for attempt in range(1, self._tries + 1):
            self._until_s = min(end_s, self._now_s() + self._deadline_s / 2)
            if self._is_aborted:
                raise ObjectUnreadableError(f"{_shown(parts)}: the read was ended")
            try:
                self._get(parts, position, into)
                return
            except (_BusyError, OSError, http.client.HTTPException) as error:
                self.close()
                is_last = attempt == self._tries or self._now_s() >= end_s
                if is_last or isinstance(error, ssl.SSLCertVerificationError):
                    raise StoreUnavailableError(f"{_shown(parts)}: {error!r}") from error
            except BaseException:
                self.close()  # the rest of the answer is in its way
                raise
            if not self._is_aborted:
                self._sleep(_FIRST_WAIT_S * 2**attempt * random.uniform(0.5, 1))

    def _get(self, parts: SplitResult, position: int, into: memoryview) -> None:
        connection = self._to(parts)
        target = f"{parts.path}?{parts.query}" if parts.query else parts.path
        last = position + len(into) - 1
        if connection.sock is None:
            connection.connect()
        if self._is_aborted:  # `abort` may not have seen the socket
            raise ObjectUnreadableError(f"{_shown(parts)}: the read was ended")
        connection.request("GET", target, headers={"Range": f"bytes={position}-{last}"})
        answer = connection.getresponse()
        if answer.status != 206:
            reason = answer.read(2_000).decode("utf-8", "replace")
            self.close()
            text = f"{_shown(parts)}: {answer.status} {answer.reason} {reason}"
            if answer.status in _OVERLOADED:
                raise _BusyError(text)
            if answer.status in _REFUSED:
                raise UrlExpiredError(text)
            raise ObjectUnreadableError(text)
        if answer.length != len(into):
            raise ObjectUnreadableError(
                f"{_shown(parts)}: {answer.length} bytes from {position} on, not {len(into)}"
            )
        got = 0
        while got < len(into):
            count = answer.readinto(into[got:])
            if not count:
                raise _BusyError(f"the answer ended after {got} of {len(into)} bytes")
            got += count

    def _check_time(self) -> None:
        if self._now_s() >= self._until_s:
            raise _BusyError(f"the answer is not whole after {self._deadline_s / 2:.0f} s")

    def _to(self, parts: SplitResult) -> http.client.HTTPConnection:
        if self._connection is not None and self._server == (parts.scheme, parts.netloc):
            return self._connection
        self.close()
        host, port = parts.hostname or "", parts.port
        if parts.scheme == "https":
            context = ssl.create_default_context()
            self._connection = http.client.HTTPSConnection(
                host, port, timeout=self._timeout_s, context=context
            )
        else:
            self._connection = http.client.HTTPConnection(host, port, timeout=self._timeout_s)
        self._connection.response_class = functools.partial(  # type: ignore[assignment]
            _CheckedResponse, check=self._check_time
        )
        self._server = parts.scheme, parts.netloc
        return self._connection


def _shown(parts: SplitResult) -> str:
    """The URL without its signature, which gives the right to read."""
    return f"{parts.scheme}://{parts.netloc}{parts.path}"


def _read_file(path: str, position: int, into: memoryview) -> None:
    try:
        descriptor = os.open(path, os.O_RDONLY | getattr(os, "O_CLOEXEC", 0))
        try:
            got = 0
            while got < len(into):
                count = os.preadv(descriptor, [into[got:]], position + got)
                if not count:
                    raise ObjectUnreadableError(f"{path} ends at byte {position + got}")
                got += count
        finally:
            with suppress(OSError):
                os.close(descriptor)
    except FileNotFoundError as error:
        raise ObjectUnreadableError(f"{path}: {error.strerror}") from error
    except OSError as error:
        raise StoreUnavailableError(f"{path}: {error.strerror}") from error
