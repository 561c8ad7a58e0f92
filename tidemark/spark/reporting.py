"""Progress of a stream as offsets of a consumer group, for tools that watch the lag of groups.

The checkpoint alone says where a query goes on, so nothing waits for a commit. The newest offsets
replace those that have not been committed. A commit that fails is logged and left.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Mapping
from typing import Any

from tidemark.client import Admin, OffsetAndMetadata
from tidemark.config.security import ClientSecurity
from tidemark.types import TopicPartition

logger = logging.getLogger(__name__)

Offsets = Mapping[TopicPartition, int]


class GroupReport:
    """Commits offsets for a group without members, in a thread that ends when there are no more."""

    def __init__(
        self,
        servers: str,
        group_id: str,
        make: Callable[..., Any] = Admin,
        *,
        security: ClientSecurity | None = None,
    ) -> None:
        self._servers = servers
        self._security = security
        self._group_id = group_id
        self._make = make
        self._lock = threading.Lock()
        self._pending: Offsets | None = None
        self._last: Offsets = {}
        self._thread: threading.Thread | None = None

    def report(self, offsets: Offsets) -> None:
        """Has the offsets committed, unless they were before, or newer ones come first."""
        with self._lock:
            if not offsets or offsets == self._last:
                return
            self._pending = self._last = dict(offsets)
            if self._thread is None:
                self._thread = threading.Thread(
                    target=self._commit, name="tidemark-group-report", daemon=True
                )
                self._thread.start()

    def wait(self, timeout_s: float) -> None:
        """Waits for the thread, if it runs."""
        thread = self._thread
        if thread is not None:
            thread.join(timeout_s)

    def _commit(self) -> None:
        while (offsets := self._next()) is not None:
            try:
                with self._make(self._servers, security=self._security) as admin:
                    admin.groups.alter_offsets(
                        self._group_id,
                        {tp: OffsetAndMetadata(offset) for tp, offset in offsets.items()},
                    )
            except Exception as error:  # of a report: the query goes on
                logger.warning(
                    "group %s: its offsets were not committed: %s", self._group_id, error
                )

    def _next(self) -> Offsets | None:
        """The newest offsets; None ends the thread, whose successor is begun by `report`."""
        with self._lock:
            found, self._pending = self._pending, None
            if found is None:
                self._thread = None
            return found
