"""Nodes of an older version beside this one: what they do not know is done in the older way."""

from __future__ import annotations

import asyncio
from typing import Any
from uuid import UUID

import grpc.aio
import pytest

from quorum.raft import messages as m
from quorum.raft.effects import ElectionState, Send, Shutdown, Tick
from quorum.raft.roles import Candidate, Follower, Prospective
from quorum.raft.voters import ReplicaKey
from quorum.replica.service import RaftService
from quorum.replica.transport import GrpcTransport
from tests.quorum.raft.test_rules import ResponseReceived, replica
from tests.sim.node import SimNode
from tests.transcripts.cluster import RaftCluster
from tidemark.errors import ErrorCode, NetworkError
from tidemark.types import Endpoint
from tidemark.v1 import raft_pb2, raft_pb2_grpc
from tidemark.wire import CHANNEL_OPTIONS

TOO_OLD = m.VoteResponse(m.Header(ErrorCode.UNSUPPORTED_VERSION, None, -1), vote_granted=False)


def prospective():
    """Returns a replica that lost its leader, and its pre-votes."""
    found = replica(state=ElectionState(1, 3))
    sends = found.step(Tick(), 2_000).sends
    assert isinstance(found.role, Prospective)
    assert all(send.request.pre_vote for send in sends)
    return found, sends


def test_a_voter_that_knows_no_pre_vote_is_asked_for_its_vote_at_once():
    found, (_, to_another) = prospective()
    effects = found.step(ResponseReceived(to_another.correlation_id, TOO_OLD), 2_001)
    found.validate()
    assert isinstance(found.role, Candidate)
    assert effects.election_state == ElectionState(2, None, found.key)
    votes = [(send.node_id, send.request.epoch, send.request.pre_vote) for send in effects.sends]
    assert votes == [(2, 2, False), (3, 2, False)]
    assert found.state.metrics.pre_votes_unsupported == 1


def test_an_answer_that_comes_too_late_begins_no_election():
    found, (_, to_another) = prospective()
    found.step(Shutdown(), 2_001)
    found.step(ResponseReceived(to_another.correlation_id, TOO_OLD), 2_002)
    assert isinstance(found.role, Prospective), "it is shutting down"
    found, (_, to_another) = prospective()
    found.state.give_up_pre_vote(found.role, 2_001)
    found.step(ResponseReceived(to_another.correlation_id, TOO_OLD), 2_002)
    assert isinstance(found.role, Follower)


def test_a_vote_that_is_not_supported_is_no_vote():
    found, (_, to_another) = prospective()
    effects = found.step(ResponseReceived(to_another.correlation_id, TOO_OLD), 2_001)
    found.step(ResponseReceived(effects.sends[0].correlation_id, TOO_OLD), 2_002)
    assert isinstance(found.role, Candidate)
    assert found.role.granted == {1}
    assert found.epoch == 2


class MixedCluster(RaftCluster):
    """Voters of which one, n2, knows no pre-vote, as before KIP-996."""

    def send_request(self, source: SimNode, send: Send) -> None:
        request = send.request
        if send.endpoint.port == 2 and isinstance(request, m.VoteRequest) and request.pre_vote:
            super().send_response(
                self.nodes[2], source.node_id, send.correlation_id, source.incarnation, TOO_OLD
            )
        else:
            super().send_request(source, send)


@pytest.mark.parametrize("seed", range(8))
def test_a_quorum_with_an_older_voter_elects_and_commits_through_a_rolling_upgrade(seed):
    cluster = MixedCluster(seed=seed)
    for stopped in (1, 2, 3):
        leader = cluster.run_until_leader()
        cluster.append(leader, b"before=%d" % stopped)
        cluster.run_until_equal()
        cluster.shut_down(stopped)
        cluster.run_for(100)
        cluster.crash(stopped)
        leader = cluster.run_until_leader(other_than=stopped)
        cluster.append(leader, b"during=%d" % stopped)
        cluster.start(stopped)
        cluster.run_until_equal()
    assert max(node.replica.epoch for node in cluster.nodes.values()) < 20


class OlderService(RaftService):
    """A node from before pre-votes and open calls. It takes part in everything else."""

    async def Vote(self, request: raft_pb2.VoteRequest, context: Any) -> raft_pb2.VoteResponse:
        if request.pre_vote:
            await context.abort(grpc.StatusCode.UNIMPLEMENTED, "no such version")
        return await super().Vote(request, context)

    async def FetchStream(self, requests: Any, context: Any) -> None:
        self.streams_asked = getattr(self, "streams_asked", 0) + 1
        await context.abort(grpc.StatusCode.UNIMPLEMENTED, "no such method")


def test_over_grpc_an_older_node_says_unsupported_version_and_is_fetched_from_call_by_call():
    fetched: list[int] = []

    async def handle(request: m.Request) -> m.Response:
        header = m.Header(ErrorCode.NONE, 1, 1)
        if isinstance(request, m.FetchRequest):
            fetched.append(request.fetch_offset)
            return m.FetchResponse(header, 7, records=b"of %d" % request.fetch_offset)
        return m.VoteResponse(header, vote_granted=True)

    async def main() -> None:
        service = OlderService(handle, lambda: pytest.fail("not asked"))
        server = grpc.aio.server(options=CHANNEL_OPTIONS)
        raft_pb2_grpc.add_RaftServicer_to_server(service, server)
        endpoint = Endpoint("127.0.0.1", server.add_insecure_port("127.0.0.1:0"))
        await server.start()
        transport = GrpcTransport()
        key = ReplicaKey(2, UUID(int=2))
        for pre_vote in (True, False):
            request = m.VoteRequest("c", ReplicaKey(1), 5, key, 1, 1, pre_vote)
            answer = await transport.call(endpoint, request, 5000)
            assert isinstance(answer, m.VoteResponse)
            assert answer.vote_granted is not pre_vote
            unsupported = answer.header.error == ErrorCode.UNSUPPORTED_VERSION
            assert unsupported is pre_vote
        for offset in range(3):
            fetch = m.FetchRequest("c", key, 1, offset, 1, None, 0, 100)
            found = await transport.call(endpoint, fetch, 5000)
            assert isinstance(found, m.FetchResponse)
            assert found.records == b"of %d" % offset
        assert (fetched, service.streams_asked) == ([0, 1, 2], 1)
        await server.stop(None)
        with pytest.raises(NetworkError):
            await transport.call(endpoint, fetch, 500)
        await transport.close()

    asyncio.run(main())
