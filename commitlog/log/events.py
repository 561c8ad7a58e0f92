"""Events that a log reports to its owner: that it changed, and that its files are about to change.

The protocols are generic in the log's type. So a log can name them, and an owner can implement
them, without a circle of imports.
"""

from __future__ import annotations

from typing import Protocol, TypeVar

L = TypeVar("L", contravariant=True)


class ChangedLogs(Protocol[L]):
    """The set to which a log adds itself after each change."""

    def add(self, log: L, /) -> None: ...


class LogEvents(Protocol[L]):
    """The owner's side of a log's events; given to `open_log`."""

    @property
    def unread(self) -> ChangedLogs[L]:
        """The set for an open log."""

    def truncating(self, log: L) -> None:
        """Called when the recovery point is lowered, before anything is truncated, in any thread.
        It makes that durable. If it raises, nothing is truncated.
        """

    def cut(self, log: L) -> None:
        """Called after `truncating` by the owner of the log, before anything is truncated."""

    def restarted(self, log: L) -> None:
        """Called before a log that continues elsewhere is changed further: its log start must be
        durable. If it raises, nothing is changed.
        """

    def rolling(self, log: L, is_gap: bool) -> None:
        """Called before a new active segment is created. If it raises, none is created.

        `is_gap`: the segment does not begin where the one before it ends.
        """


class _Untracked:
    """The owner of logs without a manager: the metadata log, and logs opened by tools."""

    def add(self, log: object, /) -> None:
        """Does nothing."""

    @property
    def unread(self) -> _Untracked:
        return self

    def truncating(self, log: object) -> None:
        """Does nothing: no checkpoint names the log."""

    def cut(self, log: object) -> None:
        """Does nothing: nobody listens."""

    def restarted(self, log: object) -> None:
        """Does nothing: no checkpoint names the log."""

    def rolling(self, log: object, is_gap: bool) -> None:
        """Does nothing: no checkpoint names the log."""


UNTRACKED = _Untracked()
