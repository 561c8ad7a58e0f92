"""The audit log: logins that failed, what was denied, and what administrators changed.

Its logger has a name of its own (see `AUDIT`), so that it can go to another place. The same
line is told once a minute at most: a client tries again and again.
"""

from __future__ import annotations

import logging
from collections.abc import Callable

from google.protobuf.message import Message

from tidemark.security import acls
from tidemark.surroundings import surroundings

AUDIT = "tidemark.audit"
logger = logging.getLogger(AUDIT)

_AGAIN_MS = 60_000
_REMEMBERED_MAX = 10_000
_NAMED_MAX = 5
_CHARACTERS_MAX = 500  # of a line: a caller chooses names
_NAMES = ("name", "user", "topic", "group_id", "resource_name")


class Audit:
    """One per node."""

    def __init__(self, now_ms: Callable[[], int] | None = None) -> None:
        self._now_ms = now_ms or surroundings().mono_ms
        self._told_ms: dict[str, int] = {}

    def denied(
        self, principal: str, host: str, operation: int, resource_type: int, name: str
    ) -> None:
        what = f"{acls.operation_name(operation)} on {acls.resource_type_name(resource_type)}"
        self._tell(f"denied: {principal} from {host}: {what} {name!r}")

    def turned_away(self, principal: str, host: str, path: str) -> None:
        self._tell(f"denied: {principal} from {host}: {path} is for nodes")

    def rejected(self, host: str, reason: str) -> None:
        self._tell(f"login failed: from {host}: {reason}")

    def changed(self, principal: str, host: str, rpc: str, request: Message) -> None:
        """An administrator's request; whether it succeeded is not known yet."""
        line = f"{rpc} by {principal} from {host}{_subjects(request)}"
        logger.info("%s", _one_line(line))

    def _tell(self, line: str) -> None:
        line, now_ms = _one_line(line), self._now_ms()
        told_ms = self._told_ms.get(line)
        if told_ms is not None and now_ms - told_ms < _AGAIN_MS:
            return
        if len(self._told_ms) >= _REMEMBERED_MAX:
            self._told_ms.clear()
        self._told_ms[line] = now_ms
        logger.warning("%s", line)


def _one_line(text: str) -> str:
    """The text without line breaks and the like, which would forge further lines."""
    short = text if len(text) <= _CHARACTERS_MAX else f"{text[:_CHARACTERS_MAX]}..."
    return "".join(c if c.isprintable() else ascii(c)[1:-1] for c in short)


def _subjects(request: Message) -> str:
    """The names of what a request is about, the first ones."""
    found: list[str] = []
    for _, value in request.ListFields():
        for item in value if isinstance(value, list) or hasattr(value, "add") else [value]:
            found += [item] if isinstance(item, str) else _names_of(item)
    more = f" and {len(found) - _NAMED_MAX} more" if len(found) > _NAMED_MAX else ""
    return f": {', '.join(found[:_NAMED_MAX])}{more}" if found else ""


def _names_of(item: object) -> list[str]:
    """The name of one item; values of settings, and keys, are not told."""
    resource = getattr(item, "resource", item)
    names = (getattr(resource, name, "") for name in _NAMES)
    return next(([name] for name in names if isinstance(name, str) and name), [])
