"""One contract for the fake metadata manager and the topic-based one; then the latter alone."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from uuid import UUID

import pytest

from tests.tiering.builders import (
    DELETED,
    DELETING,
    FINISHED,
    PARTITION,
    STARTED,
    segment,
    server_config,
)
from tidemark.client import (
    AsyncConsumer,
    AsyncProducer,
    TopicDescription,
)
from tidemark.client.models import PartitionDescription
from tidemark.errors import ConfigError, NetworkError
from tidemark.types import TopicIdPartition, uuid_from_text
from tiering.errors import (
    RemoteResourceNotFoundError,
    RemoteStorageError,
    RemoteStorageNotReadyError,
    RetriableRemoteStorageError,
)
from tiering.metadata.codec import encode
from tiering.metadata.manager import RemoteLogMetadataManager
from tiering.metadata.memory import MemoryHistory, MemoryRemoteLogMetadataManager
from tiering.metadata.segments import RemotePartitionDeleteMetadata, RemotePartitionDeleteState
from tiering.metadata.topic import (
    ClientMetadataTopic,
    MetadataRecord,
    check_topic,
    client_settings,
)
from tiering.metadata.topic_based import (
    TopicBasedRemoteLogMetadataManager,
    create_metadata_manager,
    metadata_partition,
)

GOLDEN = Path(__file__).parents[2] / "golden" / "kafka-4.3.0" / "tier"


class Broker:
    """The metadata topic's content, shared by the clients of several nodes."""

    def __init__(self, partitions: int = 3) -> None:
        self.logs: list[list[bytes]] = [[] for _ in range(partitions)]
        self.epochs: dict[tuple[int, int], int] = {}
        """Leader epochs of records by partition and offset, where a test names them."""
        self.appended = asyncio.Event()
        self.down = False
        self.opens = 0

    def append(self, partition: int, value: bytes) -> int:
        self.logs[partition].append(value)
        self.appended.set()
        return len(self.logs[partition]) - 1


class FakeTopic:
    """A MetadataTopic over `Broker`, which waits on its event, never on the clock."""

    topic_id = UUID(int=77)

    def __init__(self, broker: Broker) -> None:
        self.broker = broker
        self.positions: dict[int, int] = {}
        self.hold = False
        self.polled = asyncio.Event()

    def _check(self) -> None:
        if self.broker.down:
            raise NetworkError("the broker is down")

    async def open(self) -> int:
        self.broker.opens += 1
        self._check()
        return len(self.broker.logs)

    async def append(self, partition: int, value: bytes) -> int:
        self._check()
        return self.broker.append(partition, value)

    async def assign(self, positions: Mapping[int, int], epochs: Mapping[int, int]) -> None:
        self._check()
        self.positions = dict(positions)

    async def end_offsets(self, partitions: list[int]) -> dict[int, int]:
        self._check()
        return {number: len(self.broker.logs[number]) for number in partitions}

    async def poll(self) -> tuple[list[MetadataRecord], dict[int, int]]:
        await asyncio.sleep(0)
        self._check()
        records = []
        for number, position in self.positions.items():
            if self.hold:
                break
            values = self.broker.logs[number][position:]
            for offset, value in enumerate(values, position):
                epoch = self.broker.epochs.get((number, offset), -1)
                records.append(MetadataRecord(number, offset, value, epoch))
            self.positions[number] = position + len(values)
        self.polled.set()
        return records, dict(self.positions) if not self.hold else {}

    async def close(self) -> None:
        self.positions = {}


Managers = Callable[[], Awaitable[RemoteLogMetadataManager]]


@asynccontextmanager
async def managers(kind: str) -> AsyncIterator[Managers]:
    """Provides a factory of managers of several nodes over one history."""
    history, broker, made = MemoryHistory(), Broker(), []

    async def make() -> RemoteLogMetadataManager:
        manager: RemoteLogMetadataManager = (
            MemoryRemoteLogMetadataManager(history)
            if kind == "memory"
            else TopicBasedRemoteLogMetadataManager(FakeTopic(broker))
        )
        made.append(manager)
        await manager.start()
        return manager

    try:
        async with asyncio.timeout(20):
            yield make
    finally:
        for manager in made:
            await manager.close()


async def ready(manager: RemoteLogMetadataManager, partition: TopicIdPartition = PARTITION) -> None:
    """Assigns the partition and waits until the manager has read it."""
    manager.on_partition_leadership_changes([partition], [])
    for _ in range(1000):
        if manager.is_ready(partition):
            return
        await asyncio.sleep(0)
    raise AssertionError("never became ready")


