"""The listener of a peer that a broker connects to."""

from __future__ import annotations

import logging

import pytest

from node.replication.peer_listener import PeerListener
from quorum.image import BrokerRegistration
from tests.node.cluster import Cluster
from tests.node.fakes import broker_config
from tests.node.replication.test_replication import scenario
from tidemark.types import Endpoint, Listener, random_uuid
from tidemark.v1 import metadata_pb2 as records_pb


def peer(*names: str, epoch: int = 5) -> BrokerRegistration:
    listeners = tuple(Listener(name, "far", 9000 + i) for i, name in enumerate(names))
    return BrokerRegistration(2, epoch, random_uuid(), listeners)


def choice(listeners: str, name: str = "") -> PeerListener:
    return PeerListener(broker_config(listeners=listeners, inter_broker_listener_name=name))


def test_a_peer_is_reached_on_the_listener_that_is_named() -> None:
    found = choice("CLIENT://:1,INTERNAL://:2", "INTERNAL")
    assert found.endpoint_of(peer("CLIENT", "INTERNAL")) == Endpoint("far", 9001)
    assert found.endpoint_of(None) is None


def test_without_the_setting_it_is_the_plain_one_or_the_first_that_the_peer_has() -> None:
    found = choice("CLIENT://:1,PLAINTEXT://:2")
    assert found.endpoint_of(peer("CLIENT", "PLAINTEXT")) == Endpoint("far", 9001)
    assert found.endpoint_of(peer("OTHER", "CLIENT")) == Endpoint("far", 9000)


def test_a_peer_without_the_listener_is_told_of_once_a_registration(
    caplog: pytest.LogCaptureFixture,
) -> None:
    found = choice("CLIENT://:1,INTERNAL://:2", "INTERNAL")
    with caplog.at_level(logging.ERROR):
        for epoch in (5, 5, 6):
            assert found.endpoint_of(peer("CLIENT", "PLAINTEXT", epoch=epoch)) is None
    assert [record.getMessage() for record in caplog.records] == 2 * [
        "broker 2 has no listener INTERNAL, which is inter.broker.listener.name here, only CLIENT,"
        " PLAINTEXT: what it leads is not fetched until it has one"
    ]


def test_partitions_of_a_peer_without_the_listener_are_followed_when_it_registers_it() -> None:
    async def test(cluster: Cluster) -> None:
        cluster.start(2, listeners="INTERNAL://:1", inter_broker_listener_name="INTERNAL")
        cluster.create_topic(replicas=(1, 2))
        await cluster.nodes[1].produce("a", acks=1)
        fetchers = cluster.nodes[2].hosting._fetchers
        assert not fetchers._peers
        known = cluster.image.brokers[1]
        again = records_pb.RegisterBrokerRecord(
            broker_id=1, incarnation_id=known.incarnation_id.bytes, broker_epoch=known.epoch
        )
        for name in ("PLAINTEXT", "INTERNAL"):
            again.end_points.add(name=name, host="localhost", port=19091)
        cluster.publish(records_pb.MetadataRecord(register_broker=again))
        await cluster.settle()
        assert cluster.nodes[2].hosted().log.log_end_offset == 1

    scenario(test, nodes=(1,))
