"""Events that a log reports to its owner: that it changed, and what its files are about to become.

The protocols are generic in the log's type. So a log can name them, and an owner can implement
them, without a circle of imports.
"""

from __future__ import annotations

from typing import Protocol, TypeVar

L = TypeVar("L", contravariant=True)


class ChangedLogs(Protocol[L]):
    """The logs that changed, as far as a log needs them: it adds itself after each change."""

    def add(self, log: L, /) -> None: ...


class LogEvents(Protocol[L]):
    """The owner's side of a log's events; given to `open_log`."""

    @property
    def unread(self) -> ChangedLogs[L]:
        """The set to which the open log adds itself."""

    def truncating(self, log: L) -> None:
        """The recovery point is lowered, and nothing is cut yet. If this raises, nothing is."""

    def rolling(self, log: L, is_gap: bool) -> None:
        """A new active segment comes next. If this raises, none is made.

        `is_gap`: the segment does not begin where the one before it ends.
        """


class _Untracked:
    """The owner of logs that no manager has: the metadata log, and logs opened by tools."""

    def add(self, log: object, /) -> None:
        """Does nothing."""

    @property
    def unread(self) -> _Untracked:
        return self

    def truncating(self, log: object) -> None:
        """Does nothing: no checkpoint names the log."""

    def rolling(self, log: object, is_gap: bool) -> None:
        """Does nothing: no checkpoint names the log."""


UNTRACKED = _Untracked()