async def copy(manager: RemoteLogMetadataManager, one) -> None:  # type: ignore[no-untyped-def]
    await manager.add_remote_log_segment_metadata(replace(one, state=STARTED))
    await manager.update_remote_log_segment_metadata(one.update(FINISHED, 7, 1))


@pytest.mark.parametrize("kind", ["memory", "topic"])
class TestContract:
    def test_a_finished_segment_is_found_by_epoch_and_offset(self, kind: str) -> None:
        async def scenario() -> None:
            async with managers(kind) as make:
                manager = await make()
                await ready(manager)
                await copy(manager, segment(0, 9, 1, e0=0))
                await copy(manager, segment(10, 19, 2, e0=10, e1=15))
                for epoch, offset, number in ((0, 3, 1), (0, 12, 2), (1, 15, 2)):
                    found = manager.remote_log_segment_metadata(PARTITION, epoch, offset)
                    assert found is not None and found.id.int == number
                    assert found.state is FINISHED and found.event_timestamp_ms == 7
                for epoch, offset in ((0, 15), (0, 20), (1, 12), (2, 3)):
                    assert manager.remote_log_segment_metadata(PARTITION, epoch, offset) is None
                assert manager.highest_offset_for_epoch(PARTITION, 0) == 14
                assert manager.highest_offset_for_epoch(PARTITION, 1) == 19
                assert manager.highest_offset_for_epoch(PARTITION, 7) is None
                assert manager.remote_log_size(PARTITION, 0) == 200
                assert manager.remote_log_size(PARTITION, 1) == 100
                assert manager.finished_bytes(PARTITION) == 200
                listed = manager.list_remote_log_segments(PARTITION, 1)
                assert [one.id.int for one in listed] == [2]

        asyncio.run(scenario())

    def test_what_is_begun_or_being_deleted_is_listed_but_not_found(self, kind: str) -> None:
        async def scenario() -> None:
            async with managers(kind) as make:
                manager = await make()
                await ready(manager)
                one = segment(0, 9, 1, state=STARTED)
                await manager.add_remote_log_segment_metadata(one)
                assert manager.remote_log_segment_metadata(PARTITION, 0, 3) is None
                await manager.update_remote_log_segment_metadata(one.update(FINISHED, 1, 1))
                assert manager.remote_log_segment_metadata(PARTITION, 0, 3) is not None
                await manager.update_remote_log_segment_metadata(one.update(DELETING, 2, 1))
                assert manager.remote_log_segment_metadata(PARTITION, 0, 3) is None
                (listed,) = manager.list_remote_log_segments(PARTITION)
                assert listed.state is DELETING
                await manager.update_remote_log_segment_metadata(one.update(DELETED, 3, 1))
                assert manager.list_remote_log_segments(PARTITION) == []

        asyncio.run(scenario())

    def test_illegal_changes_are_refused_and_change_nothing(self, kind: str) -> None:
        async def scenario() -> None:
            async with managers(kind) as make:
                manager = await make()
                await ready(manager)
                one = segment(0, 9, 1, state=STARTED)
                with pytest.raises(RemoteStorageError):
                    await manager.add_remote_log_segment_metadata(replace(one, state=FINISHED))
                with pytest.raises(RemoteResourceNotFoundError):
                    await manager.update_remote_log_segment_metadata(one.update(FINISHED, 1, 1))
                await manager.add_remote_log_segment_metadata(one)
                with pytest.raises(RemoteStorageError):
                    await manager.update_remote_log_segment_metadata(one.update(DELETED, 1, 1))
                await manager.update_remote_log_segment_metadata(one.update(FINISHED, 1, 1))
                with pytest.raises(RemoteStorageError):
                    await manager.add_remote_log_segment_metadata(one)
                (listed,) = manager.list_remote_log_segments(PARTITION)
                assert listed.state is FINISHED

        asyncio.run(scenario())

    def test_nodes_see_each_others_segments(self, kind: str) -> None:
        async def scenario() -> None:
            async with managers(kind) as make:
                leader, late = await make(), await make()
                await ready(leader)
                await copy(leader, segment(0, 9, 1))
                await ready(late)
                found = late.remote_log_segment_metadata(PARTITION, 0, 5)
                assert found is not None and found.id.int == 1

        asyncio.run(scenario())

    def test_a_partition_that_is_not_hosted_here_has_no_answers(self, kind: str) -> None:
        async def scenario() -> None:
            async with managers(kind) as make:
                manager = await make()
                with pytest.raises(RemoteStorageNotReadyError):
                    manager.remote_log_segment_metadata(PARTITION, 0, 0)
                with pytest.raises(RemoteStorageNotReadyError):
                    await manager.add_remote_log_segment_metadata(segment(0, 9, state=STARTED))
                await ready(manager)
                manager.on_stop_partitions([PARTITION])
                assert not manager.is_ready(PARTITION)
                await ready(manager)

        asyncio.run(scenario())

    def test_the_next_segment_with_aborted_transactions(self, kind: str) -> None:
        async def scenario() -> None:
            async with managers(kind) as make:
                manager = await make()
                await ready(manager)
                for number, start in enumerate((0, 10, 20), 1):
                    one = segment(start, start + 9, number)
                    await copy(manager, replace(one, txn_index_empty=number != 2))
                found = manager.next_segment_with_txn_index(PARTITION, 0, 3)
                assert found is not None and found.id.int == 2
                assert manager.next_segment_with_txn_index(PARTITION, 0, 20) is None

        asyncio.run(scenario())

    def test_a_partitions_deletion_goes_in_its_steps_and_ends_without_segments(
        self, kind: str
    ) -> None:
        async def scenario() -> None:
            async with managers(kind) as make:
                manager = await make()
                await ready(manager)
                marked, started, finished = (
                    RemotePartitionDeleteMetadata(PARTITION, state, 1, 1)
                    for state in RemotePartitionDeleteState
                )
                put = manager.put_remote_partition_delete_metadata
                one = segment(0, 9, 1)
                await copy(manager, one)
                for early in (started, finished):
                    with pytest.raises(RemoteStorageError):
                        await put(early)
                assert manager.partition_deletion(PARTITION) is None
                await put(marked)
                await put(marked)
                with pytest.raises(RemoteStorageError, match="being deleted"):
                    await manager.add_remote_log_segment_metadata(segment(10, 19, 2, state=STARTED))
                await put(started)
                with pytest.raises(RemoteStorageError, match="are left"):
                    await put(finished)
                for state in (DELETING, DELETED):
                    await manager.update_remote_log_segment_metadata(one.update(state, 1, 1))
                await put(finished)
                with pytest.raises(RemoteStorageError):
                    await put(marked)
                assert manager.partition_deletion(PARTITION) == finished

        asyncio.run(scenario())

    def test_an_owner_of_metadata_sees_all_partitions_recorded_in_it(self, kind: str) -> None:
        async def scenario() -> None:
            async with managers(kind) as make:
                leader, owner = await make(), await make()
                assert owner.recorded_partitions(lambda number: False)[0] == []
                await ready(leader)
                await copy(leader, segment(0, 9, 1))
                for _ in range(1000):
                    recorded, complete = owner.recorded_partitions(lambda number: True)
                    if complete and recorded:
                        break
                    await asyncio.sleep(0)
                assert recorded == [PARTITION] and owner.is_ready(PARTITION)
                assert len(owner.list_remote_log_segments(PARTITION)) == 1
                owner.recorded_partitions(lambda number: False)
                assert not owner.is_ready(PARTITION)

        asyncio.run(scenario())


