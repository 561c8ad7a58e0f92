"""A read_committed reader over the logs of a real broker, with transactions of several producers.

The core asks; the broker's own fetch answers, from its disk and from the tier. No record of a
transaction that is open or aborted is given out, and each other record once, in order.
"""

from __future__ import annotations

import asyncio
from random import Random

import pytest

from tests import virtual_time
from tests.client.consuming.harness import Fetching
from tests.node.cluster import TOPIC, Cluster, Node, batch
from tests.node.fakes import WALL_START_MS
from tests.node.replication.test_tier import FakeTier
from tests.node.serving.test_read_committed import end, fetch, write
from tests.tiering.scenarios.table import A, B, Table, scenario
from tidemark.client.consuming.partition import Position
from tidemark.types import TopicPartition
from tidemark.wire import FetchResponse

ONE = TopicPartition(TOPIC, 0)
PRODUCERS = (5, 6, 7, 8)


class Writing:
    """Writes at random, and knows what became of each record."""

    def __init__(self, node: Node, rng: Random) -> None:
        self.node = node
        self.rng = rng
        self.open: dict[int, list[int]] = {}  # offsets of each producer's transaction
        self.sequences = dict.fromkeys(PRODUCERS, 0)
        self.committed: list[int] = []
        self.aborted = 0

    def step(self) -> None:
        log, kind = self.node.hosted().log, self.rng.random()
        if kind < 0.1:
            self.committed.append(log.log_end_offset)
            log.append_as_leader(batch("plain"), 0, WALL_START_MS)
            self.node.hosted().appended(0)
        elif kind < 0.15:
            log.roll(WALL_START_MS)
        elif kind < 0.7 or not self.open:
            producer, count = self.rng.choice(PRODUCERS), self.rng.randint(1, 3)
            begin = log.log_end_offset
            write(self.node, *["r"] * count, producer=producer, sequence=self.sequences[producer])
            self.sequences[producer] += count
            self.open.setdefault(producer, []).extend(range(begin, begin + count))
        else:
            self.end(self.rng.choice(list(self.open)))

    def end(self, producer: int) -> None:
        offsets, commits = self.open.pop(producer), self.rng.random() < 0.5
        end(self.node, producer, committed=commits)
        if commits:
            self.committed = sorted(self.committed + offsets)
        else:
            self.aborted += len(offsets)

    @property
    def stable(self) -> int:
        """The first offset of an open transaction; the end without one."""
        end_offset: int = self.node.hosted().log.log_end_offset
        return min([offsets[0] for offsets in self.open.values()], default=end_offset)


async def serve(fetching: Fetching, node: Node, max_bytes: int) -> None:
    request_id, request = next(iter(fetching.sent.items()))
    target = request.asked[ONE].target
    assert isinstance(target, Position)
    answer = await fetch(node, target.offset, 1, max_bytes=max_bytes)
    fetching.reply(request_id, FetchResponse([answer]))


async def read_from(node: Node, begin: int, rng: Random, end_offset: int) -> list[int]:
    fetching = Fetching(isolation_level=1)
    fetching.assign(ONE, at=begin)
    found: list[int] = []
    while (reader := fetching.partitions[ONE].reader) is None or reader.offset < end_offset:
        if fetching.sent:
            await serve(fetching, node, rng.choice((1, 150, 400, 1 << 20)))
        found += [offset for _, offset, _ in fetching.poll(rng.randint(1, 5))]
        assert fetching.error() is None
        fetching.step(1000)
    return found


@pytest.mark.parametrize("seed", range(12))
def test_a_reader_gets_the_committed_records_and_no_other(seed: int) -> None:
    async def main() -> None:
        rng, tier = Random(seed), FakeTier()
        cluster = Cluster(tier)
        cluster.start(1)
        cluster.create_topic((1,), remote_storage_enable="true", local_retention_bytes="1")
        node = cluster.nodes[1]
        writing, fetching = Writing(node, rng), Fetching(isolation_level=1)
        fetching.assign(ONE)
        found: list[int] = []
        for _ in range(120):
            writing.step()
            if rng.random() < 0.5 and fetching.sent:
                await serve(fetching, node, rng.choice((1, 150, 400, 1 << 20)))
            found += [offset for _, offset, _ in fetching.poll(rng.randint(1, 5))]
            assert found == [o for o in writing.committed if o < writing.stable][: len(found)]
            fetching.step(1000)
        for producer in list(writing.open):
            writing.end(producer)
        log = node.hosted().log
        end_offset = log.log_end_offset
        begins = [0, *rng.sample(range(end_offset), 15)]
        for begin in begins:
            expected = [offset for offset in writing.committed if offset >= begin]
            assert await read_from(node, begin, rng, end_offset) == expected
        assert writing.aborted > 10

        log.roll(WALL_START_MS)
        await node.produce("tail")
        tier.aborted = log.aborted_transactions(0, end_offset)
        tier.archive(log, WALL_START_MS)
        assert log.local_log_start_offset >= end_offset
        for begin in begins:
            expected = [*(o for o in writing.committed if o >= begin), end_offset]
            assert await read_from(node, begin, rng, end_offset + 1) == expected, "of the tier"
        await cluster.stop()

    virtual_time.run(main())


@pytest.mark.parametrize("seed", range(3))
def test_transaction_indexes_of_the_tier_keep_a_reader_from_what_was_aborted(seed: int) -> None:
    """The leader that copied them serves them, and one that began from the tier."""

    async def test(table: Table) -> None:
        rng = Random(seed)
        table.begin()
        table.isolate(B)
        await asyncio.sleep(31)
        writing = Writing(table.nodes[A], rng)
        for _ in range(120):
            writing.step()
        for producer in list(writing.open):
            writing.end(producer)
        assert writing.aborted > 10
        log = table.log(A)
        end_offset = log.log_end_offset
        log.roll(WALL_START_MS)
        await table.append(A, 1)
        await table.copy(A)
        assert any(not segment.txn_index_empty for segment in table.remote_segments())
        table.drop_local(A, below=end_offset)
        begins = [0, *rng.sample(range(end_offset), 8)]
        for begin in begins:
            expected = [*(o for o in writing.committed if o >= begin), end_offset]
            assert await read_from(table.nodes[A], begin, rng, end_offset + 1) == expected

        table.cut.clear()
        await table.settle()
        assert table.log(B).local_log_start_offset == end_offset
        table.lead(B)
        for begin in begins:
            expected = [*(o for o in writing.committed if o >= begin), end_offset]
            assert await read_from(table.nodes[B], begin, rng, end_offset + 1) == expected

    scenario(test)
