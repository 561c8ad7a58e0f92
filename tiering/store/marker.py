"""The marker: a small object at the root of a tier, by which a tier that looks empty is known.

A directory that is not mounted, and a bucket that was emptied or replaced, have none. What they
lack is not deleted, only out of reach: an outage, which is retried and logged. The first copy into
a new tier writes the marker.
"""

from __future__ import annotations

import threading
from collections.abc import Callable

from tiering.errors import RetriableRemoteStorageError

MARKER = "tidemark-tier"
CONTENT = b"The remote segments of Tidemark are beside this file. Without it they count as lost.\n"


class TierMarker:
    """The marker of one store: `exists` looks for it, `write` makes it, `where` names its place."""

    def __init__(self, where: str, exists: Callable[[], bool], write: Callable[[], None]) -> None:
        self._where = where
        self._exists = exists
        self._write = write
        self._expected = False
        self._lock = threading.Lock()

    def expect(self) -> None:
        """Notes that the tier has segments: its marker is not written again."""
        self._expected = True

    def is_begun(self) -> bool:
        """Whether there may be objects: the marker is written before any."""
        return self._expected or self._exists()

    def require(self) -> None:
        """Raises RetriableRemoteStorageError if there is no marker."""
        if not self._exists():
            raise RetriableRemoteStorageError(
                f"the tier at {self._where} looks empty: it has no {MARKER}. Mount the directory, "
                f"or restore the bucket, that has the segments"
            )
        self._expected = True

    def require_or_begin(self) -> None:
        """Writes the marker of a new tier; else as `require`."""
        with self._lock:  # the first uploads begin at once
            if not self._expected and not self._exists():
                self._write()
            self.require()
