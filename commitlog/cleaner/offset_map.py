"""Map of the last offset of each key of a log's dirty part: 24 bytes a key, in bounded memory.

The map holds a 16-byte keyed hash of a key (SipHash-2-4-128, with a random secret per map) instead
of its bytes. Kafka's SkimpyOffsetMap does the same with MD5.

The memory is one cleaner's share of log.cleaner.dedupe.buffer.size. It fills up to
log.cleaner.io.buffer.load.factor: beyond that probing gets slow. The table begins small and grows,
so that a small log touches little memory. The loops are in `tidemark.records.kernels.compact` and
`tidemark.records.kernels.clean`.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable
from typing import Any

import numpy as np

from tidemark.errors import CorruptMessageError, TidemarkError
from tidemark.records.kernels import clean as kernels
from tidemark.records.kernels import compact as body_kernels
from tidemark.records.kernels.codec import FAULTS

ENTRY_BYTES = 24
_SLOTS_MIN = 1 << 12


class OffsetMapFullError(TidemarkError):
    """The keys of one segment do not fit into a cleaner's share of the map memory."""


def checked(result: int) -> int:
    """Returns the result of a kernel. Raises CorruptMessageError if it is a fault."""
    if result < 0:
        raise CorruptMessageError(f"a batch to be compacted has {FAULTS[result]}")
    return result


class OffsetMap:
    """Offsets by key; `latest_offset` is the last offset that the map covers."""

    def __init__(self, memory_bytes: int, load_factor: float, secret: bytes | None = None) -> None:
        self._slots_max = max(2, memory_bytes // ENTRY_BYTES)
        self._load_factor = load_factor
        self.entries_max = self._room(self._slots_max)
        self.entries = 0
        self.latest_offset = -1
        self._table = np.zeros((min(_SLOTS_MIN, self._slots_max), 3), np.int64)
        self._live, self._live_from = np.zeros(0, np.uint8), 0
        secret = secrets.token_bytes(16) if secret is None else secret
        self._key0 = int.from_bytes(secret[:8], "little", signed=True)
        self._key1 = int.from_bytes(secret[8:16], "little", signed=True)

    def put_batches(self, data: Any, start_offset: int, specials: Any, notes: Any) -> int:
        """Adds the keys at or above `start_offset` of the whole, plain batches of `data`.

        Returns 0 or a fault; `kernels.map_batches` documents it and the other arguments. Raises
        OffsetMapFullError if the keys do not fit.
        """

        def put() -> int:
            return kernels.map_batches(
                data,
                start_offset,
                self._key0,
                self._key1,
                self._table,
                self.entries,
                self._room(len(self._table)),
                specials,
                notes,
            )

        fault = self._until_it_fits(put)
        if fault == 0:
            self.entries = int(notes[kernels.ENTRIES])
        return fault

    def put(self, body: Any, shape: Any, start_offset: int) -> None:
        """Adds the keys of one batch; `body` has its plain records, an uint8 array.

        Raises OffsetMapFullError if the keys do not fit, CorruptMessageError if `body` has no valid
        records.
        """

        def put() -> int:
            return body_kernels.put_keys(
                body,
                shape,
                start_offset,
                self._key0,
                self._key1,
                self._table,
                self.entries,
                self._room(len(self._table)),
            )

        self.entries = checked(self._until_it_fits(put))

    def _until_it_fits(self, put: Callable[[], int]) -> int:
        result = put()
        while result == body_kernels.FAULT_FULL and len(self._table) < self._slots_max:
            self._grow()
            result = put()  # keys that are in the table already change nothing
        if result == body_kernels.FAULT_FULL:
            raise OffsetMapFullError(
                f"more than {self.entries_max} keys; raise log.cleaner.dedupe.buffer.size, or lower"
                " log.cleaner.threads or segment.bytes"
            )
        return int(result)

    def _room(self, slots: int) -> int:
        return min(slots - 1, int(slots * self._load_factor))

    def _grow(self) -> None:
        """Enlarges the table to four times the slots.

        The old table counts towards the memory until it is copied. So the last step begins with a
        table of at most a quarter.
        """
        larger = np.zeros((min(4 * len(self._table), self._slots_max), 3), np.int64)
        self.entries = body_kernels.rehash(self._table, larger)
        self._table = larger

    def seal(self, first_offset: int) -> None:
        """Marks the last offsets of keys in a bitmap, so that `mark` need not look up keys again.

        All keys from `first_offset` to `latest_offset` are in the map by then. There is no bitmap
        if offsets are so sparse that it would be larger than an eighth of the map.
        """
        size = (self.latest_offset - first_offset) // 8 + 1
        if 0 < size <= len(self._table) * ENTRY_BYTES // 8:
            self._live, self._live_from = np.zeros(size, np.uint8), first_offset
            body_kernels.note_live(self._table, first_offset, self._live)

    def mark(self, body: Any, shape: Any, keep: Any) -> Any:
        """Marks in `keep` the records of one batch that stay; returns the outcome. Raises
        CorruptMessageError.
        """
        outcome = np.zeros(body_kernels.OUTCOME_FIELDS, np.int64)
        checked(
            body_kernels.mark(body, shape, self._question(), self._table, self._live, keep, outcome)
        )
        return outcome

    def _question(self) -> Any:
        return np.array((self._key0, self._key1, self.latest_offset, self._live_from), np.int64)

    def filter_batches(
        self, data: Any, orders: Any, replacement: Any, keep: Any, out: Any, *progress: Any
    ) -> int:
        """Calls `kernels.filter_batches` with this map; returns its result, faults included."""
        return int(
            kernels.filter_batches(
                data,
                orders,
                self._question(),
                self._table,
                self._live,
                replacement,
                keep,
                out,
                *progress,
            )
        )
