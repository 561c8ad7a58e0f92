"""Compare-and-set on the metadata of a real cluster, with a history.

Several clients at once create topics only if they are absent, and delete them only if they are
present. Requests go straight to the node that reports itself as leader. They are never repeated,
neither here nor by the node, which takes them for forwarded. Every answer is therefore about this
very request; without a clear answer its effect is unknown.
"""

from __future__ import annotations

import asyncio
import random
import time
from dataclasses import dataclass, field
from typing import Any

import grpc
import grpc.aio

from quorum.services.controller_client import FORWARDED
from tests.quorum.linearizability import Operation
from tidemark.errors import ErrorCode
from tidemark.v1 import admin_pb2, admin_pb2_grpc, raft_pb2

REQUEST_S = 2.0
OPERATIONS_PER_KEY = 24
REFUSED = {ErrorCode.TOPIC_ALREADY_EXISTS, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION}
NO_EFFECT = {ErrorCode.INVALID_REPLICATION_FACTOR, ErrorCode.THROTTLING_QUOTA_EXCEEDED}


@dataclass
class Load:
    """Clients of the controllers at `addresses`, by node id."""

    addresses: dict[int, str]
    seed: int
    history: dict[str, list[Operation]] = field(default_factory=dict)
    answers: dict[str, int] = field(default_factory=dict)
    leader: int | None = None
    stopped: bool = False
    started: int = 0

    def __post_init__(self) -> None:
        self.rng = random.Random(self.seed)
        self.channels: dict[int, grpc.aio.Channel] = {}

    def stub(self, node_id: int) -> Any:
        if node_id not in self.channels:
            options = [
                ("grpc.initial_reconnect_backoff_ms", 50),
                ("grpc.min_reconnect_backoff_ms", 50),
                ("grpc.max_reconnect_backoff_ms", 200),
            ]
            address = self.addresses[node_id]
            self.channels[node_id] = grpc.aio.insecure_channel(address, options=options)
        return admin_pb2_grpc.AdminStub(self.channels[node_id])

    async def find_leader(self) -> int | None:
        """The first node, in a random order, that reports itself as leader."""
        for node_id in self.rng.sample(sorted(self.addresses), len(self.addresses)):
            try:
                answer = await self.stub(node_id).DescribeMetadataQuorum(
                    raft_pb2.DescribeQuorumRequest(), timeout=0.3, metadata=(FORWARDED,)
                )
            except grpc.aio.AioRpcError:
                continue
            if answer.leader_id == node_id:
                return node_id
        return None

    async def client(self) -> None:
        while not self.stopped:
            leader = self.leader
            if leader is None:
                self.leader = await self.find_leader()
                await asyncio.sleep(0.02)
                continue
            key = f"register-{self.started // OPERATIONS_PER_KEY}"
            self.started += 1
            name = self.rng.choice(["create", "delete"])
            called = time.monotonic()
            outcome = await self._ask(leader, name, key)
            if outcome == "unknown" and self.leader == leader:
                self.leader = None
            self.answers[outcome] = self.answers.get(outcome, 0) + 1
            if outcome == "no effect":
                await asyncio.sleep(0.05)
                continue
            known = outcome != "unknown"
            operation = (
                Operation(name, outcome, called, time.monotonic())
                if known
                else Operation(name, None, called)
            )
            self.history.setdefault(key, []).append(operation)

    async def _ask(self, leader: int, name: str, key: str) -> str:
        stub = self.stub(leader)
        try:
            if name == "create":
                create = admin_pb2.CreateTopicsRequest(timeout_ms=int(REQUEST_S * 1000))
                create.topics.add(name=key, num_partitions=1, replication_factor=1)
                answer = await stub.CreateTopics(create, timeout=REQUEST_S, metadata=(FORWARDED,))
            else:
                delete = admin_pb2.DeleteTopicsRequest(
                    topic_names=[key], timeout_ms=int(REQUEST_S * 1000)
                )
                answer = await stub.DeleteTopics(delete, timeout=REQUEST_S, metadata=(FORWARDED,))
        except grpc.aio.AioRpcError:
            return "unknown"
        if answer.error_code != ErrorCode.NONE or not answer.topics:
            return "unknown"
        error = answer.topics[0].error_code
        if error == ErrorCode.NONE:
            return "done"
        if error in REFUSED:
            return "refused"
        return "no effect" if error in NO_EFFECT else "unknown"

    async def topics_on(self, node_id: int) -> set[str] | None:
        """The topics of one controller's image; None if it does not answer."""
        try:
            request = admin_pb2.ListTopicsRequest()
            answer = await self.stub(node_id).ListTopics(request, timeout=REQUEST_S)
        except grpc.aio.AioRpcError:
            return None
        return {topic.name for topic in answer.topics}

    async def final_topics(self, timeout_s: float = 60) -> set[str]:
        """The topics that all controllers agree on in the end. Raises AssertionError if they do
        not.
        """
        deadline = time.monotonic() + timeout_s
        seen: list[set[str] | None] = []
        same = 0
        while time.monotonic() < deadline:
            seen = [await self.topics_on(node_id) for node_id in sorted(self.addresses)]
            first = seen[0]
            same = same + 1 if first is not None and all(s == first for s in seen) else 0
            if same >= 5 and first is not None:
                return first
            await asyncio.sleep(0.2)
        raise AssertionError(f"the controllers never agreed: {seen}")

    async def close(self) -> None:
        for channel in self.channels.values():
            await channel.close()
