"""The audit log: logins that failed, what was denied, and what administrators changed.

Its logger has a name of its own (see `AUDIT`), so that it can go to another place. A
client tries again and again: as of all lines, repeats are told once a minute (`tidemark/logs.py`).
"""

from __future__ import annotations

import logging

from google.protobuf.message import Message

from tidemark.security import acls

AUDIT = "tidemark.audit"
logger = logging.getLogger(AUDIT)

_NAMED_MAX = 5
_CHARACTERS_MAX = 500  # of a line: a caller chooses names
_NAMES = ("name", "user", "topic", "group_id", "resource_name")


class Audit:
    """One per node."""

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
        logger.warning("%s", _one_line(line))


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
