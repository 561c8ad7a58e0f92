"""Nodes that asked this client for a pause, because it is above a quota (KIP-219). Pure."""

from __future__ import annotations

from collections.abc import Iterator


class ThrottledNodes:
    """Until when nodes are left alone, and how long they asked for it so far."""

    __slots__ = ("_answers", "_max_ms", "_total_ms", "_until_ms")

    def __init__(self) -> None:
        self._until_ms: dict[int, float] = {}
        self._answers = 0
        self._total_ms = self._max_ms = 0

    def answered(self, node: int, throttle_ms: int, now_ms: float) -> None:
        """Takes the throttle time of an answer; a longer one of an answer before it stays."""
        self._answers += 1
        if throttle_ms > 0:
            self._total_ms += throttle_ms
            self._max_ms = max(self._max_ms, throttle_ms)
            self._until_ms[node] = max(self._until_ms.get(node, 0.0), now_ms + throttle_ms)

    def until_ms(self, node: int) -> float:
        """Returns the time (ms) from which the node may be asked."""
        return self._until_ms.get(node, 0.0)

    def ends_after(self, now_ms: float) -> Iterator[float]:
        """Returns the ends (ms) of the pauses under way."""
        return (until_ms for until_ms in self._until_ms.values() if until_ms > now_ms)

    def metrics(self, kind: str) -> dict[str, float]:
        """Throttle times of all answers in ms, by Kafka's names; `kind` is produce or fetch."""
        average = self._total_ms / self._answers if self._answers else 0.0
        return {
            f"{kind}-throttle-time-avg": average,
            f"{kind}-throttle-time-max": float(self._max_ms),
        }
