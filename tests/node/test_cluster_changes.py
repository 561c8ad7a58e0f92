"""Changes of a running cluster through the admin client, as seen in the brokers' logs."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path

import pytest

from commitlog.log.log import Log
from tests.node.test_three_brokers import Brokers
from tidemark.client import (
    AlterConfigOp,
    AsyncAdmin,
    ConfigResource,
    NewTopic,
    TopicPartition,
)
from tidemark.errors import ElectionNotNeededError, NoReassignmentInProgressError

T0 = TopicPartition("flights", 0)


def log_of(brokers: Brokers, node_id: int) -> Log | None:
    broker = brokers.servers[node_id].broker
    assert broker is not None
    hosted = broker.partitions.find(T0)
    return None if hosted is None else hosted.log


async def until(condition: Callable[[], bool]) -> None:
    """Polls the condition: there is no event for the moment when a broker has applied a
    decision."""
    async with asyncio.timeout(30):
        while not condition():  # noqa: ASYNC110 - it belongs to other servers
            await asyncio.sleep(0.02)


def admin_of(brokers: Brokers, node_id: int = 1) -> AsyncAdmin:
    return AsyncAdmin(next(iter(brokers.configs[node_id].broker_listeners().values())).address)


def test_changed_settings_reach_the_logs_of_all_brokers(tmp_path: Path) -> None:
    async def main() -> None:
        brokers = Brokers(tmp_path)
        try:
            await brokers.start(1, 2, 3)
            async with admin_of(brokers, 3) as admin:
                await admin.create_topics([NewTopic("flights", 1, 3)])

                def retention(node_id: int) -> int | None:
                    log = log_of(brokers, node_id)  # its log may not be durable yet
                    return None if log is None else log.config.retention_ms

                async def alter(resource: ConfigResource, *op: str) -> None:
                    await admin.incremental_alter_configs({resource: [AlterConfigOp(*op)]})

                await alter(ConfigResource.broker(None), "log.retention.ms", "3000")
                await until(lambda: [retention(n) for n in (1, 2, 3)] == [3000] * 3)
                await alter(ConfigResource.broker(2), "log.retention.ms", "2000")
                await until(lambda: [retention(n) for n in (1, 2, 3)] == [3000, 2000, 3000])
                topic = ConfigResource.topic("flights")
                await alter(topic, "retention.ms", "1000")
                await until(lambda: [retention(n) for n in (1, 2, 3)] == [1000] * 3)

                resources = [topic, ConfigResource.broker(2)]
                said = await admin.describe_configs(resources)
                assert said[topic]["retention.ms"].source == "TOPIC_CONFIG"
                own = said[resources[1]]["log.retention.ms"]
                assert (own.value, own.source) == ("2000", "DYNAMIC_BROKER_CONFIG")
                assert said[resources[1]]["node.id"].value == "2"
        finally:
            await brokers.close()

    asyncio.run(main())


async def produce(brokers: Brokers, *values: str) -> None:
    for value in values:
        await brokers.produce(value)


def test_a_partition_moves_to_other_brokers_with_all_its_records(tmp_path: Path) -> None:
    async def main() -> None:
        brokers = Brokers(tmp_path)
        try:
            await brokers.start(1, 2, 3)
            async with admin_of(brokers) as admin:
                topic = NewTopic("flights", assignments={0: (2, 1)})
                await admin.create_topics([topic])
                await produce(brokers, "a", "b", "c")
                with pytest.raises(NoReassignmentInProgressError):
                    await admin.alter_partition_reassignments({T0: None})
                await admin.alter_partition_reassignments({T0: (3, 1)})
                async with asyncio.timeout(30):
                    while await admin.list_partition_reassignments():  # noqa: ASYNC110
                        await asyncio.sleep(0.02)
                assert await brokers.until_isr_is(1, 3) == 3
                await until(lambda: log_of(brokers, 2) is None)
                await produce(brokers, "d")
                moved = log_of(brokers, 3)
                assert moved is not None and moved.log_end_offset == 4
                assert not list((tmp_path / "2").glob("flights-0")), "its directory goes, too"

                await admin.create_partitions({"flights": 3})
                described = (await admin.describe_topics(["flights"]))["flights"]
                assert len(described.partitions) == 3
        finally:
            await brokers.close()

    asyncio.run(main())


def test_leaders_are_elected_as_asked_and_unclean_ones_take_followers_again(tmp_path: Path) -> None:
    async def main() -> None:
        brokers = Brokers(tmp_path)
        try:
            await brokers.start(1, 2, 3)
            async with admin_of(brokers) as admin:
                topic = NewTopic("flights", assignments={0: (2, 3)})
                await admin.create_topics([topic])
                await produce(brokers, "a")
                await brokers.until_isr_is(2, 3)
                await brokers.stop(2)
                await brokers.until_isr_is(3)
                await brokers.start(2)
                assert await brokers.until_isr_is(2, 3) == 3
                assert await admin.elect_leaders("PREFERRED") == {T0: None}
                assert await brokers.until_isr_is(2, 3) == 2
                refused = await admin.elect_leaders("PREFERRED", [T0])
                assert isinstance(refused[T0], ElectionNotNeededError)

                await brokers.stop(3)
                await brokers.stop(2, orderly=False)
                async with asyncio.timeout(30):
                    while (await brokers.partition()).leader_id != -1:  # noqa: ASYNC110
                        await asyncio.sleep(0.02)
                await brokers.start(3)
                assert await admin.elect_leaders("UNCLEAN", [T0]) == {T0: None}
                await produce(brokers, "b")
                await brokers.start(2)
                assert await brokers.until_isr_is(2, 3) == 3
        finally:
            await brokers.close()

    asyncio.run(main())


def test_eligible_replicas_are_kept_and_lead_again_after_clean_stops(tmp_path: Path) -> None:
    async def main() -> None:
        brokers = Brokers(tmp_path)
        try:
            await brokers.start(1, 2, 3)
            async with admin_of(brokers) as admin:
                await admin.update_features({"eligible.leader.replicas.version": 1})
                assert (await admin.describe_features())["metadata.version"].level == 4
                settings = {"min.insync.replicas": "2"}
                await admin.create_topics([NewTopic("flights", None, None, settings, {0: (2, 3)})])
                await produce(brokers, "a")
                await brokers.until_isr_is(2, 3)
                await brokers.stop(3)
                await brokers.until_isr_is(2)
                assert list((await brokers.partition()).eligible_leader_replicas) == [3]
                await brokers.stop(2, orderly=False)
                async with asyncio.timeout(30):
                    while (await brokers.partition()).leader_id != -1:  # noqa: ASYNC110
                        await asyncio.sleep(0.02)
                assert list((await brokers.partition()).isr) == []
                await brokers.start(3)
                await brokers.start(2)
                assert await brokers.until_isr_is(2, 3) == 3, "it has all that was committed"
                assert list((await brokers.partition()).eligible_leader_replicas) == []
                await produce(brokers, "b")
        finally:
            await brokers.close()

    asyncio.run(main())
