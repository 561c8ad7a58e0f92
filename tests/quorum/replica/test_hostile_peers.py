"""No message of a peer ends a process or poisons the epoch: every call of Raft, forged."""

from __future__ import annotations

import pytest

from quorum.raft.bounds import EPOCHS_AHEAD_MAX
from quorum.raft.roles import Leader
from tests.quorum.replica.hostile import REQUESTS, HostileCluster
from tidemark.v1 import raft_pb2

ASK_NOTHING_OF_THE_REPLICA = {"DescribeQuorum"}


def run(seed: int, *, forged: int, damaged: float = 0.0) -> HostileCluster:
    """Runs a quorum among forged messages, and then without any until it commits a record."""
    cluster = HostileCluster(seed)
    cluster.append(cluster.run_until_leader(), b"k=1")
    cluster.run_until_equal()
    first = cluster.epoch
    cluster.damaged = damaged
    for number in range(forged):
        cluster.forge_request()
        cluster.run_for(cluster.forger.rng.randrange(10))
        for node in cluster.nodes.values():
            node.propose([b"k=%d" % number])
    cluster.damaged = 0.0
    assert all(node.alive for node in cluster.nodes.values())
    assert cluster.epoch - first < EPOCHS_AHEAD_MAX, "no message has carried the epoch away"

    def committed() -> bool:
        for node in cluster.nodes.values():
            role, watermark = node.replica.role, node.replica.high_watermark
            if isinstance(role, Leader) and (watermark or 0) > role.epoch_start_offset:
                return True
        return False

    cluster.run_until(committed, limit_ms=60_000)
    return cluster


def test_every_call_that_reaches_the_replica_is_forged():
    calls = {method.name for method in raft_pb2.DESCRIPTOR.services_by_name["Raft"].methods}
    assert set(REQUESTS) == calls - ASK_NOTHING_OF_THE_REPLICA


@pytest.mark.parametrize("seed", range(12))
def test_no_forged_request_ends_a_process_or_carries_the_epoch_away(seed):
    cluster = run(seed, forged=400)
    assert cluster.refusals["INVALID_REQUEST"] > 50


@pytest.mark.parametrize("seed", range(12))
def test_no_damaged_answer_ends_a_process_or_carries_the_epoch_away(seed):
    cluster = run(seed, forged=200, damaged=0.3)
    assert sum(n.replica.remote_faults for n in cluster.nodes.values()) > 10
