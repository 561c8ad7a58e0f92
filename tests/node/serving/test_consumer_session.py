"""Sessions of consumers (KIP-227): a wake-up costs what moved, and no record is left out."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Sequence
from random import Random
from typing import Any

import pytest

from node.serving import requests
from node.serving.fetch_session import ConsumerSession, FetchingReplica, FetchSession
from node.serving.fetching import FetchHandler, FetchParams
from tests.client.consuming.harness import FakeLeaders
from tests.node.cluster import TOPIC, Cluster, values_of
from tests.node.replication.test_loop_turns import append, chill, hosted_everywhere, slow
from tests.node.replication.test_loop_turns import create as create_replicated
from tests.node.replication.test_replication import scenario
from tests.node.serving.test_fetch import LARGE, SIZE, follower, of
from tests.node.serving.test_fetch import append as append_to_leader
from tests.node.serving.test_fetch import create as create_followed
from tests.node.serving.test_fetch import fetch as fetch_as_follower
from tests.node.slow_disk import SlowDiskLoop
from tidemark.client.consuming.assignment import Taken
from tidemark.client.consuming.core import FetchCore
from tidemark.client.consuming.damage import examine
from tidemark.client.consuming.partition import Position
from tidemark.client.consuming.requests import FetchSettings
from tidemark.client.retry import RetryPolicy
from tidemark.errors import ErrorCode, NetworkError
from tidemark.types import TopicPartition, random_uuid
from tidemark.v1 import log_pb2
from tidemark.v1 import metadata_pb2 as records_pb
from tidemark.wire import FetchPartitionData, FetchResponse, decode_fetch_response

NOT_EARLY_MS = 100


def create(cluster: Cluster, partitions: int) -> None:
    """A topic led by node 1 alone: what is appended is committed."""
    topic_id = cluster.topic_id.bytes
    cluster.publish(
        records_pb.MetadataRecord(topic=records_pb.TopicRecord(name=TOPIC, topic_id=topic_id)),
        *(
            records_pb.MetadataRecord(
                partition=records_pb.PartitionRecord(
                    partition_id=number, topic_id=topic_id, replicas=(1,), isr=(1,), leader=1
                )
            )
            for number in range(partitions)
        ),
    )


class Consumer:
    """A consumer's session with node 1."""

    def __init__(self, cluster: Cluster) -> None:
        self.cluster = cluster
        self.session = ConsumerSession()

    def begin(
        self, *partitions: int, offset: int = 0, forgotten: Sequence[int] = (), **params: Any
    ) -> asyncio.Future[list[FetchPartitionData]]:
        self.session.apply(
            of(*partitions, offset=offset), [TopicPartition(TOPIC, each) for each in forgotten]
        )
        defaults = {"max_wait_ms": NOT_EARLY_MS, "min_bytes": 1, "max_bytes": LARGE}
        handler = self.cluster.nodes[1].handlers.fetch
        fetch = handler.fetch(FetchParams(**(defaults | params)), self.session)
        return asyncio.ensure_future(fetch)

    async def fetch(self, *partitions: int, **params: Any) -> dict[int, list[str]]:
        answers = await self.begin(*partitions, **params)
        return {answer.partition_index: values_of(answer.payload) for answer in answers}


