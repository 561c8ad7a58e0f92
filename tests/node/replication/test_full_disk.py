"""A replica that a full disk keeps from being made is made when there is space."""

from __future__ import annotations

import asyncio
import logging

import pytest

from tests.node.cluster import TOPIC, Cluster
from tests.node.replication.test_replication import scenario
from tidemark.types import TopicPartition


def test_a_full_disk_delays_a_new_replica_and_reports_none_lost(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def test(cluster: Cluster) -> None:
        disk = cluster.disks[2]
        disk.set_capacity(disk.disk.used_bytes)
        cluster.create_topic()
        name = TopicPartition(TOPIC, 0)
        await asyncio.sleep(100)
        assert "the disk is full" in cluster.nodes[2].partitions.offline[name]
        assert len(cluster.nodes[2].assignments) == 0
        told = [r for r in caplog.records if "wait for space" in r.message]
        assert [r.levelno for r in told] == [logging.ERROR] * 2
        disk.set_capacity(1 << 30)
        await asyncio.sleep(6)
        assert name not in cluster.nodes[2].partitions.offline
        cluster.change(isr=(1, 2, 3))
        await cluster.nodes[1].produce("a", "b")
        await cluster.settle()
        assert cluster.nodes[2].hosted().log.log_end_offset == 2

    scenario(test)
