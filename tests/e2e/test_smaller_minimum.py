"""min.insync.replicas is lowered while one replica is left, on real processes: nothing is lost."""

from __future__ import annotations

from pathlib import Path

from tests.e2e.test_replaced_disk import (
    ELR,
    TOPIC,
    consume,
    partition,
    produce,
    until,
)
from tidemark.cli.local_cluster import LocalCluster
from tidemark.client import Admin, NewTopic
from tidemark.client.models import AlterConfigOp, ConfigResource

MIN_ISR = "min.insync.replicas"
SETTINGS = {"broker.session.timeout.ms": "2000", "broker.heartbeat.interval.ms": "300"}


def test_a_replica_that_lacks_what_a_smaller_minimum_let_commit_is_not_elected(
    tmp_path: Path,
) -> None:
    with LocalCluster(tmp_path, controllers=1, brokers=3, overrides=SETTINGS) as cluster:
        cluster.wait_ready(60)
        with Admin(cluster.bootstrap_servers) as admin:
            if admin.describe_features()[ELR].level == 0:
                admin.update_features({ELR: 1})
            last, eligible, _ = cluster.broker_ids
            replicas = {0: (last, eligible)}
            admin.create_topics([NewTopic(TOPIC, None, None, {MIN_ISR: "2"}, replicas)])
            produce(cluster, 0, 50)
            cluster.pause(eligible)
            until(lambda: partition(admin).elr == (eligible,), "nobody is eligible")
            assert partition(admin).isr == (last,)
            admin.incremental_alter_configs(
                {ConfigResource.topic(TOPIC): [AlterConfigOp(MIN_ISR, "1")]}
            )
            produce(cluster, 50, 100)
            cluster.kill(last)
            until(lambda: partition(admin).leader is None, "the leader is not missed")
            cluster.resume(eligible)
            until(lambda: not _fenced(admin, eligible), "the other one is not back")
            assert partition(admin).leader is None
            cluster.restart(last)
            until(lambda: partition(admin).leader == last, "the last leader is not elected")
            assert consume(cluster) == list(range(150))


def _fenced(admin: Admin, broker_id: int) -> bool:
    return next(b.fenced for b in admin.describe_cluster().brokers if b.node_id == broker_id)
