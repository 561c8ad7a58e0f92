"""The log of a process: text or JSON, repeated lines told once, levels that change at run time.

Levels have Kafka's names (KIP-412): TRACE, DEBUG, INFO, WARN, ERROR, FATAL. Loggers are those of
Python's modules; `root` has the level of all that have none of their own.
"""

from __future__ import annotations

import json
import logging
import sys
import time
from collections import OrderedDict, deque
from collections.abc import Callable
from datetime import UTC, datetime
from typing import TextIO

FORMATS = ("text", "json")
ROOT = "root"
LEVELS = {
    "TRACE": 5,
    "DEBUG": logging.DEBUG,
    "INFO": logging.INFO,
    "WARN": logging.WARNING,
    "ERROR": logging.ERROR,
    "FATAL": logging.CRITICAL,
}

_TEXT = "%(asctime)s %(levelname)s %(name)s: %(message)s"
_SILENCE_S = 60.0
_LINES_MAX = 1_000
_RECENT_MAX, _RECENT_CHARS_MAX = 1_000, 2_000
_recent: deque[str] = deque(maxlen=_RECENT_MAX)


class JsonFormatter(logging.Formatter):
    """One JSON object a line."""

    def __init__(self, node_id: int | None = None) -> None:
        super().__init__()
        self._fixed = {} if node_id is None else {"node_id": node_id}

    def format(self, record: logging.LogRecord) -> str:
        """`time` is RFC 3339 in UTC, to the millisecond."""
        moment = datetime.fromtimestamp(record.created, UTC)
        told = {
            "time": moment.isoformat(timespec="milliseconds").replace("+00:00", "Z"),
            "level": name_of(record.levelno),
            "logger": record.name,
            **self._fixed,
            "message": record.getMessage(),
        }
        if record.exc_info:
            told["exception"] = self.formatException(record.exc_info)
        return json.dumps(told, ensure_ascii=False)


class Repeats(logging.Filter):
    """Lets a line through once a minute, with the number of those that were left out.

    Of two lines that differ in a number only, both are told. At most `_LINES_MAX` lines are
    remembered; the oldest is forgotten first.
    """

    def __init__(self, clock_s: Callable[[], float] = time.monotonic) -> None:
        super().__init__()
        self._clock_s = clock_s
        self._told: OrderedDict[tuple[str, int, str], list[float]] = OrderedDict()

    def filter(self, record: logging.LogRecord) -> bool:
        """Whether the line is told; one that comes again after a while learns its count."""
        if record.levelno < logging.INFO:
            return True
        try:
            text = record.getMessage()
        except (TypeError, ValueError):  # the handler reports the wrong arguments
            return True
        now_s, key = self._clock_s(), (record.name, record.levelno, text)
        known = self._told.get(key)
        if known is not None and now_s - known[0] < _SILENCE_S:
            known[1] += 1
            return False
        if known is not None and known[1]:
            record.msg = f"{text} (and {known[1]:.0f} times more in {now_s - known[0]:.0f} s)"
            record.args = None
        self._told[key] = [now_s, 0]
        self._told.move_to_end(key)
        if len(self._told) > _LINES_MAX:
            self._told.popitem(last=False)
        return True


class _Remembering(logging.StreamHandler[TextIO]):
    """Writes lines, and keeps the last ones for `recent_lines`."""

    def format(self, record: logging.LogRecord) -> str:
        text = super().format(record)
        _recent.append(text[:_RECENT_CHARS_MAX])
        return text


def recent_lines(max_lines: int = 0) -> list[str]:
    """The newest lines of this process's log, oldest first; 0 or below: all that are kept.

    A thousand are kept, each up to 2,000 characters.
    """
    kept = list(_recent)
    return kept[-max_lines:] if max_lines > 0 else kept


def setup(
    level: int = logging.INFO,
    style: str = "text",
    node_id: int | None = None,
    stream: TextIO | None = None,
) -> None:
    """Replaces the handlers of the root logger by one for `stream`, by default stderr."""
    handler = _Remembering(stream or sys.stderr)
    handler.setFormatter(JsonFormatter(node_id) if style == "json" else logging.Formatter(_TEXT))
    handler.addFilter(Repeats())
    root = logging.getLogger()
    for former in list(root.handlers):
        root.removeHandler(former)
    root.addHandler(handler)
    root.setLevel(level)


def name_of(level: int) -> str:
    """Kafka's name of a level, or of the nearest below."""
    known = [name for name, number in LEVELS.items() if number <= level]
    return known[-1] if known else "TRACE"


def levels() -> dict[str, str]:
    """The levels in effect by logger, by name."""
    root = logging.getLogger()
    found = {ROOT: name_of(root.level)}
    for name, each in sorted(root.manager.loggerDict.items()):
        if isinstance(each, logging.Logger):
            found[name] = name_of(each.getEffectiveLevel())
    return found


def set_level(name: str, level: str | None) -> None:
    """Sets the level of a logger and of those below it that have none of their own.

    None gives it the level of the logger above. Raises ValueError as `check_level`.
    """
    check_level(name, level)
    number = logging.NOTSET if level is None else LEVELS[level.upper()]
    logging.getLogger(None if name == ROOT else name).setLevel(number)


def check_level(name: str, level: str | None) -> None:
    """Raises ValueError for an unknown logger or level, and for None of the root logger."""
    if name != ROOT and name not in logging.getLogger().manager.loggerDict:
        raise ValueError(f"there is no logger {name!r}")
    if level is None and name == ROOT:
        raise ValueError("the root logger always has a level")
    if level is not None and level.upper() not in LEVELS:
        raise ValueError(f"{level!r} is none of {', '.join(LEVELS)}")
