"""A quorum whose peers send nonsense: requests and answers with random fields, under a seed.

Every message takes the way of the wire: protobuf, bytes, protobuf, codec, core. What is forged is
malformed, misdirected, stale or far ahead. It is not a lie that Raft has no defence against, such
as a voter that acknowledges what it does not have.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable
from typing import Any
from uuid import UUID

from google.protobuf.message import Message

from quorum.raft import messages as m
from quorum.raft.bounds import EPOCHS_AHEAD_MAX
from quorum.raft.effects import RequestFailed, RequestReceived, ResponseReceived, Send
from quorum.replica import codec, voters_codec
from tests.sim.node import CLUSTER_ID, SimNode
from tests.transcripts.cluster import RaftCluster
from tidemark.errors import ErrorCode, InvalidRequestError
from tidemark.v1 import common_pb2, raft_pb2

STRANGER = -7
"""Source id of forged requests; the answers to it go nowhere."""

Decode = Callable[[Any], m.Request]

REQUESTS: dict[str, tuple[type[Message], Decode]] = {
    "Vote": (raft_pb2.VoteRequest, codec.vote_request_from_proto),
    "BeginQuorumEpoch": (raft_pb2.BeginQuorumEpochRequest, codec.begin_request_from_proto),
    "EndQuorumEpoch": (raft_pb2.EndQuorumEpochRequest, codec.end_request_from_proto),
    "Fetch": (raft_pb2.QuorumFetchRequest, codec.fetch_request_from_proto),
    "FetchStream": (raft_pb2.QuorumFetchRequest, codec.fetch_request_from_proto),
    "FetchSnapshot": (raft_pb2.FetchSnapshotRequest, codec.snapshot_request_from_proto),
    "AddRaftVoter": (raft_pb2.AddRaftVoterRequest, voters_codec.add_request_from_proto),
    "RemoveRaftVoter": (raft_pb2.RemoveRaftVoterRequest, voters_codec.remove_request_from_proto),
    "UpdateRaftVoter": (raft_pb2.UpdateRaftVoterRequest, voters_codec.update_request_from_proto),
}
"""Each call of the service Raft that reaches the replica: its request and the codec's reader."""

ANSWERS: dict[type, tuple[Callable[[Any], Any], Callable[[Any], m.Response]]] = {
    m.VoteResponse: (codec.vote_response_to_proto, codec.vote_response_from_proto),
    m.BeginQuorumEpochResponse: (codec.begin_response_to_proto, codec.begin_response_from_proto),
    m.EndQuorumEpochResponse: (codec.end_response_to_proto, codec.end_response_from_proto),
    m.FetchResponse: (codec.fetch_response_to_proto, codec.fetch_response_from_proto),
    m.FetchSnapshotResponse: (
        codec.snapshot_response_to_proto,
        codec.snapshot_response_from_proto,
    ),
    m.VoterChangeResponse: (voters_codec.response_to_proto, voters_codec.response_from_proto),
}

NODE_IDS = (-(2**31), -2, -1, 0, 1, 2, 3, 4, 6, 11, 2**31 - 1)
OFFSETS = (-(2**63), -1, 0, 1, 2, 5, 50, 2**31, 2**63 - 1)
SIZES = (-(2**31), -1, 0, 1, 100, 2**31 - 1)


def epochs(near: int) -> tuple[int, ...]:
    """Epochs to forge: old and new ones, those around the bounds, and those beyond."""
    around = (near - 1, near, near, near + 1, near + 2, near + EPOCHS_AHEAD_MAX + 1000)
    return (*around, -(2**31), -1, 0, 1, 2**30 + 1, 2**31 - 2, 2**31 - 1)


