"""The nodes of `tidemark dev` while it runs: one that ends is told, and started again."""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Callable, Iterable
from typing import Protocol

_RESTARTS_MAX = 3
_WITHIN_S = 60.0


class Node(Protocol):
    """A node's process, as far as the watch looks at it."""

    node_id: int
    role: str

    @property
    def exit_status(self) -> int | None:
        """None while it runs; -N after signal N."""

    def output_tail(self) -> str: ...


class Watch:
    """Tells of nodes that ended, and restarts each up to three times a minute.

    `restart` is None where they stay down. `now_s` is a monotonic clock.
    """

    def __init__(
        self,
        nodes: Iterable[Node],
        say: Callable[[str], None],
        restart: Callable[[int], None] | None,
        now_s: Callable[[], float],
    ) -> None:
        self._nodes = list(nodes)
        self._say = say
        self._restart = restart
        self._now_s = now_s
        self._restarts: defaultdict[int, deque[float]] = defaultdict(deque)
        self._down: set[int] = set()

    def look(self) -> None:
        """Looks at each node once."""
        for node in self._nodes:
            status = node.exit_status
            if status is not None and node.node_id not in self._down:
                self._ended(node, status)

    def _ended(self, node: Node, status: int) -> None:
        name = f"{node.role} {node.node_id}"
        how = f"by signal {-status}" if status < 0 else f"with exit status {status}"
        tail = "\n".join(f"  {line}" for line in node.output_tail().splitlines())
        self._say(f"{name} ended {how}" + (f"; its output ends with:\n{tail}" if tail else ""))
        if self._restart is not None and self._may_restart(node.node_id):
            self._restart(node.node_id)
            self._say(f"{name} starts again")
            return
        self._down.add(node.node_id)
        often = f" after {_RESTARTS_MAX} restarts within a minute" if self._restart else ""
        self._say(f"{name} stays down{often}")

    def _may_restart(self, node_id: int) -> bool:
        restarts, now_s = self._restarts[node_id], self._now_s()
        while restarts and restarts[0] <= now_s - _WITHIN_S:
            restarts.popleft()
        if len(restarts) == _RESTARTS_MAX:
            return False
        restarts.append(now_s)
        return True
