"""Changes of a cluster at work, through the admin client, as the brokers' logs see them."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path

from commitlog.log import Log
from tests.node.test_three_brokers import Brokers
from tidemark.client import (
    AlterConfigOp,
    AsyncAdmin,
    ConfigResource,
    NewTopic,
    TopicPartition,
)

T0 = TopicPartition("flights", 0)


def log_of(brokers: Brokers, node_id: int) -> Log | None:
    broker = brokers.servers[node_id].broker
    assert broker is not None
    hosted = broker.replicas.partitions.find(T0)
    return None if hosted is None else hosted.log


async def until(condition: Callable[[], bool]) -> None:
    """Brokers apply what was decided when they hear of it: there is no event to wait for."""
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

                def retention(node_id: int) -> int:
                    log = log_of(brokers, node_id)
                    assert log is not None
                    return log.config.retention_ms

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
