"""The last offset of each key of a log's dirty part: 24 bytes a key, in bounded memory.

A key is known by a 16-byte keyed hash (SipHash-2-4-128, with a random secret per map), not by its
bytes, as Kafka's SkimpyOffsetMap does it with MD5. The memory is one cleaner's share of
log.cleaner.dedupe.buffer.size, and it fills up to log.cleaner.io.buffer.load.factor: beyond that
probing gets slow. The table begins small and grows up to that, so that a small log touches little
memory. The loops are in `tidemark.records.kernels.compact` and `clean_kernels`.
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
    """CorruptMessageError where a kernel gives a fault."""
    if result < 0:
        raise CorruptMessageError(f"a batch to be compacted has {FAULTS[result]}")
    return result


class OffsetMap:
    """Keys to offsets; `latest_offset` is the last offset that the map speaks for."""

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
        """Takes in the keys at or above `start_offset` of the whole, plain batches of `data`; 0, or
        a fault of `kernels.map_batches`, which explains the rest.

        OffsetMapFullError where they do not fit.
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
        """Takes in the keys of one batch, its records plain in `body` (a uint8 array).

        OffsetMapFullError where they do not fit, CorruptMessageError where they are no records.
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
            result = put()  # what is in already changes nothing
        if result == body_kernels.FAULT_FULL:
            raise OffsetMapFullError(
                f"more than {self.entries_max} keys; raise log.cleaner.dedupe.buffer.size, or lower"
                " log.cleaner.threads or segment.bytes"
            )
        return int(result)

    def _room(self, slots: int) -> int:
        return min(slots - 1, int(slots * self._load_factor))

    def _grow(self) -> None:
        """A table of four times the slots. The old one counts towards the memory until it is
        copied, so the last step is taken from a table of at most a quarter.
        """
        larger = np.zeros((min(4 * len(self._table), self._slots_max), 3), np.int64)
        self.entries = body_kernels.rehash(self._table, larger)
        self._table = larger

    def seal(self, first_offset: int) -> None:
        """All keys from `first_offset` to `latest_offset` are in: from then on a bit per offset
        says which are the last of their key, and `mark` need not look for keys again. Left out
        where offsets are so sparse that the bits would be more than an eighth of the map.
        """
        size = (self.latest_offset - first_offset) // 8 + 1
        if 0 < size <= len(self._table) * ENTRY_BYTES // 8:
            self._live, self._live_from = np.zeros(size, np.uint8), first_offset
            body_kernels.note_live(self._table, first_offset, self._live)

    def mark(self, body: Any, shape: Any, keep: Any) -> Any:
        """Marks in `keep` the records of one batch that stay; the outcome. CorruptMessageError."""
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
        """`kernels.filter_batches` with this map; its faults are given back."""
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
