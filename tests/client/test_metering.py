"""Metrics of clients: windows and peaks, and the numbers of a real exchange in virtual time."""

from __future__ import annotations

import re

import pytest

from tests.readme import README
from tidemark.client.batch import Batch
from tidemark.client.metering import WINDOW_MS, ConsumerMeter, Peak, ProducerMeter, Window
from tidemark.errors import MessageTooLargeError, UnknownTopicOrPartitionError
from tidemark.testing import Cluster
from tidemark.types import TopicPartition


def test_a_peak_is_forgotten_after_one_to_two_windows() -> None:
    peak = Peak()
    peak.add(7, WINDOW_MS)
    peak.add(3, WINDOW_MS + 1)
    assert peak.read(WINDOW_MS + 2) == 7
    peak.add(2, 2 * WINDOW_MS)
    assert peak.read(3 * WINDOW_MS - 1) == 7
    assert peak.read(3 * WINDOW_MS) == 2
    assert peak.read(9 * WINDOW_MS) == 0


def test_an_increase_is_that_of_the_last_window() -> None:
    window = Window(1_000, 1)
    found = []
    for second in range(1, 91):
        sent = min(second, 60) * 10
        elapsed_s, (grown,) = window.read((sent,), 1_000 + second * 1_000)
        found.append(grown / elapsed_s)
    assert found[:60] == [pytest.approx(10)] * 60
    assert found[89] == pytest.approx(0, abs=0.7)
    assert len(window._samples) <= 18


def test_reads_that_are_close_share_a_sample() -> None:
    window = Window(0, 1)
    for millisecond in range(1, 1_000):
        elapsed_s, (grown,) = window.read((millisecond,), float(millisecond))
        assert grown / elapsed_s == pytest.approx(1_000)
    assert len(window._samples) == 1


def test_nothing_was_counted_before_the_first_event() -> None:
    assert set(ProducerMeter().report(0, 1e9).values()) == {0.0}
    assert set(ConsumerMeter().report(1e9).values()) == {0.0}


def test_a_batch_waits_before_its_first_sending_alone() -> None:
    meter, batch = ProducerMeter(), Batch(TopicPartition("tale", 0), 100)
    batch.payload, batch.count, batch.size_bytes, batch.tries.count = b"x" * 70, 2, 140, 1
    meter.sent([batch], 130)
    batch.tries.count = 2
    meter.sent([batch], 900)
    told = meter.report(0, 1_130)
    assert told["record-queue-time-avg"] == told["record-queue-time-max"] == 30
    assert (told["record-send-total"], told["record-send-rate"]) == (4, 4)
    assert (told["record-size-avg"], told["batch-size-avg"]) == (70, 70)
    assert told["compression-rate-avg"] == 0.5


def listed(client: str) -> set[str]:
    text = README.read_text(encoding="utf-8")
    section = text.split("### Metrics of clients")[1].split("\n### ")[0]
    table = section.split(f"| {client} | |")[1].split("\n\n")[0]
    rows = re.findall(r"^\| (`[^|]+) \|", table, re.MULTILINE)
    return {name for row in rows for name in re.findall(r"`([a-z-]+)`", row)}


def test_the_numbers_of_records_that_are_sent_read_and_committed() -> None:
    with Cluster(seed=5, controllers=1, brokers=1) as cluster:
        cluster.create_topic("tale", 1)
        with (
            cluster.producer(linger_ms=50) as producer,
            cluster.consumer(
                group_id="readers", auto_offset_reset="earliest", enable_auto_commit=False
            ) as consumer,
        ):
            for number in range(10):
                producer.send("tale", b"%04d" % number)
            producer.flush()
            sent = producer.metrics()
            assert set(sent) == listed("producer")
            assert sent["record-send-total"] == 10
            assert sent["request-total"] >= 1
            assert sent["records-per-request-avg"] == 10 / sent["request-total"]
            assert sent["outgoing-byte-total"] / sent["request-total"] == sent["batch-size-avg"]
            assert 61 < sent["batch-size-max"] <= sent["outgoing-byte-total"]
            assert sent["record-error-total"] == sent["record-retry-total"] == 0
            assert sent["request-latency-max"] >= sent["request-latency-avg"] > 0
            assert sent["buffer-available-bytes"] == sent["buffer-total-bytes"] == 64 << 20
            assert sent["requests-in-flight"] == 0
            consumer.subscribe(["tale"])
            got = []
            while len(got) < 4:
                got += list(consumer.poll(1_000, 4))
            cluster.advance(1)
            read = consumer.metrics()
            assert set(read) == listed("consumer")
            assert read["records-consumed-total"] == 4
            assert read["bytes-consumed-total"] == 0, "the rest of the batch is still to come"
            assert read["records-lag-max"] == 6
            assert read["assigned-partitions"] == 1
            while len(got) < 10:
                got += list(consumer.poll(1_000))
            consumer.commit()
            cluster.advance(1)
            read = consumer.metrics()
            assert read["records-consumed-total"] == 10
            assert read["bytes-consumed-total"] == sent["outgoing-byte-total"]
            assert read["fetch-size-max"] <= read["bytes-consumed-total"]
            assert read["records-lag-max"] == 0
            assert read["fetch-total"] >= 1
            assert read["commit-total"] == 1
            assert read["commit-latency-max"] == read["commit-latency-avg"] > 0
            assert read["heartbeat-total"] >= 1
            assert read["heartbeat-response-time-max"] > 0


def test_records_that_are_sent_again_or_given_up_count() -> None:
    with Cluster(seed=6, controllers=1, brokers=1) as cluster:
        cluster.create_topic("tale", 1, max_message_bytes="2000")
        with cluster.producer(linger_ms=0, max_block_ms=1_000) as producer:
            producer.send("tale", b"fits").result()
            with pytest.raises(MessageTooLargeError):
                producer.send("tale", b"x" * 3_000).result()
            (broker,) = (node.node_id for node in cluster.brokers)
            cluster.kill(broker)
            waiting = producer.send("tale", b"again")
            cluster.advance(5)
            cluster.restart(broker)
            waiting.result()
            with pytest.raises(UnknownTopicOrPartitionError):
                producer.send("nowhere", b"lost").result()
            told = producer.metrics()
        assert told["record-error-total"] == 2
        assert told["record-retry-total"] >= 1
        assert told["record-send-total"] == 3 + told["record-retry-total"]
