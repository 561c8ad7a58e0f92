"""Log lines for errors that nothing foresaw: with the traceback, once per cause in a while.

A peer repeats a request that fails, so the same error may come many times a second.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable

from tidemark.errors import TidemarkError

logger = logging.getLogger(__name__)

LOG_INTERVAL_S = 60.0
"""Time between two log lines of the same cause, in seconds."""
CAUSES_MAX = 100
"""Causes that are remembered; beyond that, all are forgotten and may be logged again."""


class UnforeseenErrors:
    """The causes logged lately: the type of the error, and the place that raised it."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._due_s: dict[tuple[type, str, int], float] = {}

    def log(self, what: str, error: Exception) -> None:
        """Logs an error that is no typed one. `what` is the request that failed."""
        if isinstance(error, TidemarkError):
            return  # its code and message are the answer
        cause, now_s = _cause(error), self._clock()
        if now_s < self._due_s.get(cause, now_s):
            return
        if len(self._due_s) >= CAUSES_MAX:
            self._due_s.clear()
        self._due_s[cause] = now_s + LOG_INTERVAL_S
        logger.error("a %s failed unforeseen", what, exc_info=error)


def _cause(error: Exception) -> tuple[type, str, int]:
    trace, file, line = error.__traceback__, "", 0
    while trace is not None:
        file, line = trace.tb_frame.f_code.co_filename, trace.tb_lineno
        trace = trace.tb_next
    return type(error), file, line