def test_partitions_of_the_metadata_topic_are_chosen_as_kafka_chooses_them() -> None:
    """The golden topic has two partitions; its logs show which topics Kafka put where."""
    tiered = uuid_from_text("WEDymHbwQvqIntMjQcqZNA")
    gone = uuid_from_text("JYZJfjPISGmfuDHyZE0c6w")
    for topic_id, expected in ((tiered, 1), (gone, 0)):
        for number in (0, 1):
            partition = TopicIdPartition(topic_id, "any name", number)
            text = (
                GOLDEN / f"__remote_log_metadata-{expected}" / "00000000000000000000.log.dump.txt"
            ).read_text()
            assert metadata_partition(partition, 2) == expected
            assert str(partition).partition(":")[0] in text


def test_a_write_returns_only_when_it_was_read_back() -> None:
    async def scenario() -> None:
        topic = FakeTopic(Broker())
        manager = TopicBasedRemoteLogMetadataManager(topic)
        await manager.start()
        await ready(manager)
        topic.hold = True
        one = segment(0, 9, 1, state=STARTED)
        write = asyncio.ensure_future(manager.add_remote_log_segment_metadata(one))
        await topic.broker.appended.wait()
        for _ in range(20):
            await asyncio.sleep(0)
        assert not write.done()
        topic.hold = False
        await write
        assert len(manager.list_remote_log_segments(PARTITION)) == 1
        await manager.close()

    asyncio.run(scenario())


