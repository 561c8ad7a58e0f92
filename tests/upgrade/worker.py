"""A client in a process of its own: `python worker.py produce|transact|read SERVERS NAME`.

It works until SIGTERM and then prints a line of JSON. A producer numbers its records `NAME:n`. It
reports how many are acknowledged, and its longest wait for one in seconds. A reader is a member of
a group and reports ranges of offsets by partition.
"""

from __future__ import annotations

import asyncio
import ctypes
import json
import signal
import sys
import time
from collections import deque
from typing import Any

from tidemark import AsyncConsumer, AsyncProducer
from tidemark.errors import TidemarkError

TOPIC, TRANSFERS, GROUP, PARTITIONS = "events", "transfers", "readers", 3
_PR_SET_PDEATHSIG = 1
_PAUSE_S = 0.01
_IN_A_TRANSACTION = 10
_SETTINGS: dict[str, Any] = {"delivery_timeout_ms": 120_000, "linger_ms": 5}


async def produce(servers: str, name: str, stopped: asyncio.Event) -> dict[str, Any]:
    """Sends idempotently; an error ends it."""
    longest_s, sent = 0.0, 0
    waiting: deque[tuple[float, Any]] = deque()
    async with AsyncProducer(servers, **_SETTINGS) as producer:
        while not stopped.is_set() or waiting:
            if not stopped.is_set():
                delivery = producer.send(TOPIC, f"{name}:{sent}".encode(), partition=sent % 3)
                waiting.append((time.monotonic(), delivery))
                sent += 1
                await asyncio.sleep(_PAUSE_S)
            while waiting and (stopped.is_set() or waiting[0][1].done()):
                began_s, delivery = waiting.popleft()
                await delivery
                longest_s = max(longest_s, time.monotonic() - began_s)
    return {"sent": sent, "longest_s": round(longest_s, 2)}


async def transact(servers: str, name: str, stopped: asyncio.Event) -> dict[str, Any]:
    """Sends in transactions of ten; `unknown` are the numbers of those that failed."""
    sent, longest_s = 0, 0.0
    unknown: list[int] = []
    async with AsyncProducer(servers, transactional_id=name, **_SETTINGS) as producer:
        await producer.init_transactions()
        while not stopped.is_set():
            numbers = range(sent, sent + _IN_A_TRANSACTION)
            sent = numbers.stop
            began_s = time.monotonic()
            try:
                async with producer.transaction():
                    for number in numbers:
                        producer.send(TRANSFERS, f"{name}:{number}".encode(), partition=number % 3)
            except TidemarkError as error:
                print(f"{name}: {error!r}", file=sys.stderr, flush=True)
                unknown += numbers
            longest_s = max(longest_s, time.monotonic() - began_s)
            await asyncio.sleep(_PAUSE_S * _IN_A_TRANSACTION)
    return {"sent": sent, "unknown": unknown, "longest_s": round(longest_s, 2)}


async def read(servers: str, name: str, stopped: asyncio.Event) -> dict[str, Any]:
    """Reads with the group, from its beginning, and at last to the end."""
    ranges: dict[int, list[list[int]]] = {}
    consumer = AsyncConsumer(servers, group_id=GROUP, auto_offset_reset="earliest")
    async with consumer:
        consumer.subscribe([TOPIC])
        while not stopped.is_set() or await _behind(consumer):
            for partition, rows in (await consumer.poll_arrow(200)).items():
                offsets = rows.column("offset")
                first, last = offsets[0].as_py(), offsets[-1].as_py()
                of_it = ranges.setdefault(partition.partition, [])
                if of_it and of_it[-1][1] == first - 1:
                    of_it[-1][1] = last
                else:
                    of_it.append([first, last])
    return {"ranges": ranges}


async def _behind(consumer: AsyncConsumer) -> bool:
    ends = await consumer.end_offsets(consumer.assignment())
    return any([await consumer.position(p) < end for p, end in ends.items()])


async def main(kind: str, servers: str, name: str) -> None:
    stopped = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stopped.set)
    work = {"produce": produce, "transact": transact, "read": read}[kind]
    print(json.dumps(await work(servers, name, stopped)), flush=True)


if __name__ == "__main__":
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    asyncio.run(main(*sys.argv[1:]))
