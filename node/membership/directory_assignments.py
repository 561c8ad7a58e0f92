"""Reports the log directory of each replica to the controller (KIP-858; Kafka's
AssignmentsManager).

Waiting assignments are in a table, one directory per partition; a newer one replaces an older one.
They are sent in batches, with one request in flight. A request is repeated after a backoff until
the controller accepts it or does not know the replica. The number of hosted replicas bounds the
table.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from dataclasses import dataclass
from uuid import UUID

from node.membership.controller_calls import ControllerCaller
from node.membership.identity import BrokerIdentity
from tidemark.errors import ApiError, ErrorCode, raise_for
from tidemark.types import TopicIdPartition
from tidemark.v1 import controller_pb2 as pb

logger = logging.getLogger(__name__)

PARTITIONS_PER_REQUEST = 2_250  # Kafka's limit: such a request stays below 64 KiB
_TIMEOUT_MS = 10_000
_BACKOFF_MS = 100
_BACKOFF_MS_MAX = 10_000
_NOT_OURS = frozenset(
    (
        ErrorCode.UNKNOWN_TOPIC_ID,
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        ErrorCode.NOT_LEADER_OR_FOLLOWER,
    )
)


@dataclass(frozen=True, slots=True)
class _Assignment:
    directory_id: UUID
    done: Callable[[], None] | None


class DirectoryAssignments:
    """One per broker; `run` is its task, `submit` never waits."""

    def __init__(self, identity: BrokerIdentity, client: ControllerCaller) -> None:
        self._identity = identity
        self._client = client
        self._waiting: dict[TopicIdPartition, _Assignment] = {}
        self._work = asyncio.Event()

    def __len__(self) -> int:
        return len(self._waiting)

    def submit(
        self,
        identity: TopicIdPartition,
        directory_id: UUID,
        done: Callable[[], None] | None = None,
    ) -> None:
        """Queues the directory of a replica.

        `done` is called when the controller has recorded it. It is not called if the controller
        knows no such replica, or if a newer directory was submitted meanwhile.
        """
        known = self._waiting.get(identity)
        if known is None or known.directory_id != directory_id or done is not None:
            self._waiting[identity] = _Assignment(directory_id, done)
            self._work.set()

    async def run(self) -> None:
        """Sends waiting assignments forever."""
        backoff_ms = _BACKOFF_MS
        while True:
            await self._work.wait()
            self._work.clear()
            while self._waiting:
                if await self._send():
                    backoff_ms = _BACKOFF_MS
                    continue
                await asyncio.sleep(backoff_ms / 1000)
                backoff_ms = min(2 * backoff_ms, _BACKOFF_MS_MAX)

    async def _send(self) -> bool:
        """Sends one request; returns False if a part of it must be sent again."""
        identities = list(self._waiting)[:PARTITIONS_PER_REQUEST]
        batch = {identity: self._waiting[identity] for identity in identities}
        try:
            response = await self._client.call(
                "AssignReplicasToDirs", self._request(batch), _TIMEOUT_MS
            )
            raise_for(response.error_code, response.error_message)
        except ApiError as error:
            logger.info("telling the directories of %d replicas failed: %s", len(batch), error)
            return False
        answers = {
            (bytes(p.topic_id), p.partition_index): ErrorCode(p.error_code)
            for p in response.partitions
        }
        complete = True
        for identity, sent in batch.items():
            code = answers.get((identity.topic_id.bytes, identity.partition))
            complete &= self._answered(identity, sent, code)
        return complete

    def _answered(
        self, identity: TopicIdPartition, sent: _Assignment, code: ErrorCode | None
    ) -> bool:
        if self._waiting.get(identity) is not sent:
            return True  # a newer one waits for the next request
        if code is ErrorCode.NONE:
            del self._waiting[identity]
            if sent.done is not None:
                sent.done()
            return True
        name = "no answer" if code is None else code.name
        logger.info("%s: the controller did not note its directory: %s", identity, name)
        if code not in _NOT_OURS:
            # Retried last, so that a directory unknown to the controller does not block the rest.
            self._waiting[identity] = self._waiting.pop(identity)
            return False
        del self._waiting[identity]
        return True

    def _request(
        self, batch: dict[TopicIdPartition, _Assignment]
    ) -> pb.AssignReplicasToDirsRequest:
        request = pb.AssignReplicasToDirsRequest(
            broker_id=self._identity.id, broker_epoch=self._identity.epoch
        )
        by_directory: dict[UUID, list[TopicIdPartition]] = {}
        for identity, assignment in batch.items():
            by_directory.setdefault(assignment.directory_id, []).append(identity)
        for directory_id, identities in by_directory.items():
            directory = request.directories.add(id=directory_id.bytes)
            for identity in identities:
                directory.partitions.add(
                    topic_id=identity.topic_id.bytes, partition_index=identity.partition
                )
        return request
