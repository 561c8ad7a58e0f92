"""The last offset of each key of a log's dirty part: 24 bytes a key, in bounded memory.

A key is known by a 16-byte keyed hash (SipHash-2-4-128, with a random secret per map), not by its
bytes, as Kafka's SkimpyOffsetMap does it with MD5. The memory is one cleaner's share of
log.cleaner.dedupe.buffer.size, and it fills up to log.cleaner.io.buffer.load.factor: beyond that
probing gets slow. The loops are in `tidemark.records.compact_kernels`.
"""

from __future__ import annotations

import secrets
from typing import Any

import numpy as np

from tidemark.errors import CorruptMessageError, TidemarkError
from tidemark.records import compact_kernels as kernels
from tidemark.records.kernels import FAULTS

ENTRY_BYTES = 24


class OffsetMapFullError(TidemarkError):
    """The keys of one segment do not fit into a cleaner's share of the map memory."""


class OffsetMap:
    """Keys to offsets; `latest_offset` is the last offset that the map speaks for."""

    def __init__(self, memory_bytes: int, load_factor: float, secret: bytes | None = None) -> None:
        slots = max(2, memory_bytes // ENTRY_BYTES)
        self.entries_max = min(slots - 1, int(slots * load_factor))
        self.entries = 0
        self.latest_offset = -1
        # zeros from the system: only what is touched takes memory
        self._table = np.zeros((slots, 3), np.int64)
        secret = secrets.token_bytes(16) if secret is None else secret
        self._key0 = int.from_bytes(secret[:8], "little", signed=True)
        self._key1 = int.from_bytes(secret[8:16], "little", signed=True)

    def put(self, data: Any, rows: Any, start_offset: int) -> None:
        """Takes in the keys of the batches of `rows` (their records plain in `data`, a uint8
        array).

        OffsetMapFullError where they do not fit, CorruptMessageError where they are no records.
        """
        result = kernels.put_keys(
            data,
            rows,
            start_offset,
            self._key0,
            self._key1,
            self._table,
            self.entries,
            self.entries_max,
        )
        if result == kernels.FAULT_FULL:
            raise OffsetMapFullError(
                f"more than {self.entries_max} keys; raise log.cleaner.dedupe.buffer.size, or lower"
                " log.cleaner.threads or segment.bytes"
            )
        if result < 0:
            raise CorruptMessageError(f"a batch to be compacted has {FAULTS[result]}")
        self.entries = int(result)

    def mark(self, data: Any, rows: Any, keep: Any) -> Any:
        """Marks the records that stay in `keep`; an outcome row per batch. CorruptMessageError."""
        outcomes = np.zeros((len(rows), kernels.OUTCOME_FIELDS), np.int64)
        result = kernels.mark(
            data, rows, self.latest_offset, self._key0, self._key1, self._table, keep, outcomes
        )
        if result < 0:
            raise CorruptMessageError(f"a batch to be compacted has {FAULTS[result]}")
        return outcomes