def test_a_wake_up_looks_at_what_moved_and_answers_that_alone(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    looked_at: Counter[int] = Counter()
    read_one = FetchHandler._read_one

    def counted(self: Any, params: Any, context: Any, item: Any, *others: Any) -> None:
        looked_at[item.partition] += 1
        read_one(self, params, context, item, *others)

    async def test(cluster: Cluster) -> None:
        create(cluster, 100)
        consumer = Consumer(cluster)
        assert len(await consumer.fetch(*range(100))) == 100, "each with its high watermark"
        monkeypatch.setattr(FetchHandler, "_read_one", counted)
        assert await consumer.fetch() == {}
        assert not looked_at
        waiting = consumer.begin()
        await asyncio.sleep(0.01)
        await append_to_leader(cluster, 42, "a")
        answers = await waiting
        assert [values_of(answer.payload) for answer in answers] == [["a"]]
        assert looked_at == {42: 1}
        await append_to_leader(cluster, 42, "b")
        assert await consumer.fetch() == {}, "not before it is named again"
        assert await consumer.fetch(42, offset=1) == {42: ["b"]}
        assert looked_at == {42: 2}

    scenario(test, nodes=(1,))


def test_min_bytes_and_max_bytes_count_what_earlier_looks_found() -> None:
    async def test(cluster: Cluster) -> None:
        create(cluster, 3)
        consumer = Consumer(cluster)
        await consumer.fetch(0, 1, 2)
        waiting = consumer.begin(min_bytes=2 * SIZE, max_wait_ms=1_000)
        await append_to_leader(cluster, 0, "a")
        await asyncio.sleep(0.01)
        assert not waiting.done()
        await append_to_leader(cluster, 1, "b")
        assert {answer.partition_index for answer in await waiting} == {0, 1}
        waiting = consumer.begin(0, 1, offset=1, min_bytes=3 * SIZE, max_bytes=2 * SIZE)
        for number in range(3):
            await append_to_leader(cluster, number, "c")
            await asyncio.sleep(0)
        answers = await waiting
        assert {answer.partition_index for answer in answers if answer.records} == {0, 1}
        assert await consumer.fetch() == {2: ["c"]}, "there was no room for it before"

    scenario(test, nodes=(1,))


def test_a_batch_for_which_there_was_no_room_comes_with_the_next_answer() -> None:
    async def test(cluster: Cluster) -> None:
        create(cluster, 2)
        await append_to_leader(cluster, 0, "a")
        await append_to_leader(cluster, 1, "a large one" * 100)
        consumer = Consumer(cluster)
        assert await consumer.fetch(0, 1, max_bytes=2 * SIZE) == {0: ["a"], 1: []}
        assert await consumer.fetch(max_bytes=2 * SIZE) == {1: ["a large one" * 100]}

    scenario(test, nodes=(1,))


def test_partitions_without_room_come_before_those_that_are_named_again() -> None:
    async def test(cluster: Cluster) -> None:
        create(cluster, 4)
        for number in range(4):
            for value in ("a", "b", "c", "d"):
                await append_to_leader(cluster, number, value)
        consumer, offsets = Consumer(cluster), [0] * 4
        named: list[int] = [0, 1, 2, 3]
        order = []
        for _ in range(8):
            consumer.session.apply(
                [item for number in named for item in of(number, offset=offsets[number])]
            )
            found = await consumer.fetch(max_bytes=1)
            named = [number for number, values in found.items() if values]
            order += named
            for number in named:
                offsets[number] += len(found[number])
        assert order == [0, 1, 2, 3, 0, 1, 2, 3], "the response's limit starves none (KIP-74)"

    scenario(test, nodes=(1,))


def test_a_follower_gets_a_batch_for_which_there_was_no_room_with_the_next_answer() -> None:
    async def test(cluster: Cluster) -> None:
        create_followed(cluster, 2)
        await append_to_leader(cluster, 0, "a")
        await append_to_leader(cluster, 1, "a large one" * 100)
        session, replica = FetchSession(), follower(cluster)
        session.begin(replica, 0, of(0, 1), ())
        found = await fetch_as_follower(cluster, session, 2 * SIZE)
        assert [len(each.payload) for each in found] == [SIZE, 0]
        session.begin(replica, session.id, (), ())
        (found_later,) = await fetch_as_follower(cluster, session, 2 * SIZE)
        assert values_of(found_later.payload) == ["a large one" * 100]
        session.close()

    scenario(test, nodes=(1, 2))


def test_an_error_is_told_once_and_the_partition_is_read_when_it_is_named_again() -> None:
    async def test(cluster: Cluster) -> None:
        create(cluster, 2)
        consumer = Consumer(cluster)
        (refused,) = await consumer.begin(0, offset=7)
        assert refused.error_code == ErrorCode.OFFSET_OUT_OF_RANGE
        await append_to_leader(cluster, 0, "a")
        assert await consumer.fetch() == {}
        assert await consumer.fetch(0) == {0: ["a"]}
        await consumer.fetch(0, offset=1)
        waiting = consumer.begin(max_wait_ms=60_000)
        await asyncio.sleep(0.01)
        cluster.delete_topic()
        (gone,) = await waiting
        assert gone.error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        cluster.topic_id = random_uuid()
        create(cluster, 1)
        await append_to_leader(cluster, 0, "anew")
        assert await consumer.fetch() == {}
        assert await consumer.fetch(0) == {0: ["anew"]}

    scenario(test, nodes=(1,))


def test_forgotten_partitions_are_not_read_and_a_closed_session_leaves_no_waiter() -> None:
    async def test(cluster: Cluster) -> None:
        create(cluster, 3)
        consumer = Consumer(cluster)
        await consumer.fetch(0, 1, 2)
        waiting = consumer.begin(forgotten=[1])
        await asyncio.sleep(0.01)
        await append_to_leader(cluster, 1, "a")
        assert await waiting == []
        hosted = [cluster.nodes[1].hosted(number) for number in range(3)]
        assert [len(each.commit_waiters) for each in hosted] == [1, 0, 1]
        consumer.session.close()
        assert [len(each.commit_waiters) for each in hosted] == [0, 0, 0]

    scenario(test, nodes=(1,))


def test_a_request_behind_one_that_waits_ends_its_wait() -> None:
    async def test(cluster: Cluster) -> None:
        create(cluster, 1)
        consumer = Consumer(cluster)
        await consumer.fetch(0)
        behind = asyncio.get_running_loop().create_future()
        consumer.session.behind = behind
        waiting = consumer.begin(max_wait_ms=60_000)
        await asyncio.sleep(0.01)
        assert not waiting.done()
        behind.set_result(None)
        async with asyncio.timeout(0.01):
            assert await waiting == []

    scenario(test, nodes=(1,))


class Stream:
    """A call of the broker's FetchStream; requests go in, decoded answers come out."""

    def __init__(self, cluster: Cluster) -> None:
        self._requests: asyncio.Queue[Any] = asyncio.Queue()
        self._answers: asyncio.Queue[FetchResponse] = asyncio.Queue()
        self._written = asyncio.Event()
        self._written.set()
        self._call = asyncio.ensure_future(cluster.nodes[1].service.fetch_stream(None, self))

    async def read(self) -> Any:
        return await self._requests.get()

    async def write(self, answer: bytes) -> None:
        self._answers.put_nowait(decode_fetch_response(answer))
        await self._written.wait()

    def invocation_metadata(self) -> tuple[Any, ...]:
        return ()

    def peer(self) -> str:
        return "ipv4:127.0.0.1:1"

    def stop_reading(self) -> None:
        self._written.clear()

    async def ask(self, **fields: Any) -> FetchResponse:
        return await self.send(log_pb2.FetchRequest(**fields).SerializeToString())

    async def send(self, payload: bytes) -> FetchResponse:
        self._requests.put_nowait(payload)
        return await self._answers.get()

    async def close(self) -> None:
        self._call.cancel()
        await asyncio.wait((self._call,))


def named(partition: int, offset: int, **fields: Any) -> log_pb2.FetchRequest.FetchPartition:
    return log_pb2.FetchRequest.FetchPartition(
        **{"topic": TOPIC} | fields,
        partition=partition,
        fetch_offset=offset,
        current_leader_epoch=-1,
        last_fetched_epoch=-1,
        partition_max_bytes=LARGE,
    )


def test_a_stranger_reads_plain_records_over_a_session_and_may_name_topics_by_id() -> None:
    async def test(cluster: Cluster) -> None:
        create(cluster, 2)
        stream, by_id = Stream(cluster), {"topic": "", "topic_id": cluster.topic_id.bytes}
        await append_to_leader(cluster, 1, "a", "b")
        first = await stream.ask(
            plain_records=True, partitions=[named(0, 0, **by_id), named(1, 1, **by_id)]
        )
        values = {
            (data.topic, data.partition_index): [record.value for record in data.plain_records]
            for data in first.responses
        }
        assert values == {(TOPIC, 0): [], (TOPIC, 1): [b"b"]}
        await append_to_leader(cluster, 0, "c")
        gone = log_pb2.FetchRequest.ForgottenPartition(partition=0, topic_id=by_id["topic_id"])
        assert (await stream.ask(plain_records=True, forgotten=[gone])).responses == []
        await stream.close()

    scenario(test, nodes=(1,))


def test_an_answer_counts_until_it_is_written_or_its_call_ends() -> None:
    async def test(cluster: Cluster) -> None:
        create(cluster, 1)
        await append_to_leader(cluster, 0, "a")
        memory = cluster.nodes[1].service._answers
        stream = Stream(cluster)
        await stream.ask(partitions=[named(0, 0)])
        await asyncio.sleep(0)
        assert memory.used_bytes == 0
        stream.stop_reading()
        await stream.ask(partitions=[named(0, 0)])
        assert memory.used_bytes > SIZE
        await stream.close()
        assert memory.used_bytes == 0

    scenario(test, nodes=(1,))


def test_a_request_that_is_wrong_or_makes_the_session_too_large_is_refused_by_name(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(requests, "PARTITIONS_MAX", 3)

    async def test(cluster: Cluster) -> None:
        create(cluster, 4)
        stream = Stream(cluster)
        assert (await stream.send(b"\xff")).error_code == ErrorCode.INVALID_REQUEST
        answer = await stream.ask(partitions=[named(number, 0) for number in range(3)])
        assert (answer.error_code, len(answer.responses)) == (ErrorCode.NONE, 3)
        answer = await stream.ask(partitions=[named(3, 0)])
        assert answer.error_code == ErrorCode.INVALID_REQUEST
        assert "4 partitions" in answer.error_message
        await stream.close()

    scenario(test, nodes=(1,))


def test_records_that_the_page_cache_lacks_are_read_without_a_pause_in_a_session() -> None:
    async def test(cluster: Cluster, loop: SlowDiskLoop) -> None:
        create_replicated(cluster, 1, segment_bytes="80")
        await hosted_everywhere(cluster, 1)
        values = [f"value {number}" for number in range(6)]
        cluster.cut.add((2, 1))
        await asyncio.sleep(1)
        await append(cluster.nodes[1], 0, *values)
        cluster.nodes[1].hosted().log.flush()
        await asyncio.sleep(1)
        loop.longest_turn_s = 0.0
        chill(cluster, 1)
        session = FetchSession()
        session.begin(FetchingReplica(2, cluster.nodes[2].broker_epoch), 0, of(0), ())
        begun = loop.time()
        params = FetchParams(60_000, 1, LARGE, session._replica)
        (found,) = await cluster.nodes[1].handlers.fetch.fetch(params, session)
        assert values_of(found.payload) == values[:1]
        assert loop.time() - begun < 1
        session.close()

    slow(test)


class Reader:
    """The consumer's core and its sessions, with the real node's half behind them."""

    def __init__(self, cluster: Cluster, partitions: int, rng: Random) -> None:
        self.cluster, self.rng = cluster, rng
        self.leaders = FakeLeaders()
        settings = FetchSettings(RetryPolicy(60_000, 1, 1, jitter=0), "none")
        self.core = FetchCore(settings, self.leaders, Random(1))
        self.keys = [TopicPartition(TOPIC, number) for number in range(partitions)]
        self.leaders.leaders = dict.fromkeys(self.keys, 1)
        self.node: dict[int, Consumer] = {}
        self.now_ms = 0.0
        self.read: dict[TopicPartition, list[str]] = {key: [] for key in self.keys}
        self.core.assign(self.keys, 0)
        for key in self.keys:
            self.seek(key, 0)

    def seek(self, key: TopicPartition, offset: int) -> None:
        self.core.seek(self.core.assignment.partitions[key], Position(offset))
        del self.read[key][offset:]

    async def round(self, *, seeks: bool = True) -> None:
        """A step, the answers to its requests, and a poll of some."""
        self.now_ms += 1_000
        effects = self.core.step(self.now_ms)
        self.core.validate()
        for request_id in effects.cancelled:
            self.core.failed(request_id, NetworkError("cancelled"), self.now_ms)
        for request_id in effects.ended:
            self.node.pop(request_id, None)
        for request in effects.requests:
            if request.request_id in effects.cancelled:
                continue
            if self.rng.random() < 0.05:  # the call broke
                self.core.failed(request.request_id, NetworkError("broken"), self.now_ms)
                continue
            consumer = self.node.setdefault(request.request_id, Consumer(self.cluster))
            consumer.session.apply(
                [
                    item
                    for key in request.named
                    if isinstance(at := request.asked[key].target, Position)
                    for item in of(key.partition, offset=at.offset)
                ],
                request.forgotten,
            )
            params = FetchParams(1, 1, self.rng.choice([0, SIZE, 4 * SIZE, LARGE]))
            handler = self.cluster.nodes[1].handlers.fetch
            found = await handler.fetch(params, consumer.session)
            if seeks and self.rng.random() < 0.1:  # while the answer is on its way
                self.seek(key := self.rng.choice(self.keys), self.rng.randrange(self.at(key) + 1))
            for data in found:
                data.records = data.payload
            self.core.answered(request.request_id, FetchResponse(found), self.now_ms)
            self.core.validate()
        self.poll()

    def at(self, key: TopicPartition) -> int:
        return len(self.read[key])

    def poll(self) -> None:
        for partition, items in self.core.assignment.waiting():
            if self.rng.random() < 0.3:
                continue
            for item in items:
                outcome = examine(item.raw, decodes=True, check_crcs=True)
                assert outcome.error is None and outcome.rows is not None
                self.core.assignment.examined(partition, item, outcome.rows)
                values = [value.decode() for value in outcome.rows.column("value").to_pylist()]
                self.core.assignment.handed_over([Taken(partition, item)])
                self.read[partition.topic_partition] += values


def test_a_consumer_and_its_node_agree_on_what_is_asked_for() -> None:
    """A model of both halves: random logs, seeks, pauses, small answers and lost calls."""
    rng = Random(7)

    async def test(cluster: Cluster) -> None:
        create(cluster, 6)
        reader = Reader(cluster, 6, rng)
        ends = dict.fromkeys(reader.keys, 0)
        for _ in range(600):
            for key in rng.sample(reader.keys, rng.randrange(3)):
                await append_to_leader(cluster, key.partition, f"{key.partition}:{ends[key]}")
                ends[key] += 1
            if rng.random() < 0.2:
                state = reader.core.assignment.partitions[rng.choice(reader.keys)]
                assignment = reader.core.assignment
                (assignment.resume if state.is_paused else assignment.pause)(state)
            await reader.round()
        for state in reader.core.assignment.partitions.values():
            reader.core.assignment.resume(state)
        for _ in range(400):
            await reader.round(seeks=False)
        for key, end in ends.items():
            assert reader.read[key] == [f"{key.partition}:{at}" for at in range(end)]

    scenario(test, nodes=(1,))
