"""Reads a page of records of one partition, bounded in records, bytes and time.

The page begins at an offset, at a time, at the start, or so many records before the end. Offsets
that compaction, transactions or aborted records leave empty count as read.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from tidemark.client.models import ConsumerRecord
from tidemark.console import record_views
from tidemark.errors import InvalidRequestError
from tidemark.types import TopicPartition

RECORDS_MAX = 200
READ_S_MAX = 6.0
_DEFAULT_RECORDS = 50
_POLL_MS = 500
_OFFSET_MAX = 2**63 - 1
_LEVELS = ("read_uncommitted", "read_committed")


class PageReader(Protocol):
    """The part of AsyncConsumer that is used here."""

    def assign(self, partitions: list[TopicPartition]) -> None: ...
    def seek(self, partition: TopicPartition, offset: int) -> None: ...
    async def poll(self, timeout_ms: float, max_records: int) -> Any: ...
    async def position(self, partition: TopicPartition, timeout_ms: float) -> int: ...
    async def beginning_offsets(
        self, partitions: list[TopicPartition]
    ) -> dict[TopicPartition, int]: ...
    async def end_offsets(self, partitions: list[TopicPartition]) -> dict[TopicPartition, int]: ...
    async def offsets_for_times(
        self, timestamps: Mapping[TopicPartition, int]
    ) -> Mapping[TopicPartition, Any]: ...


@dataclass(frozen=True, slots=True)
class BrowseQuery:
    """The page that a user asks for.

    `offset` and `timestamp_ms` exclude each other; without them the page has the last records.
    """

    partition: TopicPartition
    offset: int | None
    timestamp_ms: int | None
    limit: int
    isolation_level: str
    format: str

    @classmethod
    def of(cls, parameters: Mapping[str, str]) -> BrowseQuery:
        """Reads parameters of a URL. Raises InvalidRequestError."""
        topic = parameters.get("topic", "")
        if not topic:
            raise InvalidRequestError("name a topic: topic=events")
        level = parameters.get("isolation", _LEVELS[0])
        if level not in _LEVELS:
            raise InvalidRequestError(f"isolation={level[:40]!r} is none of {', '.join(_LEVELS)}")
        offset = _number(parameters, "offset", 0, _OFFSET_MAX)
        timestamp_ms = _number(parameters, "timestamp", 0, _OFFSET_MAX)
        if offset is not None and timestamp_ms is not None:
            raise InvalidRequestError("give offset or timestamp, not both")
        limit = _number(parameters, "limit", 1, RECORDS_MAX)
        shown_as = parameters.get("format", record_views.FORMATS[0])
        if shown_as not in record_views.FORMATS:
            told = ", ".join(record_views.FORMATS)
            raise InvalidRequestError(f"format={shown_as[:40]!r} is none of {told}")
        return cls(
            TopicPartition(topic, _number(parameters, "partition", 0, 2**31 - 1) or 0),
            offset,
            timestamp_ms,
            _DEFAULT_RECORDS if limit is None else limit,
            level,
            shown_as,
        )


def _number(parameters: Mapping[str, str], name: str, least: int, most: int) -> int | None:
    """A number of a URL; None if it is empty or missing. Raises InvalidRequestError."""
    text = parameters.get(name, "").strip()
    if not text:
        return None
    if not (text.isascii() and text.isdigit() and len(text) <= 19 and least <= int(text) <= most):
        raise InvalidRequestError(f"{name}={text[:40]!r} is no number from {least} to {most}")
    return int(text)


async def browse(reader: PageReader, query: BrowseQuery) -> dict[str, Any]:
    """A page of records, and the offsets around it."""
    partition = query.partition
    starts = await reader.beginning_offsets([partition])
    ends = await reader.end_offsets([partition])
    start, end = starts[partition], ends[partition]
    offset = min(max(await _wanted(reader, query, end), start), end)
    reader.assign([partition])
    reader.seek(partition, offset)
    found: list[ConsumerRecord] = []
    position, is_late = offset, False
    try:
        async with asyncio.timeout(READ_S_MAX):
            while len(found) < query.limit and position < end:
                found += await reader.poll(_POLL_MS, query.limit - len(found))
                position = await reader.position(partition, _POLL_MS)
    except TimeoutError:
        is_late = True
    found = [record for record in found if record.offset < end]
    records = []
    for view in record_views.views_of(found, query.format):
        records.append(view)
        await asyncio.sleep(0)  # the loop may be a broker's
    after = position if len(records) == len(found) else records[-1]["offset"] + 1
    return {
        "topic": partition.topic,
        "partition": partition.partition,
        "log_start_offset": start,
        "end_offset": end,
        "first_offset": offset,
        "next_offset": min(after, end),
        "isolation": query.isolation_level,
        "is_late": is_late,
        "records": records,
    }


async def _wanted(reader: PageReader, query: BrowseQuery, end: int) -> int:
    if query.offset is not None:
        return query.offset
    if query.timestamp_ms is None:
        return max(0, end - query.limit)
    found = (await reader.offsets_for_times({query.partition: query.timestamp_ms}))[query.partition]
    return end if found is None else int(found.offset)
