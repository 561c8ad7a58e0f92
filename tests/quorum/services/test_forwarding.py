"""Which requests of the Admin service a node forwards, how long it waits, and what it answers then.

The gRPC server, the caller and the active controller are replaced by objects that record calls.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import pytest

from quorum.image import EMPTY_IMAGE
from quorum.raft import messages as m
from quorum.replica.client import QuorumInfo
from quorum.services import admin_answers
from quorum.services.admin_service import AdminNode, add_admin_service
from quorum.services.controller_client import FORWARDED
from tests.quorum.controller.scenario import CLUSTER_ID
from tidemark.errors import (
    ErrorCode,
    InvalidTopicError,
    NotControllerError,
    RequestTimedOutError,
    UnsupportedVersionError,
)
from tidemark.v1 import admin_pb2, raft_pb2


@dataclass
class Caller:
    """Context of a call: the seconds left until its deadline, and whether a node forwarded it."""

    left_s: float | None = None
    forwarded: bool = False

    def time_remaining(self) -> float | None:
        return self.left_s

    def invocation_metadata(self) -> Any:
        return (FORWARDED,) if self.forwarded else None


@dataclass
class Node:
    """A node with recorded calls to the active controller, to its replica and to its controller.

    `active` is None on a node without a controller. Without a leader, forwarded calls time out.
    """

    active: bool | None = None
    leader_exists: bool = True
    forwarded: list[tuple[str, int]] = field(default_factory=list)
    own: list[Any] = field(default_factory=list)
    handlers: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        controller = (
            None
            if self.active is None
            else SimpleNamespace(is_active=self.active, handle=self._handle)
        )
        server: Any = SimpleNamespace(
            add_generic_rpc_handlers=lambda _: None,
            add_registered_method_handlers=lambda _, handlers: self.handlers.update(handlers),
        )
        parts: dict[str, Any] = {
            "config": None,
            "images": SimpleNamespace(image=EMPTY_IMAGE),
            "quorum": SimpleNamespace(handle=self._replica, describe=self._describe),
            "client": SimpleNamespace(call=self._forward),
            "controller": controller,
        }
        add_admin_service(server, AdminNode(cluster_id=CLUSTER_ID, **parts))

    async def _forward(
        self, method: str, request: Any, timeout_ms: int, principal: str = ""
    ) -> Any:
        self.forwarded.append((method, timeout_ms))
        if not self.leader_exists:
            raise RequestTimedOutError("no leader is known")
        return "the leader's answer"

    async def _handle(self, request: Any) -> Any:
        self.own.append(request)
        return "the own controller's answer"

    async def _replica(self, request: Any) -> m.Response:
        self.own.append(request)
        error = ErrorCode.NONE if self.active else ErrorCode.NOT_LEADER_OR_FOLLOWER
        return m.VoterChangeResponse(m.Header(error, 1, 5, None))

    def _describe(self) -> QuorumInfo:
        return QuorumInfo(None, 7, None, (), (), {})

    def call(self, method: str, request: Any, caller: Caller | None = None) -> Any:
        handler = self.handlers[method].unary_unary
        return asyncio.run(handler(request, caller or Caller()))


@pytest.mark.parametrize(
    ("timeout_ms", "left_s", "waits_ms"),
    [
        (20_000, None, 20_000),
        (0, None, 30_000),
        (-5, None, 30_000),
        (1_000, 5.0, 1_000),
        (20_000, 5.0, 4_500),
        (0, 5.0, 4_500),
        (20_000, 0.2, 1),
    ],
)
def test_a_forwarded_change_ends_before_its_caller_gives_up(
    timeout_ms: int, left_s: float | None, waits_ms: int
) -> None:
    node = Node()
    request = admin_pb2.CreateTopicsRequest(timeout_ms=timeout_ms)
    assert node.call("CreateTopics", request, Caller(left_s)) == "the leader's answer"
    assert node.forwarded == [("CreateTopics", waits_ms)]


@pytest.mark.parametrize("active", [None, False])
def test_no_node_forwards_what_was_forwarded_to_it(active: bool | None) -> None:
    node, caller = Node(active), Caller(forwarded=True)
    for method, request in (
        ("CreateTopics", admin_pb2.CreateTopicsRequest()),
        ("UpdateFeatures", admin_pb2.UpdateFeaturesRequest()),
        ("RemoveRaftVoter", _removal()),
    ):
        answer = node.call(method, request, caller)
        assert int(answer.error_code) == NotControllerError.code, method
    described = node.call("DescribeMetadataQuorum", raft_pb2.DescribeQuorumRequest(), caller)
    assert described.leader_epoch == 7
    assert node.forwarded == []


def test_the_active_controller_answers_itself_also_what_was_forwarded_to_it() -> None:
    node, caller = Node(active=True), Caller(forwarded=True)
    answer = node.call("DeleteTopics", admin_pb2.DeleteTopicsRequest(), caller)
    assert answer == "the own controller's answer"
    described = node.call("DescribeMetadataQuorum", raft_pb2.DescribeQuorumRequest(), caller)
    assert described.leader_epoch == 7
    assert int(node.call("RemoveRaftVoter", _removal(), caller).error_code) == 0
    assert len(node.own) == 2
    assert node.forwarded == []


def test_a_change_of_voters_is_forwarded_by_a_replica_that_does_not_lead() -> None:
    node = Node(active=False)
    assert node.call("RemoveRaftVoter", _removal()) == "the leader's answer"
    assert node.forwarded == [("RemoveRaftVoter", 9_000)]


def test_a_new_level_of_kraft_version_is_the_quorums_and_others_are_the_controllers() -> None:
    levels = {name: admin_pb2.UpdateFeaturesRequest() for name in ("kraft.version", "other")}
    for name, request in levels.items():
        request.updates.add(feature=name, level=1)
    leader, follower = Node(active=True), Node(active=False)
    assert leader.call("UpdateFeatures", levels["other"]) == "the own controller's answer"
    answer = leader.call("UpdateFeatures", levels["kraft.version"])
    assert isinstance(answer, admin_pb2.UpdateFeaturesResponse)
    assert isinstance(leader.own[-1], m.UpgradeVersionRequest)
    assert follower.call("UpdateFeatures", levels["kraft.version"]) == "the leader's answer"
    assert follower.own == []


def test_a_node_describes_the_quorum_itself_soon_while_no_leader_answers() -> None:
    node = Node(leader_exists=False)
    described = node.call("DescribeMetadataQuorum", raft_pb2.DescribeQuorumRequest())
    assert described.leader_epoch == 7
    assert node.forwarded == [("DescribeMetadataQuorum", 3_000)]
    answer = node.call("CreateTopics", admin_pb2.CreateTopicsRequest())
    assert int(answer.error_code) == RequestTimedOutError.code


def test_an_api_error_of_an_answer_reaches_the_client_with_its_code(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def refuse(*_: Any) -> Any:
        raise InvalidTopicError("a name has at most 249 characters")

    monkeypatch.setattr(admin_answers, "list_topics", refuse)
    answer = Node().call("ListTopics", admin_pb2.ListTopicsRequest())
    assert int(answer.error_code) == InvalidTopicError.code
    assert answer.error_message == "a name has at most 249 characters"
    answer = Node().call("DescribeLogDirs", admin_pb2.DescribeLogDirsRequest())
    assert int(answer.error_code) == UnsupportedVersionError.code


def _removal() -> raft_pb2.RemoveRaftVoterRequest:
    return raft_pb2.RemoveRaftVoterRequest(
        voter_id=1, voter_directory_id=bytes(range(16)), timeout_ms=9_000
    )
