"""A process that copies a topic exactly once: `python -m tests.e2e.copy_worker SERVERS NAME`.

It reads with a group at read_committed, and writes records and offsets in one transaction. Some
transactions it abandons. After an abort it goes on from the committed offsets. Where its producer
is fenced, or an outcome is not known, it ends with status `RESTART`: the next process of its name
goes on. SIGTERM ends it between two transactions. It prints a line for each error.
"""

from __future__ import annotations

import asyncio
import ctypes
import random
import signal
import sys
from collections.abc import Mapping
from typing import Any

import pyarrow as pa

from tidemark.client import AsyncConsumer, AsyncProducer
from tidemark.client.errors import ErrorKind, TransactionInDoubtError, kind_of
from tidemark.errors import TidemarkError
from tidemark.types import TopicPartition

INPUT, OUTPUT, GROUP = "input", "output", "copiers"
OUTPUTS = 3
"""Partitions of the output; input partition P is copied to partition P % OUTPUTS."""
TRANSACTION_TIMEOUT_MS = 5_000
RESTART = 75
_PR_SET_PDEATHSIG = 1
_BYTES_AHEAD = 128 << 10  # keeps a transaction at a few thousand records
_FETCH_BYTES = 32 << 10
_POLL_MS = 200
_ABANDONED = 0.1  # of the transactions


class AbandonedError(Exception):
    """An error of the application in a transaction."""


async def copy(servers: str, name: str) -> int:
    """Copies until SIGTERM. Returns the exit status."""
    rng = random.Random(name)
    stopped = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stopped.set)
    consumer = AsyncConsumer(
        servers,
        group_id=GROUP,
        isolation_level="read_committed",
        auto_offset_reset="earliest",
        enable_auto_commit=False,
        buffer_bytes=_BYTES_AHEAD,
        max_partition_fetch_bytes=_FETCH_BYTES,
    )
    producer = AsyncProducer(
        servers, transactional_id=name, transaction_timeout_ms=TRANSACTION_TIMEOUT_MS
    )
    async with consumer, producer:
        await producer.init_transactions()
        consumer.subscribe([INPUT])
        print("ready", flush=True)
        while not stopped.is_set():
            polled = await consumer.poll_arrow(_POLL_MS)
            if not polled:
                continue
            try:
                await _copy(producer, consumer, polled, abandons=rng.random() < _ABANDONED)
            except AbandonedError:
                await _rewind(consumer)
            except TidemarkError as error:
                kind = kind_of(error)
                print(f"{kind.name}: {error!r}", flush=True)
                final = kind in (ErrorKind.RECOVERABLE, ErrorKind.CONFIGURATION)
                if final or isinstance(error, TransactionInDoubtError):
                    return RESTART
                await _rewind(consumer)
    return 0


async def _copy(
    producer: AsyncProducer,
    consumer: AsyncConsumer,
    polled: Mapping[TopicPartition, Any],
    *,
    abandons: bool,
) -> None:
    """One transaction."""
    async with producer.transaction():
        for partition, rows in polled.items():
            values = pa.RecordBatch.from_arrays([rows.column("value")], names=["value"])
            producer.send_arrow(OUTPUT, values, partition=partition.partition % OUTPUTS)
        offsets = {p: rows.column("offset")[-1].as_py() + 1 for p, rows in polled.items()}
        await producer.send_offsets_to_transaction(offsets, consumer.group_metadata())
        if abandons:
            raise AbandonedError


async def _rewind(consumer: AsyncConsumer) -> None:
    """Goes back to what the group has committed: positions are past the aborted records."""
    for partition, committed in (await consumer.committed(consumer.assignment())).items():
        if committed is None:
            consumer.seek_to_beginning(partition)
        else:
            consumer.seek(partition, committed.offset)


if __name__ == "__main__":
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    sys.exit(asyncio.run(copy(sys.argv[1], sys.argv[2])))
