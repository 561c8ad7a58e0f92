"""CRC checks and decoding of fetched batches; where one is damaged, the part before it.

A plain function of bytes, which runs on the loop or in a thread. A damaged batch takes no record
before it along: the sound batches are returned with the error.
"""

from __future__ import annotations

import logging
from dataclasses import replace
from typing import Any, NamedTuple

from tidemark.client.errors import CorruptBatchError
from tidemark.client.records import RawBatches, decode
from tidemark.errors import CorruptMessageError, TidemarkError
from tidemark.records.header import iter_batches, verify_crcs

logger = logging.getLogger(__name__)


class Examined(NamedTuple):
    """The rows, if decoded; or an error, and the sound batches before it, if any."""

    rows: Any = None
    error: TidemarkError | None = None
    sound: RawBatches | None = None


def examine(raw: RawBatches, *, decodes: bool, check_crcs: bool) -> Examined:
    """Checks batches, and decodes them if asked to. Never raises an Exception."""
    try:
        return Examined(_examine(raw, decodes, check_crcs))
    except Exception as problem:
        if not isinstance(problem, CorruptMessageError):
            logger.exception("%s: fetched batches can not be read", raw.topic_partition)
        return _before_damage(raw, problem, decodes, check_crcs)


def _examine(raw: RawBatches, decodes: bool, check_crcs: bool) -> Any:
    if decodes:
        return decode(raw, check_crcs=check_crcs)
    if check_crcs:
        verify_crcs(raw.buffer)
    return None


def _before_damage(
    raw: RawBatches, problem: Exception, decodes: bool, check_crcs: bool
) -> Examined:
    """Finds the first batch that can not be read by itself."""
    end, next_offset = 0, raw.first_offset
    damaged_at = raw.first_offset
    try:
        for position, header in iter_batches(raw.buffer):
            damaged_at = max(header.base_offset, next_offset)
            alone = raw.buffer[position : position + header.size_bytes]
            _examine(replace(raw, buffer=alone, aborted=()), decodes, check_crcs)
            end, next_offset = position + header.size_bytes, header.last_offset + 1
            damaged_at = max(next_offset, raw.first_offset)
        # Each batch can be read, but not all together: the first ones can.
        end, next_offset, damaged_at = 0, raw.first_offset, raw.first_offset
    except Exception as found:
        problem = found
    error: TidemarkError
    if isinstance(problem, TidemarkError) and not isinstance(problem, CorruptMessageError):
        error = problem
    else:
        text = str(problem) if isinstance(problem, CorruptMessageError) else repr(problem)
        error = CorruptBatchError(raw.topic_partition, damaged_at, text)
    if not end or next_offset <= raw.first_offset:
        return Examined(error=error)
    sound = replace(raw, buffer=raw.buffer[:end], next_offset=next_offset)
    return Examined(error=error, sound=sound)
