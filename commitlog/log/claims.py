"""Judges by a log's files the offsets that its directory's checkpoints have for it. Pure, but for
the log lines.

The checkpoints are text without a checksum, and files may be cut or missing although they were
durable. A contradiction between the two is never resolved in favour of less data:

- A log that ends below its recovery point lacks records that were durable. It is not opened.
  Otherwise their offsets would be given to new records.
- A log start beyond the log's end would remove all of it. It is believed only after an unclean
  stop, where the end may be lost, and only up to the high watermark, which it never passes.
"""

from __future__ import annotations

import logging
from collections.abc import Collection

from tidemark.errors import StorageError

logger = logging.getLogger(__name__)

_FURTHEST = 1 << 30
"""Most offsets that can be missing. A recovery point further behind the end is damaged. Or a crash
came before the segment behind a large gap was created (`Log.roll`)."""


class RecordsMissingError(StorageError):
    """A log's files lack records that were durable."""


class StartsBehindEndError(StorageError):
    """A log starts behind its last record: a crash lost the end, and what is left was deleted."""


def check_end(path: str, end: int, recovery_point: int | None) -> None:
    """Raises RecordsMissingError if a log that ends at `end` lacks records below its recovery
    point; None if that is unknown.
    """
    if recovery_point is not None and end < recovery_point <= end + _FURTHEST:
        raise RecordsMissingError(
            f"{path} ends at offset {end}, below its recovery point {recovery_point}: records that"
            " were durable are missing or damaged. It is copied anew from its leader as soon as"
            " another replica is in sync. If there is none, stop the broker and restore the files"
            f" of {path}. To continue without the missing records, keep a copy of {path}, and"
            " remove recovery-point-offset-checkpoint before the start"
        )


def check_indexes(path: str, without_segment: Collection[str]) -> None:
    """Raises RecordsMissingError if there are indexes that lost their segment."""
    if without_segment:
        name = min(without_segment)
        raise RecordsMissingError(
            f"{path} has {name} without its segment: the segment is gone, and nothing deleted it."
            " The log is copied anew from its leader as soon as another replica is in sync. If"
            f" there is none, stop the broker and restore the files of {path}; to continue without"
            " these records, remove the indexes"
        )


def check_start(
    path: str,
    start: int,
    end: int,
    recovery_point: int | None,
    high_watermark: int | None,
    clean: bool,
) -> None:
    """Judges a checkpointed log start that lies beyond the log's end; logs one that is wrong.

    `high_watermark`: the checkpointed one, None if it is unknown. Raises StartsBehindEndError if
    the log may start there.
    """
    is_durable = recovery_point is not None and recovery_point > end
    is_reached = high_watermark is None or start <= high_watermark
    if not clean and not is_durable and is_reached:
        raise StartsBehindEndError(
            f"{path} ends at offset {end}, and its log starts at {start}: all of it was deleted"
        )
    logger.error(
        "%s ends at offset %d, but log-start-offset-checkpoint has %d: that is not believed, and"
        " deleted records may be back until the leader or retention removes them",
        path,
        end,
        start,
    )
