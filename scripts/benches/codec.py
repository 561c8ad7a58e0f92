"""The record codec on one core: batches of about 1 MiB, Arrow columns to bytes and back.

Values have 10, 100 and 1,000 bytes, half of them random and half of repeated words, with 8-byte
keys. Each is measured uncompressed and with each codec, in both directions. The ceiling of a row is
memcpy of the same plain encoded bytes in the same run, in records per second. The rows of aiokafka
are those of that independent codec (also compiled) with the same records as Python objects. All
times are processor times of the fastest call, which other load on the machine affects little.
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
CODECS = ("none", "gzip", "snappy", "lz4", "zstd")
SECONDS_PER_FIGURE = 0.4
CALLS_MIN = 3
NOW_MS = 1_356_998_400_000


def _best_seconds(work: Callable[[], object]) -> float:
    """Processor seconds of the fastest call."""
    best = float("inf")
    calls = 0
    end = time.perf_counter() + SECONDS_PER_FIGURE
    while calls < CALLS_MIN or time.perf_counter() < end:
        begin = time.process_time()
        work()
        best = min(best, time.process_time() - begin)
        calls += 1
    return best


def _columns(size: int, rng: np.random.Generator) -> tuple[pa.Array, pa.Array, pa.Array]:
    count = BATCH_BYTES // (size + 16)
    data = rng.integers(0, 256, (count, size), np.uint8)
    data[:, size // 2 :] = np.frombuffer(b"the quick brown fox " * 50, np.uint8)[: size - size // 2]
    offsets = np.arange(0, size * (count + 1), size, dtype=np.int32)
    value = pa.Array.from_buffers(
        pa.binary(), count, [None, pa.py_buffer(offsets), pa.py_buffer(data.reshape(-1))]
    )
    key = pa.array([b"%08d" % number for number in rng.integers(0, 10**8, count)], pa.binary())
    return key, value, pa.array(NOW_MS + np.arange(count))


def _aiokafka(
    key: pa.Array, value: pa.Array, codec: str
) -> tuple[Callable[[], object], Callable[[], object]]:
    """Encoding and decoding by aiokafka, from and to Python objects that are made beforehand."""
    from aiokafka.record.default_records import DefaultRecordBatch, DefaultRecordBatchBuilder

    number = CODECS.index(codec)
    pairs = list(enumerate(zip(key.to_pylist(), value.to_pylist(), strict=True)))

    def encode() -> bytes:
        builder = DefaultRecordBatchBuilder(
            magic=2,
            compression_type=number,
            is_transactional=0,
            producer_id=-1,
            producer_epoch=-1,
            base_sequence=-1,
            batch_size=1 << 30,
        )
        append = builder.append
        for index, (item_key, item_value) in pairs:
            append(index, NOW_MS + index, item_key, item_value, [])
        return bytes(builder.build())

    encoded = encode()

    def decode() -> int:
        batch = DefaultRecordBatch(encoded)
        batch.validate_crc()
        return sum(1 for _ in batch)

    return encode, decode


def run() -> list[dict[str, Any]]:
    """Rows for each direction, size and codec, and for the partitioner."""
    warm_up()
    rng = np.random.default_rng(1)
    rows: list[dict[str, Any]] = []
    for size in SIZES:
        key, value, timestamp = _columns(size, rng)
        count = len(value)
        plain = encode_arrow(key, value, timestamp)
        source, target = np.frombuffer(plain, np.uint8), np.empty(len(plain), np.uint8)

        memcpy = _best_seconds(lambda t=target, s=source: np.copyto(t, s))
        figures: dict[str, Callable[[], object]] = {}
        for codec in CODECS:
            encoded = encode_arrow(key, value, timestamp, compression=codec)
            label = f"{size} B" if codec == "none" else f"{codec} {size} B"
            figures[f"encode {label}"] = lambda c=codec, k=key, v=value, t=timestamp: encode_arrow(
                k, v, t, compression=c
            )
            figures[f"decode {label}"] = lambda e=encoded: decode_arrow(e)
            encode, decode = _aiokafka(key, value, codec)
            figures[f"encode {label}, aiokafka"] = encode
            figures[f"decode {label}, aiokafka"] = decode
        if size == 100:
            figures[f"partition keys {size} B"] = lambda k=key: partitions_for_keys(k, 12)
        for name, work in figures.items():
            seconds = _best_seconds(work)
            rows.append(
                {
                    "name": f"codec {name}",
                    "value": round(count / seconds),
                    "unit": "records/s",
                    "ceiling": round(count / memcpy),
                    "ratio": round(memcpy / seconds, 5),
                    "megabytes_per_second": round(len(plain) / seconds / 1e6),
                }
            )
    return rows
