"""Leases of jobs that read the tier past the brokers: their objects are not deleted meanwhile.

A lease names a range of offsets of one partition, and ends by itself: no job holds objects longer
than remote.log.lease.max.ms after it last asked. The leader writes it beside the segments
(`tiering.store.direct`) before it names objects to the job, and reads it before it deletes any. So
the next leader keeps it, too. Source of the idea: Gray and Cheriton, "Leases", 1989.

Order matters: retention raises the log start first, then reads leases, then deletes. A plan is
refused below the log start after its lease was written. So a plan either has a lease that the
deletion sees, or is refused.
"""

from __future__ import annotations

import asyncio
import json
from collections import Counter, defaultdict
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, NamedTuple

from tidemark.errors import InvalidRequestError, PolicyViolationError
from tidemark.types import TopicIdPartition
from tiering.errors import RemoteReadBusyError, RemoteStorageError
from tiering.metadata.segments import RemoteLogSegmentMetadata
from tiering.store.direct import DirectStore
from tiering.store.manager import RemoteStorageManager

LEASES_MAX = 64
_ID_MAX = 128
_WRITES_MAX = 64  # of one partition that wait for a store that is slow, or hangs

Run = Callable[[Callable[[], Any]], Awaitable[Any]]


class Lease(NamedTuple):
    """A hold on the records in [start, end) until a time, in ms since 1970."""

    id: str
    start: int
    end: int
    until_ms: int


def parse_leases(content: bytes) -> list[Lease]:
    """Parses the bytes of a store. Raises RemoteStorageError if they are no leases."""
    try:
        return [Lease(*map(_field, Lease._fields, row)) for row in json.loads(content or b"[]")]
    except (ValueError, TypeError) as error:
        raise RemoteStorageError(
            f"the leases of a partition are malformed ({error}); nothing is deleted. Remove the"
            " object to let the jobs that read the tier go without"
        ) from error


def _content(leases: Sequence[Lease]) -> bytes:
    return json.dumps(leases, separators=(",", ":")).encode() if leases else b""


def _field(name: str, value: Any) -> Any:
    if not isinstance(value, str if name == "id" else int):
        raise TypeError(f"{name} is {value!r}")
    return value


def renewed(
    leases: Sequence[Lease], lease: Lease, now_ms: int, *, most: int = LEASES_MAX
) -> list[Lease]:
    """Returns the leases that have not ended, with this one in place of its former self; one that
    ends now is left out. Raises PolicyViolationError if there are too many.
    """
    others = [one for one in leases if one.until_ms > now_ms and one.id != lease.id]
    if lease.until_ms <= now_ms:
        return others
    if len(others) >= most:
        raise PolicyViolationError(
            f"{most} jobs hold leases of this partition; try again when one of them has ended"
        )
    return [*others, lease]


def bounded(leases: Sequence[Lease], until_max_ms: int) -> list[Lease]:
    """Returns the leases, none of which ends after `until_max_ms`.

    The clock of the leader that granted them may have been ahead, by years, or the limit larger.
    """
    return [one._replace(until_ms=min(one.until_ms, until_max_ms)) for one in leases]


def unheld(
    segments: Sequence[RemoteLogSegmentMetadata], leases: Sequence[Lease], now_ms: int
) -> list[RemoteLogSegmentMetadata]:
    """Returns the segments up to the first one that a lease holds.

    Those behind it stay, too: the tier has no hole from which a rebuild would have to begin.
    """
    held = [lease for lease in leases if lease.until_ms > now_ms]
    free = []
    for segment in segments:
        if any(one.start < segment.next_offset and segment.start_offset < one.end for one in held):
            break
        free.append(segment)
    return free


class Leases:
    """Leases of all partitions led here; on one event loop. `run` runs a blocking call in a
    thread.
    """

    def __init__(
        self, storage: RemoteStorageManager, run: Run, now_ms: Callable[[], int], max_ms: int
    ) -> None:
        self._store = storage if isinstance(storage, DirectStore) else None
        self._run = run
        self._now_ms = now_ms
        self._max_ms = max_ms
        self._locks: defaultdict[TopicIdPartition, asyncio.Lock] = defaultdict(asyncio.Lock)
        self._writes: Counter[TopicIdPartition] = Counter()

    async def hold(
        self, partition: TopicIdPartition, lease_id: str, start: int, end: int, lease_ms: int
    ) -> int:
        """Begins or renews a lease by `lease_ms` from now on, or ends it (0).

        Returns the time granted in ms, which is 0 for a store without leases. A write that began
        ends before the next one, also for a caller that is cancelled.

        Raises InvalidRequestError, PolicyViolationError, RemoteReadBusyError if too many wait, and
        the errors of the store.
        """
        if not 0 < len(lease_id) <= _ID_MAX or not 0 <= start <= end or lease_ms < 0:
            raise InvalidRequestError(
                f"a lease has an id of 1 to {_ID_MAX} characters, a range of offsets, and a time"
            )
        store, granted_ms = self._store, min(lease_ms, self._max_ms)
        if store is None:
            return 0
        if self._writes[partition] == _WRITES_MAX:
            raise RemoteReadBusyError(f"{_WRITES_MAX} leases of the partition wait for the store")
        self._writes[partition] += 1
        lease = Lease(lease_id, start, end, granted_ms)
        writing = asyncio.ensure_future(self._write(store, partition, lease))
        writing.add_done_callback(lambda done: self._written(partition, done))
        await asyncio.shield(writing)
        return granted_ms

    def _written(self, partition: TopicIdPartition, done: asyncio.Future[None]) -> None:
        self._writes[partition] -= 1
        if not self._writes[partition]:
            del self._writes[partition]
        if not done.cancelled():
            done.exception()  # the caller may be gone

    async def _write(self, store: DirectStore, partition: TopicIdPartition, lease: Lease) -> None:
        """Writes a lease whose `until_ms` is the time from now on."""
        async with self._locks[partition]:
            now_ms = self._now_ms()
            known = parse_leases(await self._run(lambda: store.read_leases(partition)))
            others = bounded(known, now_ms + self._max_ms)
            leases = renewed(others, lease._replace(until_ms=now_ms + lease.until_ms), now_ms)
            if leases != known:
                await self._run(lambda: store.write_leases(partition, _content(leases)))

    async def unheld(
        self, partition: TopicIdPartition, segments: Sequence[RemoteLogSegmentMetadata]
    ) -> Sequence[RemoteLogSegmentMetadata]:
        """Returns those of the segments that may be deleted, oldest first. Raises the errors of the
        store: nothing is deleted then.
        """
        store = self._store
        if store is None or not segments:
            return segments
        async with self._locks[partition]:
            known = parse_leases(await self._run(lambda: store.read_leases(partition)))
            leases = bounded(known, self._now_ms() + self._max_ms)
            if leases != known:  # without that, they would begin anew at each pass
                await self._run(lambda: store.write_leases(partition, _content(leases)))
        return unheld(segments, leases, self._now_ms())

    async def forget(self, partition: TopicIdPartition) -> None:
        """Deletes the leases of a deleted partition. Raises the errors of the store."""
        store = self._store
        if store is None:
            return
        async with self._locks[partition]:
            if await self._run(lambda: store.read_leases(partition)):
                await self._run(lambda: store.write_leases(partition, b""))
        del self._locks[partition]
