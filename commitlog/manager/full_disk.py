"""Waits for space on a full disk, where an opening of logs needs some.

A full disk refuses writes, but nothing that it holds is damaged. So an opening repeats what was
refused, with a growing pause, until there is space or the node stops.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from typing import TypeVar

from commitlog.disk.files import DiskError

logger = logging.getLogger(__name__)
_T = TypeVar("_T")

_FIRST_PAUSE_S = 0.25
_LONGEST_PAUSE_S = 10.0
_REMINDER_S = 60.0


class FullDiskWait:
    """Repeats calls that a full disk refuses; any thread."""

    def __init__(self) -> None:
        self._stopped = threading.Event()
        self._teller = threading.Lock()  # held by the one caller that logs
        self.pause: Callable[[float], object] = self._stopped.wait

    def stop(self) -> None:
        """Ends all waiting; the calls raise their last error."""
        self._stopped.set()

    def run(self, what: str, call: Callable[[], _T]) -> _T:
        """Returns the result of `call`. Raises its error, a DiskError of a full disk only after
        `stop`. Logs the first such error and then one a minute.
        """
        pause_s, untold_s, tells = _FIRST_PAUSE_S, _REMINDER_S, False
        try:
            while True:
                try:
                    return call()
                except DiskError as error:
                    if not error.is_full or self._stopped.is_set():
                        raise
                    tells = tells or self._teller.acquire(blocking=False)
                    if tells and untold_s >= _REMINDER_S:
                        untold_s = 0.0
                        logger.error("%s waits for space: %s", what, error)
                self.pause(pause_s)
                untold_s += pause_s
                pause_s = min(2 * pause_s, _LONGEST_PAUSE_S)
        finally:
            if tells:
                self._teller.release()