def test_a_write_that_never_comes_back_is_retriable() -> None:
    async def scenario() -> None:
        topic = FakeTopic(Broker())
        manager = TopicBasedRemoteLogMetadataManager(topic, consume_wait_ms=1)
        await manager.start()
        await ready(manager)
        topic.hold = True
        with pytest.raises(RetriableRemoteStorageError, match="did not come back"):
            await manager.add_remote_log_segment_metadata(segment(0, 9, 1, state=STARTED))
        await manager.close()

    asyncio.run(scenario())


def test_of_two_nodes_that_race_the_history_decides_and_the_loser_is_told() -> None:
    async def scenario() -> None:
        broker = Broker()
        topic = FakeTopic(broker)
        manager = TopicBasedRemoteLogMetadataManager(topic)
        await manager.start()
        await ready(manager)
        one = segment(0, 9, 1, state=STARTED)
        await manager.add_remote_log_segment_metadata(one)
        topic.hold = True  # another node deletes the copy before this write is read back
        number = metadata_partition(PARTITION, len(broker.logs))
        broker.append(number, encode(one.update(DELETING, 1, 2)))
        finish = asyncio.ensure_future(
            manager.update_remote_log_segment_metadata(one.update(FINISHED, 1, 1))
        )
        for _ in range(20):
            await asyncio.sleep(0)
        topic.hold = False
        with pytest.raises(RemoteStorageError, match="can not become"):
            await finish
        (listed,) = manager.list_remote_log_segments(PARTITION)
        assert listed.state is DELETING
        await manager.close()

    asyncio.run(scenario())


