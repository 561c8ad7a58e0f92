"""`tidemark.testing.Cluster` for users: production code in virtual time, with faults."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.hash_seeds import outputs
from tidemark import TopicPartition
from tidemark.errors import RequestTimedOutError
from tidemark.testing import Cluster
from tidemark.testing.cluster import CLIENTS
from tidemark.testing.loop import Deadlock, SimLoop

TOPIC = "flights"
PARTITION = TopicPartition(TOPIC, 0)


@pytest.fixture
def cluster() -> Iterator[Cluster]:
    with Cluster(seed=7) as made:
        made.create_topic(TOPIC, min_insync_replicas="2")
        yield made


def send(cluster: Cluster, *values: bytes) -> list[int]:
    with cluster.producer() as producer:
        return [producer.send(TOPIC, value).result().offset for value in values]


def read(cluster: Cluster, count: int) -> list[bytes | None]:
    found: list[bytes | None] = []
    with cluster.consumer(auto_offset_reset="earliest") as consumer:
        consumer.assign([PARTITION])
        while len(found) < count:
            found += [record.value for record in consumer.poll()]
    return found


def leader_of(cluster: Cluster) -> int:
    leader = cluster.leader(TOPIC)
    assert leader is not None
    return leader


def test_records_go_in_and_come_out(cluster: Cluster) -> None:
    assert send(cluster, b"a", b"b") == [0, 1]
    assert read(cluster, 2) == [b"a", b"b"]


def test_a_killed_leader_is_replaced_and_comes_back(cluster: Cluster) -> None:
    send(cluster, b"a")
    first = leader_of(cluster)
    cluster.kill(first, power=True)
    assert send(cluster, b"b") == [1]
    assert leader_of(cluster) != first
    cluster.start_node(first)
    cluster.wait_until_ready()
    assert read(cluster, 2) == [b"a", b"b"]


def test_a_paused_leader_is_a_zombie_that_cannot_acknowledge(cluster: Cluster) -> None:
    first = leader_of(cluster)
    cluster.pause(first)
    assert send(cluster, b"a") == [0]
    cluster.resume(first)
    cluster.advance(5)
    assert read(cluster, 1) == [b"a"]


def test_clients_cut_off_one_way_are_heard_after_the_heal(cluster: Cluster) -> None:
    for node_id in cluster.nodes:
        cluster.cut(node_id, CLIENTS, both=False)
    producer = cluster.producer(request_timeout_ms=500, delivery_timeout_ms=3_000)
    with pytest.raises(RequestTimedOutError):
        producer.send(TOPIC, b"a").result()
    cluster.heal()
    assert read(cluster, 0) == []
    assert send(cluster, b"b")[0] in (0, 1)


def test_nodes_restart_in_order(cluster: Cluster) -> None:
    send(cluster, b"a")
    for node_id in cluster.nodes:
        cluster.restart(node_id)
        cluster.wait_until_ready()
    assert read(cluster, 1) == [b"a"]


def test_time_is_virtual(cluster: Cluster) -> None:
    before_ms = cluster.now_ms
    cluster.advance(30)
    assert 30_000 <= cluster.now_ms - before_ms < 30_100


def test_controllers_may_be_nodes_of_their_own() -> None:
    with Cluster(seed=1, brokers=2, controllers=1) as cluster:
        assert cluster.active_controller() == 101
        cluster.create_topic(TOPIC)
        assert send(cluster, b"a") == [0]


def test_one_seed_is_one_run_whatever_the_hash_seed() -> None:
    code = (
        "from tidemark.testing import Cluster\n"
        "with Cluster(seed=3) as c:\n"
        "    c.create_topic('flights', partitions=3)\n"
        "    p = c.producer()\n"
        "    sent = [p.send('flights', b'%d' % n, key=b'%d' % n) for n in range(20)]\n"
        "    c.kill(c.leader('flights'), power=True)\n"
        "    print([(d.result().partition, d.result().offset) for d in sent])\n"
        "    c.advance(10)\n"
        "    print(c.now_ms, c.loop.steps, c.describe())\n"
    )
    assert len(outputs(code)) == 1


def test_a_program_that_waits_for_nothing_is_an_error() -> None:
    loop = SimLoop()
    with pytest.raises(Deadlock):
        loop.run_until_complete(loop.create_future())
    loop.close()
