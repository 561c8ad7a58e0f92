"""The consumer's core against a model: a reader's next offset in each partition, and the logs.

Answers, errors, seeks, polls given up, moves of leaders and damage come in any order. The reader
gets exactly the log's records, in order, from the position on.
"""

from __future__ import annotations

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from tests.client.consuming.harness import A, B, C, Fetching
from tidemark.client.consuming.partition import Asked
from tidemark.client.errors import CorruptBatchError
from tidemark.errors import ErrorCode, NetworkError, NotLeaderOrFollowerError
from tidemark.records.header import HEADER_BYTES
from tidemark.types import TopicPartition
from tidemark.wire import FetchResponse

PARTITIONS = (A, B, C)
NODES = (1, 2)
_RETRIABLE = (
    ErrorCode.NOT_LEADER_OR_FOLLOWER,
    ErrorCode.OFFSET_NOT_AVAILABLE,
    ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
)
partitions = st.sampled_from(PARTITIONS)


class Reading(RuleBasedStateMachine):
    """`next` is the whole model: the next offset of each reader."""

    def __init__(self) -> None:
        super().__init__()
        self.fetching = Fetching(max_partition_fetch_bytes=300, buffer_bytes=600)
        self.next = dict.fromkeys(PARTITIONS, 0)
        self.damaged: dict[TopicPartition, int] = {}  # first offset of the damaged batch
        self.stopped: set[TopicPartition] = set()

    @initialize()
    def begin(self) -> None:
        self.fetching.assign(*PARTITIONS)

    def request(self, data: st.DataObject) -> int | None:
        sent = list(self.fetching.sent)
        return data.draw(st.sampled_from(sent)) if sent else None

    @rule(partition=partitions, count=st.integers(1, 5))
    def append(self, partition: TopicPartition, count: int) -> None:
        self.fetching.logs[partition].append(count)

    @rule(data=st.data(), max_bytes=st.integers(1, 400), names_all=st.booleans())
    def serve(self, data: st.DataObject, max_bytes: int, names_all: bool) -> None:
        request_id = self.request(data)
        if request_id is not None:
            self.fetching.serve(max_bytes, request_id, names_all=names_all)

    @rule(data=st.data(), throttle=st.integers(1, 2_000))
    def throttle(self, data: st.DataObject, throttle: int) -> None:
        request_id = self.request(data)
        if request_id is not None and self.fetching.sent[request_id].is_fetch:
            self.fetching.reply(request_id, FetchResponse([], throttle_time_ms=throttle))

    @rule(partition=partitions)
    def assign_anew(self, partition: TopicPartition) -> None:
        """The partition is given back, and assigned again where the reader was."""
        fetching = self.fetching
        kept = [each for each in fetching.partitions if each != partition]
        fetching.core.assign(kept, fetching.now_ms)
        if partition not in self.stopped:
            fetching.step()
        fetching.core.assign([*kept, partition], fetching.now_ms)
        fetching.seek(partition, self.next[partition])
        self.stopped.discard(partition)
        fetching.step()

    @rule(data=st.data(), code=st.sampled_from([*_RETRIABLE, ErrorCode.CORRUPT_MESSAGE, 9999]))
    def serve_with_an_error(self, data: st.DataObject, code: int) -> None:
        request_id = self.request(data)
        if request_id is None:
            return
        request = self.fetching.sent[request_id]
        found = [self.fetching.read(tp, request, 1 << 20) for tp in request.asked]
        one = data.draw(st.sampled_from(found))
        one.error_code, one.records = code, b""
        if data.draw(st.booleans()):
            found.reverse()
        if data.draw(st.booleans()):
            found.append(found[0])  # named twice
        if data.draw(st.booleans()):
            del found[0]  # not named
        self.fetching.reply(request_id, FetchResponse(found))

    @rule(
        data=st.data(),
        error=st.sampled_from(
            [NetworkError("x"), NotLeaderOrFollowerError(), RuntimeError("?"), ValueError("?")]
        ),
    )
    def fail(self, data: st.DataObject, error: Exception) -> None:
        request_id = self.request(data)
        if request_id is not None:
            del self.fetching.sent[request_id]
            self.fetching.core.failed(request_id, error, self.fetching.now_ms)
            self.fetching.step()

    @rule(partition=partitions, data=st.data())
    def seek(self, partition: TopicPartition, data: st.DataObject) -> None:
        offset = data.draw(st.integers(0, self.fetching.logs[partition].end))
        self.fetching.seek(partition, offset)
        self.next[partition] = offset
        self.stopped.discard(partition)
        self.fetching.step()

    @rule(partition=partitions)
    def pause_or_resume(self, partition: TopicPartition) -> None:
        state = self.fetching.partitions[partition]
        assignment = self.fetching.core.assignment
        (assignment.resume if state.is_paused else assignment.pause)(state)
        self.fetching.step()

    @rule(partition=partitions, node=st.sampled_from([*NODES, None]))
    def move(self, partition: TopicPartition, node: int | None) -> None:
        self.fetching.leaders.leaders[partition] = node
        self.fetching.refreshed()

    @rule(after_ms=st.integers(1, 3000))
    def wait(self, after_ms: int) -> None:
        self.fetching.step(after_ms)
        if self.fetching.is_refreshing:
            self.fetching.refreshed()

    @rule()
    def begin_a_poll_and_give_it_up(self) -> None:
        before = {tp: state.reader for tp, state in self.fetching.partitions.items()}
        self.fetching.load()
        self.fetching.step()
        assert before == {tp: state.reader for tp, state in self.fetching.partitions.items()}

    @rule(max_records=st.integers(1, 8))
    def poll(self, max_records: int) -> None:
        for partition, offset, value in self.fetching.poll(max_records):
            assert offset == self.next[partition], "in order, and none left out"
            assert offset not in self.broken(partition), "no record of a damaged batch"
            assert value == b"%d" % offset
            self.next[partition] += 1

    @rule()
    def raise_an_error(self) -> None:
        error = self.fetching.error()
        if isinstance(error, CorruptBatchError):
            partition = error.topic_partition
            assert error.offset == self.next[partition], "raised behind the records before it"
            assert error.offset in self.broken(partition)
            self.stopped.add(partition)

    @rule(partition=partitions)
    def damage(self, partition: TopicPartition) -> None:
        """Flips a byte of the newest batch at the leader, if no other one is damaged."""
        log = self.fetching.logs[partition]
        if partition in self.damaged or not log.batches:
            return
        first, last, batch = log.batches[-1]
        if last < self.next[partition] or self.is_fetched(partition, first):
            return
        changed = bytearray(batch)
        changed[HEADER_BYTES + 2] ^= 1
        log.batches[-1] = (first, last, bytes(changed))
        self.damaged[partition] = first

    def is_fetched(self, partition: TopicPartition, offset: int) -> bool:
        buffered = self.fetching.partitions[partition].buffered
        return any(item.raw.next_offset > offset for item in buffered)

    def broken(self, partition: TopicPartition) -> range:
        if partition not in self.damaged:
            return range(0)
        first = self.damaged[partition]
        last = next(end for base, end, _ in self.fetching.logs[partition].batches if base == first)
        return range(first, last + 1)

    @invariant()
    def positions_are_those_of_the_model(self) -> None:
        for partition, state in self.fetching.partitions.items():
            assert state.reader is not None
            assert state.reader.offset == self.next[partition]

    @invariant()
    def stopped_until_a_seek(self) -> None:
        for partition in self.stopped:
            assert not isinstance(self.fetching.partitions[partition].phase, Asked)

    def teardown(self) -> None:
        """Once faults stop, every reader that is not stopped gets to the end of its log."""
        if not self.fetching.partitions:
            return
        fetching = self.fetching
        for partition in PARTITIONS:
            fetching.leaders.leaders[partition] = 1
            fetching.core.assignment.resume(fetching.partitions[partition])
        fetching.refreshed()
        for _ in range(200):
            fetching.step(1000)
            if fetching.is_refreshing:
                fetching.refreshed()
            while fetching.sent and len(fetching.sent) > len(NODES):
                fetching.serve()
            if fetching.sent:
                fetching.serve()
            self.poll(100)
            self.raise_an_error()
        for partition in PARTITIONS:
            end = fetching.logs[partition].end
            if self.next[partition] != end:
                assert self.next[partition] in self.broken(partition), "reads on, or says why not"
                assert partition in self.stopped


Reading.TestCase.settings = settings(max_examples=150, stateful_step_count=40, deadline=None)
TestReading = Reading.TestCase
