"""Asks the leaders for the objects of the tier: pieces of a read, leases, and new URLs.

A read holds its objects by a lease per partition before it asks where they are. What no leader
plans is read from the brokers, and so is all of a topic whose first partition is not direct.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Iterable, Mapping, Sequence
from typing import Any
from urllib.parse import urlsplit
from uuid import uuid4

from tidemark.errors import (
    ApiError,
    ConfigError,
    OffsetOutOfRangeError,
    PolicyViolationError,
    error_for,
)
from tidemark.spark.direct.objects import Objects, ObjectUnreadableError
from tidemark.spark.direct.pieces import (
    Aborted,
    ObjectPiece,
    ReadLease,
    direct_slices,
    is_sound,
    with_waiting,
)
from tidemark.spark.lookups import AsyncLookups, Lookups
from tidemark.spark.offsets import OffsetRange
from tidemark.spark.options import SourceOptions
from tidemark.v1 import log_pb2 as pb

logger = logging.getLogger(__name__)

PLAN_READ = "/tidemark.v1.Log/PlanRead"
_AUTO_MS = 10_000  # of a plan that the brokers can do without
_RENEWAL_MS = 5_000
_PROBE_S = 3.0
_AT_ONCE = 16
_URLS_MAX = 64  # of one request


class NotDirectError(Exception):
    """A range that is to be read from the brokers, and why."""


def directed(
    lookups: Lookups, options: SourceOptions, ranges: Sequence[OffsetRange]
) -> list[OffsetRange]:
    """The slices of ranges: of the tier by bytes, where clients can read it, then of the brokers.

    Raises ConfigError with direct=true, if a range has to be read from brokers that has a tier.
    """
    if options.direct.mode == "false" or not ranges:
        return list(ranges)
    read = _Planning(options)
    slices = lookups.run(lambda core: read.slices(core, ranges))
    problem = _unreadable(slices)
    if problem is None:
        return slices
    lookups.run(lambda core: read.end_leases(core, slices))
    if options.direct.mode == "true":
        raise ConfigError(
            f"direct=true, but {problem}; direct=auto reads from the brokers where it has to"
        )
    logger.warning(
        "read from the brokers, not from their store: %s; direct=false spares the attempt", problem
    )
    return list(ranges)


def _unreadable(slices: Iterable[OffsetRange]) -> str | None:
    """Why the driver can not read one of the stores, which workers could not either."""
    samples: dict[tuple[str, str], ObjectPiece] = {}
    for offsets in slices:
        if offsets.direct is not None:
            piece = offsets.direct.pieces[0]
            parts = urlsplit(piece.url)
            samples.setdefault((parts.scheme, parts.netloc), piece)
    objects = Objects(tries=2, timeout_s=_PROBE_S, deadline_s=2 * _PROBE_S)
    try:
        for piece in samples.values():
            objects.read(piece.url, piece.start_position, memoryview(bytearray(1)))
    except ObjectUnreadableError as error:
        return str(error)
    finally:
        objects.close()
    return None


class _Planning:
    """The plan of one read."""

    def __init__(self, options: SourceOptions) -> None:
        self._options = options
        self._lease_id = f"spark-{uuid4()}"
        self._places = asyncio.Semaphore(_AT_ONCE)

    async def slices(self, core: AsyncLookups, ranges: Sequence[OffsetRange]) -> list[OffsetRange]:
        """The slices in the order of the ranges. Raises ConfigError."""
        core.restart(*([_AUTO_MS] if self._options.direct.mode == "auto" else []))
        topics: dict[str, dict[int, list[OffsetRange]]] = {}
        for offsets in ranges:
            partitions = topics.setdefault(offsets.topic, {})
            partitions.setdefault(offsets.partition, []).append(offsets)
        planned = await asyncio.gather(*(self._topic(core, each) for each in topics.values()))
        found = {id(offsets): slices for part in planned for offsets, slices in part}
        return with_waiting([each for offsets in ranges for each in found[id(offsets)]])

    async def _topic(
        self, core: AsyncLookups, partitions: Mapping[int, Sequence[OffsetRange]]
    ) -> list[tuple[OffsetRange, list[OffsetRange]]]:
        first, *others = partitions.values()
        try:
            begun = await self._partition(core, first)
        except NotDirectError as error:
            if self._options.direct.mode == "true":
                raise ConfigError(
                    f"direct=true, but {error}; direct=auto reads from the brokers where it has to"
                ) from None
            logger.info("read from the brokers: %s", error)
            return [(offsets, [offsets]) for part in partitions.values() for offsets in part]
        rest = await asyncio.gather(*(self._or_brokers(core, part) for part in others))
        return [*begun, *(pair for part in rest for pair in part)]

    async def _or_brokers(
        self, core: AsyncLookups, ranges: Sequence[OffsetRange]
    ) -> list[tuple[OffsetRange, list[OffsetRange]]]:
        try:
            return await self._partition(core, ranges)
        except NotDirectError as error:
            logger.warning("read from the brokers: %s", error)
            return [(offsets, [offsets]) for offsets in ranges]

    async def _partition(
        self, core: AsyncLookups, ranges: Sequence[OffsetRange]
    ) -> list[tuple[OffsetRange, list[OffsetRange]]]:
        """Each range of a partition with its slices. Raises NotDirectError."""
        try:
            async with self._places:
                lease = await self._hold(core, ranges)
                found = [(each, await self._range(core, each, lease)) for each in ranges]
                is_held = any(one.direct for _, slices in found for one in slices)
                if lease is not None and not is_held:
                    await _lease(core, ranges[0], lease._replace(lease_ms=0))
                return found
        except OffsetOutOfRangeError:  # the brokers tell exactly what is lost
            return [(offsets, [offsets]) for offsets in ranges]
        except ApiError as error:
            raise NotDirectError(f"{ranges[0].topic_partition}: {error}") from error

    async def _hold(self, core: AsyncLookups, ranges: Sequence[OffsetRange]) -> ReadLease | None:
        if not self._options.direct.lease_ms:
            return None
        start, end = ranges[0].start, ranges[-1].end
        now_ms = int(time.time() * 1000)
        wanted = ReadLease(self._lease_id, start, end, self._options.direct.lease_ms, now_ms)
        try:
            answer = await _lease(core, ranges[0], wanted)
        except PolicyViolationError as error:
            logger.warning("%s: read without a lease: %s", ranges[0].topic_partition, error)
            return None
        return wanted._replace(lease_ms=answer.lease_ms) if answer.lease_ms else None

    async def _range(
        self, core: AsyncLookups, offsets: OffsetRange, lease: ReadLease | None
    ) -> list[OffsetRange]:
        pieces: list[ObjectPiece] = []
        aborted: dict[Aborted, None] = {}
        start, more = offsets.start, True
        while more and start < offsets.end:
            answer = await _plan(
                *(core, offsets),
                start_offset=start,
                end_offset=offsets.end,
                split_bytes=self._options.direct.split_bytes,
                isolation_level=int(self._options.isolation_level == "read_committed"),
            )
            part = [_piece(each) for each in answer.pieces]
            if not is_sound(start, offsets.end, part, answer.tail_offset):
                raise NotDirectError(f"{offsets.topic_partition}: the leader's plan has holes")
            pieces += part
            aborted.update(
                (Aborted(one.producer_id, one.first_offset, one.last_offset), None)
                for one in answer.aborted
            )
            start, more = answer.tail_offset, answer.more and bool(part)
        return direct_slices(offsets, pieces, aborted, lease, self._options.direct.split_bytes)

    async def end_leases(self, core: AsyncLookups, slices: Iterable[OffsetRange]) -> None:
        """Ends the leases of slices that nobody reads."""
        core.restart(_RENEWAL_MS)
        held = {
            each.topic_partition: (each, each.direct.lease)
            for each in slices
            if each.direct is not None and each.direct.lease is not None
        }
        for offsets, lease in held.values():
            try:
                await _lease(core, offsets, lease._replace(lease_ms=0))
            except ApiError as error:
                logger.info("%s: the lease ends by itself: %s", offsets.topic_partition, error)


async def _lease(core: AsyncLookups, offsets: OffsetRange, lease: ReadLease) -> pb.PlanReadResponse:
    return await _plan(
        *(core, offsets),
        start_offset=lease.start,
        end_offset=lease.end,
        lease_id=lease.id,
        lease_ms=lease.lease_ms,
        lease_only=True,
    )


async def _plan(core: AsyncLookups, offsets: OffsetRange, **fields: Any) -> pb.PlanReadResponse:
    """Asks the leader. Raises NotDirectError, and the errors of the answer."""
    topic_id = offsets.topic_id.bytes if offsets.topic_id is not None else b""
    request = pb.PlanReadRequest(
        topic=offsets.topic, topic_id=topic_id, partition=offsets.partition, **fields
    )

    def decode(content: bytes) -> pb.PlanReadResponse:
        answer = pb.PlanReadResponse.FromString(content)
        if answer.error_code:
            text = f"{offsets.topic_partition}: {answer.error_message}".rstrip(": ")
            raise error_for(answer.error_code, text)
        return answer

    answer = await core.ask_leader(offsets.topic_partition, PLAN_READ, request, decode)
    if answer.not_direct:
        raise NotDirectError(f"{offsets.topic_partition}: {answer.not_direct}")
    return answer


def _piece(found: pb.PlanReadResponse.Piece) -> ObjectPiece:
    return ObjectPiece(
        url=found.url,
        start_position=found.start_position,
        end_position=found.end_position,
        start=found.start_offset,
        end=found.end_offset,
        base_offset=found.base_offset,
        segment_id=found.segment_id,
    )


def new_urls(
    options: SourceOptions, offsets: OffsetRange, pieces: Sequence[ObjectPiece]
) -> tuple[ObjectPiece, ...]:
    """The same pieces of the same segments with new URLs, up to one that the tier lost.

    Raises the errors of the leader.
    """
    ids = list(dict.fromkeys(piece.segment_id for piece in pieces))

    async def ask(core: AsyncLookups) -> dict[bytes, str]:
        urls: dict[bytes, str] = {}
        for first in range(0, len(ids), _URLS_MAX):
            part = ids[first : first + _URLS_MAX]
            answer = await _plan(core, offsets, segment_ids=part)
            urls.update((found.segment_id, found.url) for found in answer.pieces)
        return urls

    with Lookups(options) as lookups:
        try:
            urls = lookups.run(ask)
        except NotDirectError:
            return ()
    renewed = []
    for piece in pieces:
        if piece.segment_id not in urls:
            break
        renewed.append(piece._replace(url=urls[piece.segment_id]))
    return tuple(renewed)


def renew_lease(options: SourceOptions, offsets: OffsetRange, lease: ReadLease) -> None:
    """Renews a lease, or ends it if its time is 0. Raises the errors of the leader."""

    async def ask(core: AsyncLookups) -> None:
        core.restart(_RENEWAL_MS)
        try:
            await _lease(core, offsets, lease)
        except NotDirectError as error:
            logger.info("%s", error)

    with Lookups(options) as lookups:
        lookups.run(ask)