class Forger:
    """Fills messages with random values of their fields' kinds; repeats under its seed."""

    def __init__(self, seed: int, cluster_id: str = CLUSTER_ID) -> None:
        self.rng = random.Random(seed)
        self.cluster_id = cluster_id

    def request(self, near_epoch: int) -> tuple[str, Message]:
        """Returns a forged request and the name of its call."""
        name = self.rng.choice(list(REQUESTS))
        message = REQUESTS[name][0]()
        self._fill(message, near_epoch)
        if "cluster_id" in message.DESCRIPTOR.fields_by_name:
            ids = [*[self.cluster_id] * 4, "", "other"]
            message.cluster_id = self.rng.choice(ids)  # type: ignore[attr-defined]
        return name, message

    def _fill(self, message: Any, near_epoch: int) -> None:
        for field in message.DESCRIPTOR.fields:
            if self.rng.random() < 0.1:
                continue  # a field that is missing
            if field.message_type is not None:
                targets = (
                    [getattr(message, field.name).add() for _ in range(self.rng.randrange(4))]
                    if field.is_repeated
                    else [getattr(message, field.name)]
                )
                for target in targets:
                    target.SetInParent()
                    self._fill(target, near_epoch)
            else:
                setattr(message, field.name, self.value(field, near_epoch))

    def value(self, field: Any, near_epoch: int) -> Any:
        """Returns a value for a field, by its name and kind."""
        choice = self.rng.choice
        if field.name.endswith("directory_id"):
            return choice([b"", bytes(16), UUID(int=2).bytes, UUID(int=77).bytes, b"short"])
        if field.name in ("host", "name"):
            return choice(["", "sim", "elsewhere", "CONTROLLER", "\u2603"])
        if field.name == "port":
            return choice([0, 1, 2, 3, 9, 70_000, 2**32 - 1])
        if field.type == field.TYPE_BOOL:
            return choice([False, True])
        if field.type == field.TYPE_BYTES:
            return self.rng.randbytes(choice([0, 1, 61, 200]))
        if field.type == field.TYPE_STRING:
            return choice(["", "text"])
        if field.type == field.TYPE_ENUM:
            return choice([0, 0, 0, int(ErrorCode.INVALID_REQUEST), 9999, -1])
        if "epoch" in field.name:
            return choice(epochs(near_epoch))
        if field.name.endswith("_id"):
            return choice(NODE_IDS)
        if field.type in (field.TYPE_UINT32, field.TYPE_FIXED32):
            return choice([0, 1, 2**32 - 1])
        return choice(OFFSETS if field.type == field.TYPE_INT64 else SIZES)

    def damage(self, answer: Any, near_epoch: int) -> None:
        """Changes some fields of a true answer. What would be a lie stays as it is: a vote that was
        not given, a higher watermark, a truncation, a checkpoint, records.
        """
        true = {"vote_granted", "records", "high_watermark", "unaligned_records", "size"}
        for field in answer.DESCRIPTOR.fields:
            if field.name in true or self.rng.random() < 0.6:
                continue
            if field.name == "diverging_epoch":
                answer.diverging_epoch.CopyFrom(
                    common_pb2.EpochEndOffset(
                        epoch=self.rng.choice([-(2**31), -1, 0]),
                        end_offset=self.rng.choice([-(2**63), -1, 0]),
                    )
                )
            elif field.name == "snapshot_id":
                answer.snapshot_id.CopyFrom(
                    raft_pb2.SnapshotId(
                        end_offset=self.rng.choice([-(2**63), -1]),
                        epoch=self.rng.choice([-1, 0, near_epoch]),
                    )
                )
            elif field.name == "leader_endpoint":
                self._fill(answer.leader_endpoint, near_epoch)
            elif field.message_type is None:
                setattr(answer, field.name, self.value(field, near_epoch))


class _Unchecked:
    """Checks nothing: forged messages may put two leaders into one epoch, as Raft allows them to.
    What is checked is that no process ends, and how epochs grow.
    """

    def __getattr__(self, _: str) -> Callable[..., None]:
        return lambda *_args, **_kwargs: None


class HostileCluster(RaftCluster):
    """Three voters, a controller that may become one and an observer, among forged messages."""

    def __init__(self, seed: int) -> None:
        self.forger = Forger(seed)
        self.damaged = 0.0  # share of the answers that are
        self.refusals: Counter[str] = Counter()
        super().__init__(voters=3, observers=1, spares=1, dynamic=seed % 2 == 0, seed=seed)
        self.checks = _Unchecked()  # type: ignore[assignment]

    @property
    def epoch(self) -> int:
        return max(node.replica.epoch for node in self.nodes.values())

    def forge_request(self) -> None:
        """Sends a forged request to a random node."""
        name, message = self.forger.request(self.epoch)
        node = self.nodes[self.forger.rng.choice(sorted(self.nodes))]
        kind, decode = REQUESTS[name]
        try:
            request = decode(kind.FromString(message.SerializeToString()))
        except InvalidRequestError:
            self.refusals[f"{name} by the codec"] += 1
            return
        token = self.next_token()
        node.tokens[token] = (STRANGER, 0, 0)
        before = node.replica.epoch
        node.step(RequestReceived(token, request))
        named = getattr(request, "epoch", before)
        # An election of its own raises the epoch by one; a message may raise it within the bounds.
        assert before <= node.replica.epoch <= max(before, named) + 1, (name, request)
        assert node.replica.epoch <= before + EPOCHS_AHEAD_MAX, (name, request)

    def send_request(self, source: SimNode, send: Send) -> None:
        """Sends a request; at a forged address nobody answers."""
        if send.endpoint.port in self.nodes:
            super().send_request(source, send)
        else:
            self.after(1, source, lambda: source.step(RequestFailed(send.correlation_id)))

    def send_response(
        self,
        source: SimNode,
        target_id: int,
        correlation_id: int,
        incarnation: int,
        response: m.Response,
    ) -> None:
        if target_id == STRANGER:
            ANSWERS[type(response)][0](response).SerializeToString()
            self.refusals[response.header.error.name] += 1
            return
        if target_id in self.nodes and self.forger.rng.random() < self.damaged:
            self._send_damaged(source, self.nodes[target_id], correlation_id, response)
            return
        super().send_response(source, target_id, correlation_id, incarnation, response)

    def _send_damaged(
        self, source: SimNode, target: SimNode, correlation_id: int, response: m.Response
    ) -> None:
        encode, decode = ANSWERS[type(response)]
        answer = encode(response)
        self.forger.damage(answer, self.epoch)
        event: ResponseReceived | RequestFailed
        try:
            forged = decode(type(answer).FromString(answer.SerializeToString()))
            event = ResponseReceived(correlation_id, forged)
        except InvalidRequestError:
            event = RequestFailed(correlation_id)
        incarnation = target.incarnation

        def arrive() -> None:
            if target.alive and target.incarnation == incarnation:
                before = target.replica.epoch
                target.step(event)
                assert target.replica.epoch <= before + EPOCHS_AHEAD_MAX, event

        self._carry(source.node_id, target.node_id, arrive)
