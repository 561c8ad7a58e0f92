"""Load of scripts/test-kubernetes in a pod: `kube_load.py produce|count TOPIC BOOTSTRAP [CONFIG]`.

CONFIG is a file of client settings, such as security.protocol.

`produce` sends numbered records with acks=all, the default, until SIGTERM, a fixed number of them a
second, each second to every partition. Each second it prints the wall clock (s) and the number of
acknowledged records. The longest wait of those of that second (s) and the number that wait follow.
At last it reads the whole topic and compares. `count` only reads. Both print one line of JSON at
last. The exit status is 1 if an acknowledged record is missing or comes twice.
"""

from __future__ import annotations

import asyncio
import json
import signal
import sys
import time
from collections import Counter
from collections.abc import Mapping
from pathlib import Path

from tidemark import AsyncConsumer, AsyncProducer, TopicPartition
from tidemark.config.properties import parse_properties

RATE = 120  # records a second; their partitions take turns
PARTITIONS = 6


class Load:
    """Numbers sent and acknowledged, and the waits of the present second."""

    def __init__(self) -> None:
        self.sent = 0
        self.acknowledged: set[int] = set()
        self.failed: list[str] = []
        self.worst_s = 0.0
        self.waiting: dict[int, float] = {}

    async def one(self, producer: AsyncProducer, topic: str, number: int) -> None:
        began = self.waiting[number] = time.monotonic()
        try:
            await producer.send(topic, b"%d" % number, partition=number % PARTITIONS)
            self.acknowledged.add(number)
        except Exception as error:  # told at the end
            self.failed.append(f"{number}: {error!r}")
        self.worst_s = max(self.worst_s, time.monotonic() - began)
        del self.waiting[number]

    def line(self) -> str:
        worst, self.worst_s = self.worst_s, 0.0
        return f"second {time.time():.1f} {len(self.acknowledged)} {worst:.2f} {len(self.waiting)}"


async def produce(topic: str, bootstrap: str, security: Mapping[str, str]) -> Load:
    load, asked, tasks = Load(), asyncio.Event(), set()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, asked.set)
    async with AsyncProducer(bootstrap, linger_ms=0, security=security) as producer:
        began = told = time.monotonic()
        while not asked.is_set():
            while load.sent < (time.monotonic() - began) * RATE:
                task = asyncio.create_task(load.one(producer, topic, load.sent))
                tasks.add(task)
                task.add_done_callback(tasks.discard)
                load.sent += 1
            if time.monotonic() - told >= 1:
                told += 1
                print(load.line(), flush=True)
            await asyncio.sleep(0.01)
        await asyncio.gather(*tasks)
        print(load.line(), flush=True)
    return load


async def read(topic: str, bootstrap: str, security: Mapping[str, str]) -> Counter[int]:
    found: Counter[int] = Counter()
    async with AsyncConsumer(bootstrap, security=security) as consumer:
        partitions = [TopicPartition(topic, each) for each in range(PARTITIONS)]
        ends = await consumer.end_offsets(partitions)
        consumer.assign(partitions)
        consumer.seek_to_beginning()
        while any([await consumer.position(each) < ends[each] for each in partitions]):
            for record in await consumer.poll(timeout_ms=1000, max_records=5000):
                found[int(record.value or b"-1")] += 1
    return found


async def main(verb: str, topic: str, bootstrap: str, security: Mapping[str, str]) -> int:
    load = await produce(topic, bootstrap, security) if verb == "produce" else Load()
    found = await read(topic, bootstrap, security)
    missing = sorted(load.acknowledged - found.keys())
    twice = sorted(number for number, count in found.items() if count > 1)
    told = {
        "sent": load.sent,
        "acknowledged": len(load.acknowledged),
        "failed": load.failed[:5],
        "read": found.total(),
        "missing": missing[:20],
        "twice": twice[:20],
    }
    print(json.dumps(told), flush=True)
    return 1 if missing or twice or not found else 0


settings = parse_properties(Path(sys.argv[4]).read_text()) if sys.argv[4:] else {}
sys.exit(asyncio.run(main(*sys.argv[1:4], settings)))
