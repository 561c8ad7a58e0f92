"""Messages of the simulated world that no correct peer sends: malformed requests, and fetch answers
with a wrong bit. They may change nothing but counters (`quorum.raft.bounds`,
`quorum.replica.sealing`).
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING

from quorum.raft import messages as m
from quorum.raft.effects import RequestReceived
from quorum.raft.voters import ReplicaKey
from snapshot.names import SnapshotId
from tidemark.errors import ErrorCode

if TYPE_CHECKING:
    from tests.sim.node import SimNode
    from tests.sim.world import World

STRANGER = -100
"""Sender of malformed requests; no node has this id."""
NO_EPOCH = 2**31 - 1
EPOCH_MAX = 10_000
"""No run has as many elections; a later epoch came from a malformed message."""


def _requests(node: SimNode, rng: random.Random) -> list[Callable[[], m.AnyRequest]]:
    """Makers of malformed requests to a node."""
    cluster, own, epoch = node.config.cluster_id, node.key, node.replica.epoch
    bad_id, endpoint = rng.choice([-1, -2, own.replica_id]), node.config.endpoint
    other, negative = ReplicaKey(99), -1 - rng.randrange(1 << 31)
    pre_vote = rng.random() < 0.5
    at = (epoch, node.log.end_offset)

    def vote(candidate: ReplicaKey, asked: int) -> m.VoteRequest:
        return m.VoteRequest(cluster, own, asked, candidate, *at, pre_vote)

    def fetch(replica: ReplicaKey, in_epoch: int, offset: int, last: int) -> m.FetchRequest:
        return m.FetchRequest(cluster, replica, in_epoch, offset, last, None, 500, 1000)

    def piece(snapshot_id: SnapshotId) -> m.FetchSnapshotRequest:
        return m.FetchSnapshotRequest(cluster, other, epoch, snapshot_id, 0, 1000)

    return [
        lambda: vote(ReplicaKey(bad_id), epoch + 1),
        lambda: vote(other, NO_EPOCH),
        lambda: vote(other, negative),
        lambda: m.BeginQuorumEpochRequest(cluster, own, bad_id, epoch + 1, endpoint),
        lambda: m.BeginQuorumEpochRequest(cluster, own, 99, NO_EPOCH, endpoint),
        lambda: m.EndQuorumEpochRequest(cluster, bad_id, epoch, (), endpoint),
        lambda: m.EndQuorumEpochRequest(cluster, 99, epoch + 1, (ReplicaKey(-3),), endpoint),
        lambda: fetch(ReplicaKey(negative), epoch, 0, 0),
        lambda: fetch(other, epoch, negative, 0),
        lambda: fetch(other, epoch, 1, epoch + 1),
        lambda: piece(SnapshotId(negative, epoch)),
        lambda: m.VoteRequest("another-cluster", own, epoch + 1, other, *at, False),
    ]


class Stranger:
    """Sends malformed requests to random nodes."""

    def __init__(self, world: World) -> None:
        self._world = world

    def send_some(self) -> None:
        world = self._world
        node = world.any_node()
        if not node.alive or node.is_paused or node.is_suspended or node.writes_state:
            return
        makers = _requests(node, world.rng)
        request = makers[world.rng.randrange(len(makers))]()
        before = node.replica.epoch
        token = world.next_token()
        node.tokens[token] = (STRANGER, 0, 0)
        node.step(RequestReceived(token, request))
        world.seen["malformed request"] += 1
        # the same step may begin an election of the node's own
        assert node.replica.epoch <= before + 1 or before == 0, (request, node.replica.role)

    def answered(self, response: m.Response) -> None:
        assert response.header.error != ErrorCode.NONE, response


def damaged(response: m.FetchResponse, rng: random.Random) -> m.FetchResponse:
    """The answer with one wrong bit, in its records or in a number outside of them."""
    records = response.records
    kind = rng.random()
    if records and kind < 0.7:
        at = rng.randrange(len(records) if kind < 0.4 else min(16, len(records)))
        flipped = records[at] ^ (1 << rng.randrange(8))
        return replace(response, records=records[:at] + bytes([flipped]) + records[at + 1 :])
    bit = 1 << rng.randrange(31)
    if response.diverging_epoch is not None:
        epoch, end_offset = response.diverging_epoch
        return replace(response, diverging_epoch=(epoch, end_offset ^ bit))
    if response.high_watermark is not None and kind < 0.9:
        return replace(response, high_watermark=response.high_watermark ^ bit)
    header = replace(response.header, epoch=response.header.epoch ^ bit)
    return replace(response, header=header)
