"""Clients in a forked child: their connections, tasks and threads are the parent's.

A call would wait for ever there, or write into the parent's sockets. It raises ClientForkedError.
"""

from __future__ import annotations

import os
from typing import Any, Protocol
from weakref import WeakSet

from tidemark.client.errors import ClientForkedError


class Forked(Protocol):
    def forked(self) -> None:
        """Called in a forked child, for a client of the parent; it must not block."""


_clients: WeakSet[Any] = WeakSet()


def watch(client: Forked) -> None:
    """Notifies `client` in each child that this process forks."""
    _clients.add(client)


def refuse(*_: Any, **__: Any) -> Any:
    """Raises ClientForkedError, whatever the arguments."""
    raise ClientForkedError(
        "this process was forked after its parent made the client, whose connections and tasks do"
        " not exist here: make a client after the fork, or start the process by the method 'spawn'"
        " or 'forkserver' of multiprocessing"
    )


def _after_fork() -> None:
    for client in list(_clients):
        client.forked()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)
