"""The record codec on one core: batches of about 1 MiB, Arrow columns to bytes and back.

The ceiling of a row is memcpy of the same encoded bytes in the same run, in records per second.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import numpy as np
import pyarrow as pa

from tidemark.records import decode_arrow, encode_arrow, partitions_for_keys
from tidemark.records.arrow import warm_up

BATCH_BYTES = 1 << 20
SIZES = (10, 100, 1000)
SECONDS_PER_FIGURE = 0.7


def _best_seconds(work: Callable[[], object]) -> float:
    """Seconds of the fastest call: a call fits into a time slice, so other load shows little."""
    best = float("inf")
    end = time.perf_counter() + SECONDS_PER_FIGURE
    while time.perf_counter() < end:
        begin = time.perf_counter()
        work()
        best = min(best, time.perf_counter() - begin)
    return best


def _columns(size: int, rng: np.random.Generator) -> tuple[pa.Array, pa.Array, pa.Array]:
    count = BATCH_BYTES // (size + 16)
    data = rng.integers(0, 256, size * count, np.uint8)
    offsets = np.arange(0, size * (count + 1), size, dtype=np.int32)
    value = pa.Array.from_buffers(
        pa.binary(), count, [None, pa.py_buffer(offsets), pa.py_buffer(data)]
    )
    key = pa.array([b"%08d" % number for number in rng.integers(0, 10**8, count)], pa.binary())
    return key, value, pa.array(1_356_998_400_000 + np.arange(count))


def run() -> list[dict[str, Any]]:
    """Encode and decode at 10, 100 and 1000 byte values with 8 byte keys, and the partitioner."""
    warm_up()
    rng = np.random.default_rng(1)
    rows: list[dict[str, Any]] = []
    for size in SIZES:
        key, value, timestamp = _columns(size, rng)
        count = len(value)
        encoded = encode_arrow(key, value, timestamp)
        source, target = np.frombuffer(encoded, np.uint8), np.empty(len(encoded), np.uint8)
        ceiling = count / _best_seconds(lambda t=target, s=source: np.copyto(t, s))
        figures = {
            "encode": lambda k=key, v=value, t=timestamp: encode_arrow(k, v, t),
            "decode": lambda e=encoded: decode_arrow(e),
        }
        if size == 100:
            figures["encode lz4"] = lambda k=key, v=value, t=timestamp: encode_arrow(
                k, v, t, compression="lz4"
            )
            figures["partition keys"] = lambda k=key: partitions_for_keys(k, 12)
        for name, work in figures.items():
            rate = count / _best_seconds(work)
            rows.append(
                {
                    "name": f"codec {name} {size} B",
                    "value": round(rate),
                    "unit": "records/s",
                    "ceiling": round(ceiling),
                    "ratio": round(rate / ceiling, 3),
                    "megabytes_per_second": round(rate * len(encoded) / count / 1e6),
                }
            )
    return rows
