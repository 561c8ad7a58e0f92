"""Errors of reads: retriable and typed whatever a plug-in raises, counted, logged once a minute for
each cause.

The tier keeps what a read failed to get, so a client repeats it. Errors that say more than that
stay as they are: an offset out of range, a missing object, wrong bytes, an overload.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import TypeVar

from tidemark.errors import ApiError, CorruptMessageError, TidemarkError
from tiering.errors import RemoteResourceNotFoundError, RetriableRemoteStorageError
from tiering.metadata.segments import RemoteLogSegmentMetadata
from tiering.metrics import RemoteMetrics

T = TypeVar("T")

logger = logging.getLogger(__name__)

_QUIET_S = 60
_CAUSES_MAX = 100


def naming(segment: RemoteLogSegmentMetadata, call: Callable[[], T]) -> Callable[[], T]:
    """Returns the call of a store with errors that name the segment. It runs in a thread."""

    def named() -> T:
        try:
            return call()
        except (RemoteResourceNotFoundError, CorruptMessageError):
            raise
        except BaseException as error:  # a plug-in's SystemExit does not end the node
            what = str(error) if isinstance(error, TidemarkError) else repr(error)
            raise RetriableRemoteStorageError(
                f"remote segment {segment.remote_log_segment_id}: {what}"
            ) from error

    return named


class Failures:
    """The failures of one node's reads."""

    def __init__(self, metrics: RemoteMetrics) -> None:
        self._metrics = metrics
        self._logged: dict[str, tuple[float, int]] = {}  # when in s, failures since

    def typed(self, what: str, error: Exception, now_s: float, topic: str) -> ApiError:
        """Counts and logs the failure of a read; returns the error for its client."""
        self._metrics.count("remote_fetch_errors", topic)
        self._log(what, error, now_s)
        if isinstance(error, ApiError) and error.retriable:
            return error
        return RetriableRemoteStorageError(f"{what}: {error!r}")

    def _log(self, what: str, error: Exception, now_s: float) -> None:
        root = error.__cause__ or error
        cause = type(root).__qualname__
        logged_s, since = self._logged.get(cause, (now_s - _QUIET_S, 0))
        if now_s - logged_s < _QUIET_S:
            self._logged[cause] = (logged_s, since + 1)
            return
        if len(self._logged) >= _CAUSES_MAX:
            self._logged.clear()
        self._logged[cause] = (now_s, 0)
        foreseen = isinstance(root, (TidemarkError, OSError))
        more = f"; {since} more by {cause} since the last line" if since else ""
        logger.warning("%s: %s%s", what, error, more, exc_info=None if foreseen else root)
