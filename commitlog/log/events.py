"""What a log reports to its owner: that it changed, and what is about to happen to its files.

The protocols are generic in the log's type, so that a log can name them and an owner can implement
them without either importing the other.
"""

from __future__ import annotations

from typing import Protocol, TypeVar

L = TypeVar("L", contravariant=True)


class ChangedLogs(Protocol[L]):
    """Where a log adds itself after each change; usually a set."""

    def add(self, log: L, /) -> None: ...


class LogEvents(Protocol[L]):
    """What a log reports to its owner; given to `Log.open`."""

    @property
    def unread(self) -> ChangedLogs[L]:
        """Where the open log adds itself after each change."""

    def truncating(self, log: L) -> None:
        """The recovery point is lowered, and nothing is cut yet. Where this raises, nothing is."""

    def rolling(self, log: L, is_gap: bool) -> None:
        """A new active segment comes next; `is_gap`: it does not follow on the one before. Where
        this raises, none is made."""


class _Untracked:
    """Of logs that no manager has: the metadata log's, those of a copy under way."""

    def add(self, log: object, /) -> None:
        """Does nothing."""

    @property
    def unread(self) -> _Untracked:
        return self

    def truncating(self, log: object) -> None:
        """No checkpoint names it."""

    def rolling(self, log: object, is_gap: bool) -> None:
        """No checkpoint names it."""


UNTRACKED = _Untracked()
