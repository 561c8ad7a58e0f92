"""Leaders and epochs of the metadata quorum as they were seen, newest last (pure).

It notes a change of the leader, the epoch or the voters, and counts as seen until the time of the
last look. It holds `CHANGES_MAX` changes; older ones are forgotten, and the view says so.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from typing import Any

CHANGES_MAX = 256


@dataclass(frozen=True, slots=True)
class QuorumSight:
    """The quorum at one look; `leader_id` is None while no leader is known."""

    leader_id: int | None
    epoch: int
    high_watermark: int | None
    voters: tuple[int, ...]


class QuorumTimeline:
    """Changes of the quorum, by the time of the look that saw them first, in ms."""

    def __init__(self) -> None:
        self._changes: deque[tuple[int, QuorumSight]] = deque(maxlen=CHANGES_MAX)
        self._last_ms = 0
        self._forgotten = 0

    def see(self, now_ms: int, sight: QuorumSight) -> None:
        """Notes a look at the quorum."""
        self._last_ms = max(now_ms, self._last_ms)  # the wall clock may be set back
        if self._changes and _same(self._changes[-1][1], sight):
            return
        self._forgotten += len(self._changes) == CHANGES_MAX
        self._changes.append((self._last_ms, sight))

    def view(self) -> dict[str, Any]:
        """The changes with the time until the next one."""
        begins = [began_ms for began_ms, _ in self._changes]
        ends = [*begins, self._last_ms][1:]
        return {
            "forgotten": self._forgotten,
            "changes": [
                {
                    "began_ms": began_ms,
                    "ended_ms": ended_ms,
                    "leader": sight.leader_id,
                    "epoch": sight.epoch,
                    "high_watermark": sight.high_watermark,
                    "voters": list(sight.voters),
                }
                for (began_ms, sight), ended_ms in zip(self._changes, ends, strict=True)
            ],
        }


def _same(one: QuorumSight, other: QuorumSight) -> bool:
    return (one.leader_id, one.epoch, one.voters) == (other.leader_id, other.epoch, other.voters)
