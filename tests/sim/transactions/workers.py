"""The programs of a seed: writers, copiers, readers and watchers.

A program runs as one life of a transactional id. A life may end at any moment without a word, or
sleep through a successor and go on as a zombie.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import defaultdict
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from typing import TYPE_CHECKING, Protocol

from tests.sim.groups.world import abandon
from tests.sim.transactions.ledger import Outcome, Transaction, TransactionViolation
from tests.sim.transactions.stranger import Caller, NotCommittedError, Stranger
from tidemark.client import AsyncConsumer
from tidemark.errors import ApiError, TidemarkError, raise_for
from tidemark.types import TopicPartition
from tidemark.v1 import group_pb2
from tidemark.v1 import transaction_pb2 as pb

if TYPE_CHECKING:
    from tests.sim.transactions.world import World

GROUP = "copiers"
SOURCE, TARGET, OTHER, VOLATILE = "in", "out", "other", "volatile"
PARTITIONS = {SOURCE: 2, TARGET: 2, OTHER: 2, VOLATILE: 1}


class Producer(Protocol):
    """The library's producer, or a stranger's."""

    async def init(self) -> None: ...
    def begin(self) -> None: ...
    async def send(self, partition: TopicPartition, values: list[bytes]) -> None: ...
    async def send_offsets(self, offsets: dict[TopicPartition, int], of: AsyncConsumer) -> None: ...
    async def commit(self) -> None: ...
    async def abort(self) -> None: ...
    async def close(self) -> None: ...


Fill = Callable[[Transaction], Awaitable[None]]


async def transact(
    world: World, producer: Producer, slot: str, fill: Fill, *, commits: bool = True
) -> bool:
    """Runs one transaction, and aborts it if `fill` fails; returns whether it is committed. Raises
    errors after which the producer is over."""
    ledger = world.ledger
    problem: TidemarkError | None = None
    transaction = ledger.begin(slot)
    producer.begin()
    asked = False
    try:
        try:
            await fill(transaction)
        except TidemarkError as error:
            problem = error
            world.counts[f"aborted by {type(error).__name__}"] += 1
        if commits and problem is None:
            asked = True
            ledger.end(transaction, Outcome.IN_DOUBT)
            await _end(world, producer, committed=True)
            ledger.end(transaction, Outcome.COMMITTED)
        else:
            await _end(world, producer, committed=False)
    except NotCommittedError:
        asked = False
        world.counts["refused commits"] += 1
        await producer.abort()
    finally:
        if not asked:
            ledger.end(transaction, Outcome.ABORTED)  # nobody has asked for more
        world.counts[transaction.outcome.name.lower()] += 1
    return asked


async def _end(world: World, producer: Producer, *, committed: bool) -> None:
    end = producer.commit if committed else producer.abort
    if isinstance(producer, Stranger) and world.draw.random() < 0.05:
        await producer.change_of_mind(committed, end)
    else:
        await end()


_SLEEPS_S = (1, 4, 7, 12)


async def pause(world: World, rate: float = 0.02, some_s: Sequence[float] = _SLEEPS_S) -> None:
    """Sleeps now and then; some sleeps are longer than a member's or a transaction's timeout."""
    if not world.is_over and world.draw.random() < rate:
        world.counts["pauses"] += 1
        await asyncio.sleep(world.draw.choice(some_s))


async def write(world: World, slot: str) -> None:
    """A writer: transactions over several partitions, which commit or abort by chance."""
    draw = world.draw
    producer = world.make_producer(slot)
    partitions = [TopicPartition(t, n) for t in (SOURCE, OTHER) for n in range(PARTITIONS[t])]
    partitions += [TopicPartition(VOLATILE, 0)] * 2
    try:
        await producer.init()
        for _ in range(draw.randrange(3, 40)):
            if world.is_over:
                return
            some = draw.choices(partitions, k=draw.randrange(1, 5))

            async def fill(transaction: Transaction, some: list[TopicPartition] = some) -> None:
                sends = []
                for partition in some:
                    values = [transaction.add(partition) for _ in range(draw.randrange(1, 4))]
                    sends.append(producer.send(partition, values))
                    if draw.random() < 0.5:
                        await asyncio.gather(*sends)
                        sends.clear()
                        await pause(world)
                await asyncio.gather(*sends)
                await pause(world)

            await transact(world, producer, slot, fill, commits=draw.random() < 0.7)
            await asyncio.sleep(draw.uniform(0, 1))
    finally:
        await producer.close()


async def copy(world: World, slot: str) -> None:
    """A copier: reads with the group, and writes what it read and its offsets in one transaction
    (KIP-447)."""
    producer = world.make_producer(slot)
    consumer = world.cluster.asyncio.consumer(
        group_id=GROUP,
        isolation_level="read_committed",
        auto_offset_reset="earliest",
        enable_auto_commit=False,
        max_poll_interval_ms=4_000,
        default_api_timeout_ms=15_000,
        request_timeout_ms=2_000,
    )
    consumer.subscribe([SOURCE])
    try:
        await producer.init()
        while not world.are_copies_done():
            await _copy_some(world, slot, producer, consumer)
    finally:
        await producer.close()
        await abandon(consumer) if world.draw.random() < 0.5 else await consumer.close()


async def _copy_some(world: World, slot: str, producer: Producer, consumer: AsyncConsumer) -> None:
    records = await consumer.poll(200, max_records=world.draw.randrange(1, 20))
    if not records:
        return
    await pause(world, 0.06)
    found: dict[TopicPartition, list[bytes]] = defaultdict(list)
    offsets: dict[TopicPartition, int] = {}
    for record in records:
        partition = TopicPartition(record.topic, record.partition)
        found[partition].append(record.value or b"")
        offsets[partition] = record.offset + 1

    async def fill(transaction: Transaction) -> None:
        sends = []
        for partition, values in found.items():
            to = TopicPartition(TARGET, partition.partition)
            sends.append(producer.send(to, [transaction.add(to, value) for value in values]))
            other = TopicPartition(OTHER, 0)
            sends.append(producer.send(other, [transaction.add(other)]))
        await asyncio.gather(*sends)
        await pause(world)
        await producer.send_offsets(offsets, consumer)
        await pause(world, 0.1, (7, 12))  # the group moves on while the transaction is open

    world.counts["copies"] += 1
    if not await transact(world, producer, slot, fill):
        await _rewind(consumer, list(found))
    await asyncio.sleep(0.1)


async def _rewind(consumer: AsyncConsumer, partitions: list[TopicPartition]) -> None:
    """Goes back to what the group committed."""
    committed = await consumer.committed(partitions)
    assigned = set(consumer.assignment())
    for partition, offset in committed.items():
        if partition in assigned:
            if offset is None:
                consumer.seek_to_beginning(partition)
            else:
                consumer.seek(partition, offset.offset)


# --- lives


async def live(world: World, slot: str, program: Callable[[World, str], Awaitable[None]]) -> None:
    """Runs lives of a transactional id, one after another or over each other."""
    draw = world.draw
    while not world.is_over or (program is copy and not world.are_copies_done()):
        life = asyncio.ensure_future(_one_life(world, program, slot))
        world.lives.add(life)
        patience_s = 600.0 if world.is_over else draw.choice([3, 10, 30])
        deadline = asyncio.get_running_loop().time() + patience_s
        while not life.done() and asyncio.get_running_loop().time() < deadline:
            await asyncio.wait([life], timeout=1)
            if world.is_over:
                deadline += 1
        if life.done():
            life.result()
            await asyncio.sleep(0.2)
        elif draw.random() < 0.5:
            world.counts["deaths"] += 1
            life.cancel()
            await asyncio.wait([life])
        else:
            world.counts["zombies"] += 1  # its successor comes while it lives


async def _one_life(
    world: World, program: Callable[[World, str], Awaitable[None]], slot: str
) -> None:
    try:
        await program(world, slot)
    except TidemarkError as error:
        world.counts[f"ended by {type(error).__name__}"] += 1


# --- looking


async def read(world: World, topics: list[str]) -> None:
    """A reader at read_committed from the beginning on; it begins anew now and then."""
    while not world.are_readers_done:
        async with _reader(world, topics) as consumer:
            polls = world.draw.randrange(20, 200)
            counts: dict[TopicPartition, int] = defaultdict(int)
            with contextlib.suppress(TidemarkError):
                while polls > 0 and not world.are_readers_done:
                    polls -= not world.is_over
                    for record in await consumer.poll(500):
                        partition = TopicPartition(record.topic, record.partition)
                        index = counts[partition]
                        world.ledger.read(partition, record.offset, record.value or b"", index)
                        counts[partition] += 1
                    _note_positions(world, consumer)


def _note_positions(world: World, consumer: AsyncConsumer) -> None:
    for partition, state in consumer._fetcher.core.assignment.partitions.items():
        if state.reader is not None:
            world.passed[partition] = max(world.passed[partition], state.reader.offset)


@contextlib.asynccontextmanager
async def _reader(world: World, topics: list[str]) -> AsyncIterator[AsyncConsumer]:
    consumer = world.cluster.asyncio.consumer(
        isolation_level="read_committed",
        auto_offset_reset="earliest",
        request_timeout_ms=2_000,
        default_api_timeout_ms=5_000,
    )
    consumer.assign([TopicPartition(t, n) for t in topics for n in range(PARTITIONS[t])])
    try:
        yield consumer
    finally:
        await consumer.close()


async def watch_offsets(world: World) -> None:
    """Committed offsets of the group never go back."""
    caller, told = Caller(world.cluster), dict[int, int]()
    request = group_pb2.OffsetFetchRequest()
    numbers = range(PARTITIONS[SOURCE])
    request.groups.add(group_id=GROUP).topics.add(name=SOURCE, partition_indexes=numbers)
    while not world.are_readers_done:
        await asyncio.sleep(0.5)
        try:
            answer = await caller.coordinated(GROUP, request, group_pb2.GROUP)
            (group,) = answer.groups
            raise_for(group.error_code, group.error_message)
        except ApiError:
            caller.forget()
            continue
        for found in group.topics[0].partitions:
            before = told.get(found.partition_index, -1)
            if found.committed_offset < before:
                raise TransactionViolation(
                    f"committed offsets go back: {SOURCE}-{found.partition_index} from {before} to"
                    f" {found.committed_offset}"
                )
            told[found.partition_index] = found.committed_offset


async def watch_outcomes(world: World) -> None:
    """A coordinator tells one outcome of each transaction, and never takes it back."""
    caller, told = Caller(world.cluster), dict[tuple[int, int], bool]()
    while not world.are_readers_done:
        await asyncio.sleep(0.3)
        slot = world.draw.choice(world.slots)
        request = pb.DescribeTransactionsRequest(transactional_ids=[slot])
        try:
            (found,) = (await caller.coordinated(slot, request)).transactions
            raise_for(found.error_code, found.error_message)
        except ApiError:
            caller.forget()
            continue
        if found.transaction_state in ("Empty", "Ongoing"):
            continue
        committed = found.transaction_state.endswith("Commit")
        key = found.producer_id, found.producer_epoch
        if told.setdefault(key, committed) != committed:
            raise TransactionViolation(
                f"a transaction has two outcomes: {slot} is {found.transaction_state} in epoch"
                f" {key[1]}"
            )