def test_a_cluster_that_comes_up_late_and_fails_for_a_while_is_waited_for(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def scenario() -> None:
        broker = Broker()
        broker.down = True
        manager = TopicBasedRemoteLogMetadataManager(FakeTopic(broker))
        monkeypatch.setattr(manager, "_backoff_ms", lambda failures: 0)
        await manager.start()
        manager.on_partition_leadership_changes([PARTITION], [])
        while broker.opens < 3:  # noqa: ASYNC110
            await asyncio.sleep(0)
        assert not manager.is_ready(PARTITION)
        broker.down = False
        await ready(manager)
        await copy(manager, segment(0, 9, 1))
        broker.down = True
        with pytest.raises(RetriableRemoteStorageError):
            await copy(manager, segment(10, 19, 2))
        broker.down = False
        await copy(manager, segment(10, 19, 2))
        assert len(manager.list_remote_log_segments(PARTITION)) == 2
        await manager.close()

    asyncio.run(scenario())


def test_a_record_nobody_understands_does_not_stop_the_reading() -> None:
    async def scenario() -> None:
        broker = Broker(1)
        broker.append(0, b"nonsense")
        broker.append(0, encode(segment(0, 9, 1).update(DELETED, 1, 1)))
        manager = TopicBasedRemoteLogMetadataManager(FakeTopic(broker))
        await manager.start()
        await ready(manager)
        await copy(manager, segment(0, 9, 2))
        assert len(manager.list_remote_log_segments(PARTITION)) == 1
        await manager.close()

    asyncio.run(scenario())


def test_client_settings_are_taken_from_the_configuration() -> None:
    settings = {
        "remote.log.metadata.common.client.request.timeout.ms": "1234",
        "remote.log.metadata.producer.linger.ms": "3",
        "remote.log.metadata.producer.delivery.timeout.ms": "5000",
        "remote.log.metadata.producer.enable.idempotence": "false",
        "remote.log.metadata.producer.acks": "1",
        "remote.log.metadata.consumer.fetch.max.wait.ms": "77",
    }
    producer = client_settings(AsyncProducer, settings, "producer.")
    assert producer["request_timeout_ms"] == 1234
    assert producer["linger_ms"] == 3 and producer["acks"] == "1"
    assert producer["delivery_timeout_ms"] == 5000, "its default is None"
    assert producer["enable_idempotence"] is False
    consumer = client_settings(AsyncConsumer, settings, "consumer.")
    assert consumer["fetch_max_wait_ms"] == 77 and "linger_ms" not in consumer
    for key in ("remote.log.metadata.producer.lingr.ms", "no.such"):
        with pytest.raises(ConfigError, match="unknown setting"):
            client_settings(AsyncProducer, {key: "1"}, "producer.")
    with pytest.raises(ConfigError, match="not of type int"):
        client_settings(
            AsyncConsumer, {"remote.log.metadata.consumer.fetch.max.wait.ms": "x"}, "consumer."
        )


def test_the_factory_makes_the_topic_based_one_or_what_is_named() -> None:
    async def scenario() -> None:
        manager = create_metadata_manager(server_config(), "127.0.0.1:9092")
        assert isinstance(manager, TopicBasedRemoteLogMetadataManager)
        name = "remote_log_metadata_manager_class_name"
        with pytest.raises(ConfigError):
            create_metadata_manager(server_config(**{name: "no.such:Thing"}), "x:1")
        topic = ClientMetadataTopic(
            server_config(rlmm_config_bootstrap_servers="127.0.0.1:1"), "x:1"
        )
        assert topic._bootstrap == "127.0.0.1:1"

    asyncio.run(scenario())


def test_a_metadata_topic_that_would_lose_segments_is_refused() -> None:
    one = PartitionDescription(0, 1, 0, 0, (1,), (1,), (), (), ())
    kept = {"retention.ms": "-1", "min.insync.replicas": "2"}
    good = TopicDescription("__remote_log_metadata", UUID(int=1), (one,) * 3, kept)
    check_topic(good, 3, -1, 2)
    check_topic(good, 3, 86_400_000, 1)
    check_topic(replace(good, configs={**kept, "cleanup.policy": "delete"}), 3, -1, 2)
    with pytest.raises(ConfigError, match=r"has 3 partitions, not .*=50: set the number it has"):
        check_topic(good, 50, -1, 2)
    for policy in ("compact", "delete,compact"):
        with pytest.raises(ConfigError, match=r"set cleanup\.policy=delete"):
            check_topic(replace(good, configs={**kept, "cleanup.policy": policy}), 3, -1, 2)


@pytest.mark.parametrize(
    ("changed", "told"),
    [
        ({"retention.ms": "86400000"}, r"set retention\.ms=-1 on it"),
        ({"retention.bytes": "1000"}, r"set retention\.bytes=-1"),
        ({"min.insync.replicas": "1"}, r"set min\.insync\.replicas=2 on it"),
        (None, r"has retention\.ms=604800000"),
    ],
)
def test_a_metadata_topic_that_keeps_too_little_is_refused(
    changed: dict[str, str] | None, told: str
) -> None:
    one = PartitionDescription(0, 1, 0, 0, (1,), (1,), (), (), ())
    kept = {"retention.ms": "-1", "min.insync.replicas": "2"}
    configs = {} if changed is None else {**kept, **changed}
    topic = TopicDescription("__remote_log_metadata", UUID(int=1), (one,) * 3, configs)
    with pytest.raises(ConfigError, match=told):
        check_topic(topic, 3, -1, 2)


def test_a_limit_below_the_pin_is_refused() -> None:
    server_config(remote_log_metadata_custom_metadata_max_bytes=12)
    with pytest.raises(ConfigError, match=r"custom\.metadata\.max\.bytes"):
        server_config(remote_log_metadata_custom_metadata_max_bytes=11)


def test_a_metadata_topic_that_is_refused_is_asked_for_again(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async def scenario() -> None:
        topic = FakeTopic(Broker())
        opened, wrong = topic.open, [ConfigError("compacted"), ValueError("unforeseen")]

        async def refused() -> int:
            if wrong:
                raise wrong.pop(0)
            return await opened()

        topic.open = refused  # type: ignore[method-assign]
        manager = TopicBasedRemoteLogMetadataManager(topic)
        monkeypatch.setattr(manager, "_backoff_ms", lambda failures: 0)
        await manager.start()
        await ready(manager)
        await manager.close()
        found = [record for record in caplog.records if record.levelname == "ERROR"]
        assert [record.getMessage().rpartition(": ")[2] for record in found] == [
            "compacted",
            "unforeseen",
        ]

    asyncio.run(scenario())


def test_a_partition_that_is_newly_assigned_waits_for_what_others_recorded_before() -> None:
    """A leader is restored by all of its segments, though its node follows the metadata already."""

    async def scenario() -> None:
        broker = Broker(partitions=1)
        topic = FakeTopic(broker)
        manager = TopicBasedRemoteLogMetadataManager(topic)
        await manager.start()
        other = TopicIdPartition(PARTITION.topic_id, PARTITION.topic, 4)
        await ready(manager, other)
        topic.hold = True
        one = segment(0, 9, 1, state=STARTED)
        broker.append(0, encode(one))
        broker.append(0, encode(one.update(FINISHED, 7, 1)))
        manager.on_partition_leadership_changes([PARTITION], [])
        for _ in range(100):
            assert not manager.is_ready(PARTITION)
            await asyncio.sleep(0)
        assert manager.is_ready(other)
        topic.hold = False
        await ready(manager)
        assert len(manager.list_remote_log_segments(PARTITION)) == 1
        await manager.close()

    asyncio.run(scenario())
