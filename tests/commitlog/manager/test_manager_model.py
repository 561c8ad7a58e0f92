"""Random histories of several logs of one manager: topics made, deleted and recreated with the same
name, checkpoints at any time, crashes.

Each log that a start finds is a prefix of what its topic was given, with all that was flushed.
There is no other log.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from uuid import UUID

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from commitlog.disk.memory_files import MemoryDirectory
from commitlog.log.expiration import delete_expired
from commitlog.log.log import Log
from commitlog.manager.manager import LogManager
from tests.commitlog.builders import NOW, config, model_settings, records_of
from tests.commitlog.moves.moving import SERVER
from tidemark.records import Record, encode_batch
from tidemark.types import TopicPartition

PARTITIONS = [TopicPartition("t", number) for number in range(2)]
NUMBER = st.integers(0, 1)
POLICIES = [("delete",), ("compact",), ("compact", "delete")]


@dataclass
class Topic:
    """Records given to one incarnation of a partition's log."""

    topic_id: UUID
    records: list[tuple[int, bytes]] = field(default_factory=list)
    end: int = 0
    durable_end: int = 0
    saved_start: int = 0


class ManagerMachine(RuleBasedStateMachine):
    """`topics` is the model: the partitions that exist."""

    @initialize(seed=st.integers(0, 2**32))
    def begin(self, seed: int) -> None:
        self.disk = MemoryDirectory(seed=seed)
        self.settings = config(segment_bytes=400, index_interval_bytes=100)
        self.topics: dict[TopicPartition, Topic] = {}
        self.made = 0
        self.now = NOW
        self.open()

    def open(self) -> None:
        self.logs = LogManager(
            [self.disk],
            SERVER,
            now_ms=lambda: self.now,
            topic_config=lambda _: self.settings,
        )
        self.logs.open()

    def log(self, partition: TopicPartition) -> Log:
        log = self.logs.get(partition)
        assert log is not None
        return log

    # --- rules

    @rule(number=NUMBER, delete_first=st.booleans())
    def make(self, number: int, delete_first: bool) -> None:
        """Makes a log; one that exists is deleted first, or set aside."""
        if delete_first:
            self.logs.delete(PARTITIONS[number])
        self.made += 1
        topic = self.topics[PARTITIONS[number]] = Topic(UUID(int=self.made))
        log = self.logs.get_or_create(PARTITIONS[number], topic.topic_id, self.settings)
        assert (log.log_start_offset, log.log_end_offset, log.high_watermark) == (0, 0, 0)

    @rule(number=NUMBER, batches=st.integers(1, 9), count=st.integers(1, 3))
    def append(self, number: int, batches: int, count: int) -> None:
        """Appends enough at once to fill a segment most often."""
        partition = PARTITIONS[number]
        if partition not in self.topics:
            self.make(number, False)
        topic = self.topics[partition]
        for _ in range(batches):
            values = [b"%d of %d" % (topic.end + i, topic.topic_id.int) for i in range(count)]
            data = encode_batch([Record(0, self.now, b"k" * 60, value) for value in values])
            self.log(partition).append_as_leader(data, 1, self.now)
            topic.records += enumerate(values, topic.end)
            topic.end += count

    @rule(number=NUMBER)
    def flush(self, number: int) -> None:
        if PARTITIONS[number] in self.topics:
            self.log(PARTITIONS[number]).flush()
            self.topics[PARTITIONS[number]].durable_end = self.topics[PARTITIONS[number]].end

    @rule(number=NUMBER, share=st.floats(0, 1))
    def truncate(self, number: int, share: float) -> None:
        if PARTITIONS[number] in self.topics:
            log, topic = self.log(PARTITIONS[number]), self.topics[PARTITIONS[number]]
            start = log.log_start_offset
            log.truncate_to(start + int((topic.end - start) * share), self.now)
            self.ends_at(topic, log)

    @rule(number=NUMBER, share=st.floats(0, 1))
    def delete_records(self, number: int, share: float) -> None:
        if PARTITIONS[number] in self.topics:
            log = self.log(PARTITIONS[number])
            log.update_high_watermark(log.log_end_offset)
            start = log.log_start_offset
            log.increment_log_start_offset(start + int((log.log_end_offset - start) * share))
            delete_expired(log, self.now)

    @rule(policy=st.sampled_from(POLICIES))
    def alter_the_policy(self, policy: tuple[str, ...]) -> None:
        self.settings = config(segment_bytes=400, index_interval_bytes=100, cleanup_policy=policy)

    @rule()
    def checkpoint_recovery_points(self) -> None:
        self.logs.checkpoint_recovery_points()

    @rule()
    def checkpoint_log_starts(self) -> None:
        self.logs.checkpoint_log_start_offsets()
        for partition, topic in self.topics.items():
            topic.saved_start = self.log(partition).log_start_offset

    @rule()
    def checkpoint_high_watermarks(self) -> None:
        self.logs.checkpoint_high_watermarks()

    @rule()
    def purge(self) -> None:
        self.now += 2000
        self.logs.purge_deleted(self.now)

    @rule()
    def restart_cleanly(self) -> None:
        self.logs.close()
        self.open()
        for partition, topic in self.topics.items():
            assert self.log(partition).log_end_offset == topic.end
            topic.durable_end = topic.end

    @rule(number=NUMBER, batches=st.integers(1, 9))
    def append_and_crash(self, number: int, batches: int) -> None:
        """Appends and crashes: one rule, so that crashes after appends are frequent."""
        self.append(number, batches, 1)
        self.crash()

    @rule()
    def crash(self) -> None:
        points = {partition: self.log(partition).recovery_point for partition in self.topics}
        self.disk.crash()
        self.open()
        for partition, topic in self.topics.items():
            log = self.log(partition)
            assert log.log_end_offset >= max(topic.durable_end, points[partition])
            assert log.log_end_offset <= topic.end
            assert log.log_start_offset >= topic.saved_start
            self.ends_at(topic, log)
            topic.durable_end = topic.end

    def ends_at(self, topic: Topic, log: Log) -> None:
        topic.end = log.log_end_offset
        topic.records = [record for record in topic.records if record[0] < topic.end]
        topic.durable_end = min(topic.durable_end, topic.end)
        topic.saved_start = min(topic.saved_start, topic.end)

    # --- what must always hold

    @invariant()
    def the_logs_are_those_of_the_model(self) -> None:
        assert {log.topic_partition for log in self.logs.logs()} == self.topics.keys()
        for partition, topic in self.topics.items():
            log = self.log(partition)
            log.validate()
            assert log.topic_id == topic.topic_id
            assert log.log_end_offset == topic.end
            assert log.log_start_offset <= log.high_watermark <= topic.end
            start = log.local_log_start_offset
            found = [(record.offset, record.value) for record in records_of(log)]
            assert found == [record for record in topic.records if record[0] >= start]


ManagerMachine.TestCase.settings = model_settings(12)
TestLogsOfAManagerAgainstTheirModel = ManagerMachine.TestCase
