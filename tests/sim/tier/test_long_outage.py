"""The store is away for hours, on virtual time. Nothing waits for it, nothing leaves a disk before
its copy, and all of it is caught up."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Iterator

import pytest

from tests.sim.tier.checks import finished, log_of, remote_segments
from tests.sim.tier.store import BUCKETS, PLUG_IN, Bucket
from tidemark.client import Consumer, Producer
from tidemark.testing import Cluster
from tidemark.types import TopicIdPartition, TopicPartition

EVENTS = TopicPartition("events", 0)
_LOCAL_S = 600
_SETTINGS = {
    # Heartbeats and long polls at the pace of hours.
    "broker.session.timeout.ms": "30000",
    "broker.heartbeat.interval.ms": "6000",
    "replica.fetch.wait.max.ms": "5000",
    "replica.lag.time.max.ms": "60000",
    "metadata.max.idle.interval.ms": "60000",
    "log.retention.check.interval.ms": "60000",
    "remote.log.storage.system.enable": "true",
    "remote.log.storage.manager.class.name": PLUG_IN,
    "remote.log.metadata.topic.num.partitions": "1",
    "rsm.config.bucket": "hours",
}


@pytest.fixture
def bucket() -> Iterator[Bucket]:
    logging.disable(logging.CRITICAL)
    yield Bucket("hours", 1, Counter())
    BUCKETS.pop("hours")
    logging.disable(logging.NOTSET)


class Feed:
    """A record of 4 KiB each minute, and a look at the replicas after each."""

    def __init__(self, cluster: Cluster, producer: Producer, bucket: Bucket) -> None:
        self.cluster, self.producer, self.bucket = cluster, producer, bucket
        self.sent = 0

    def run(self, seconds: int, tail: Consumer | None = None) -> None:
        """Produces for so long; a consumer at the end gets each record at once."""
        end_ms = self.cluster.now_ms + seconds * 1000
        while self.cluster.now_ms < end_ms:
            value = b"%06d" % self.sent
            self.producer.send("events", value.ljust(4096, b"."), partition=0).result(60_000)
            self.sent += 1
            if tail is not None:
                (record,) = tail.poll(30_000)
                assert record.offset == self.sent - 1
            self.cluster.advance(60)
            self.check_local()

    def check_local(self) -> None:
        """Each record that a replica lacks on its disk is in the bucket."""
        files = self.bucket.files()
        for node in self.cluster.brokers:
            broker = None if node.server is None else node.server.broker
            hosted = None if broker is None else broker.partitions.find(EVENTS)
            if hosted is None:
                continue
            identity = TopicIdPartition(hosted.topic_id, *EVENTS)
            segments = remote_segments(node, identity)
            if segments is None:
                continue  # it reads its metadata
            copied = 0
            for segment in finished(segments):
                assert segment.start_offset == copied
                assert log_of(segment) in files
                copied = segment.next_offset
            assert hosted.log.local_log_start_offset <= copied

    def local_start(self) -> int:
        leader = self.cluster.leader("events")
        assert leader is not None
        server = self.cluster.nodes[leader].server
        assert server is not None and server.broker is not None
        hosted = server.broker.partitions.find(EVENTS)
        assert hosted is not None
        start: int = hosted.log.local_log_start_offset
        return start


@pytest.mark.parametrize("brokers", [1, pytest.param(2, marks=pytest.mark.soak)])
def test_hours_without_the_store_cost_nothing_but_disk_and_are_caught_up(
    bucket: Bucket, brokers: int
) -> None:
    replication = {"remote.log.metadata.topic.replication.factor": str(brokers)}
    with Cluster(
        7, brokers=brokers, controllers=brokers - 1, settings=_SETTINGS | replication
    ) as cluster:
        cluster.create_topic(
            "events",
            min_insync_replicas="1",
            remote_storage_enable="true",
            segment_bytes="16384",
            retention_ms="-1",
            local_retention_ms=str(_LOCAL_S * 1000),
        )
        tail = cluster.consumer(fetch_max_wait_ms=60_000)
        tail.assign([EVENTS])
        tail.seek(EVENTS, 0)
        feed = Feed(cluster, cluster.producer(delivery_timeout_ms=120_000), bucket)
        feed.run(1_800, tail)
        copied_before = feed.local_start()
        assert copied_before > 10, "local retention follows the copies"

        bucket.is_away = True
        feed.run(3_600, tail)
        held = feed.local_start()
        assert held <= copied_before + _LOCAL_S // 60 + 4
        cold = cluster.consumer(fetch_max_wait_ms=60_000)
        cold.assign([EVENTS])
        cold.seek(EVENTS, 0)
        assert not len(cold.poll(5_000)), "the tier does not answer; that is no error of the reader"
        cold.assign([])
        leader = cluster.leader("events")
        assert leader is not None
        cluster.kill(leader)
        if brokers > 1:
            feed.run(600)
        cluster.start_node(leader)
        cluster.wait_until_ready()
        feed.run(3_000)
        assert feed.local_start() <= held + 4
        assert bucket.seen["store away: copy"] < 4 * 7_200 / 24, "four each half minute"

        bucket.is_away = False
        feed.run(1_200)
        assert feed.sent - feed.local_start() < 20, "caught up, and gone from the local disks"
        found: list[int] = []
        cold.assign([EVENTS])
        cold.seek(EVENTS, 0)
        while len(found) < feed.sent:
            records = cold.poll(60_000)
            assert len(records)
            found += [int(bytes(record.value or b"")[:6]) for record in records]
        assert found == list(range(feed.sent))
        for consumer in (tail, cold):
            consumer.close()
        feed.producer.close()
