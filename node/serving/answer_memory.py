"""A bound on the bytes of answers to consumers that are not sent yet (`queued.max.response.bytes`).

gRPC keeps an answer until its client has taken it. A client that stops reading leaves its answers
here until its calls end, by their deadline or with the connection.
"""

from __future__ import annotations

from typing import Any


class AnswerMemory:
    """Counts the bytes of answers under way on one event loop."""

    def __init__(self, limit_bytes: int) -> None:
        self.limit_bytes = limit_bytes
        self.used_bytes = 0

    def room(self) -> int:
        """Returns how many bytes the next answer may have: half of what is left.

        So clients that stop reading always leave some to others. An answer has at least one batch,
        though, and is as large as that where no room is left.
        """
        return max(0, self.limit_bytes - self.used_bytes) // 2

    def hold(self, size_bytes: int, context: Any) -> None:
        """Counts an answer until its call, a gRPC context, has ended."""
        self.used_bytes += size_bytes
        context.add_done_callback(lambda _: self.release(size_bytes))

    def release(self, size_bytes: int) -> None:
        """Counts bytes no longer that gRPC has sent."""
        self.used_bytes -= size_bytes
        assert self.used_bytes >= 0, "released more than was held"


class AnswersOfCall:
    """The answers of one call that stays open: each is held until it is written."""

    def __init__(self, memory: AnswerMemory) -> None:
        self._memory = memory
        self._held_bytes = 0

    def hold(self, size_bytes: int) -> None:
        """Counts an answer until `release`."""
        self._memory.used_bytes += size_bytes
        self._held_bytes += size_bytes

    def release(self) -> None:
        """All answers are written, or the call has ended."""
        self._memory.release(self._held_bytes)
        self._held_bytes = 0
