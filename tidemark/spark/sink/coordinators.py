"""The calls of one sink's driver to its coordinators, over the client."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Coroutine, Mapping, Sequence
from contextlib import AsyncExitStack
from typing import Any, TypeVar

from tidemark.client import (
    AsyncAdmin,
    AsyncProducer,
    ConsumerGroupMetadata,
    OffsetAndMetadata,
    TransactionDescription,
    TransactionInDoubtError,
)
from tidemark.client.loop_thread import shared_loop
from tidemark.config.security import ClientSecurity
from tidemark.errors import TransactionalIdNotFoundError
from tidemark.spark.sink.core import OpenAttempt
from tidemark.spark.sink.decision import (
    Attempt,
    Decision,
    SinkError,
    attempts_pattern,
    from_pieces,
    to_pieces,
)
from tidemark.types import TopicPartition, random_uuid

R = TypeVar("R")

_AT_ONCE = 64  # calls of coordinators
_DOUBTS = 3  # times that a commit without an answer is sent again
_LOOKS = 3  # times that a decision is read whose coordinator may be none any more


class ClusterCoordinators:
    """`SinkCoordinators` of a cluster; made and used on one event loop, for one commit or abort."""

    def __init__(
        self,
        sink: str,
        servers: str,
        *,
        admin: Callable[..., AsyncAdmin] = AsyncAdmin,
        producer: Callable[..., AsyncProducer] = AsyncProducer,
        security: ClientSecurity | None = None,
    ) -> None:
        self._sink = sink
        self._admin = admin(servers, security=security)
        self._producer = producer(servers, transactional_id=sink, security=security)

    async def close(self) -> None:
        """Aborts a decision that was proposed and not confirmed."""
        async with AsyncExitStack() as stack:
            stack.push_async_callback(self._admin.close)
            stack.push_async_callback(self._producer.close)

    async def fence(self) -> None:
        await self._producer.init_transactions()

    async def last_decision(self) -> Decision | None:
        """Reads it behind a write of its own. A coordinator that was cut off from the others can
        not take that, but would answer a read, with an earlier decision.
        """
        place, mark = TopicPartition(f"{self._sink}-driver", 0), random_uuid().hex
        for _ in range(_LOOKS):
            await self._admin.groups.alter_offsets(
                self._sink, {place: OffsetAndMetadata(0, None, mark)}
            )
            found = await self._admin.groups.offsets(self._sink)
            if place in found and found[place].metadata == mark:
                return from_pieces(
                    self._sink,
                    {
                        tp.partition: at.metadata
                        for tp, at in found.items()
                        if tp.topic == self._sink
                    },
                )
        raise SinkError(
            f"the coordinator of group {self._sink} does not know what was just written to it: it"
            " is cut off from the others, or another driver writes to the same sinkId"
        )

    async def prepare(self, attempt: Attempt) -> None:
        await self._admin.transactions.prepare(*attempt)

    async def end(self, attempt: Attempt, *, committed: bool, keep_prepared: bool = False) -> None:
        await self._admin.transactions.end(
            *attempt, committed=committed, keep_prepared=keep_prepared
        )

    async def propose(self, decision: Decision) -> None:
        self._producer.begin_transaction()
        await self._producer.send_offsets_to_transaction(
            self._offsets(decision), ConsumerGroupMetadata(self._sink)
        )

    def _offsets(self, decision: Decision) -> Mapping[TopicPartition, OffsetAndMetadata]:
        return {
            TopicPartition(self._sink, number): OffsetAndMetadata(decision.batch + 1, None, piece)
            for number, piece in enumerate(to_pieces(decision))
        }

    async def confirm(self) -> None:
        for _ in range(_DOUBTS):
            try:
                await self._producer.commit_transaction()
            except TransactionInDoubtError:
                continue
            return
        await self._producer.commit_transaction()

    async def open_attempts(self, but: Collection[str]) -> Sequence[OpenAttempt]:
        transactions = self._admin.transactions
        listed = await transactions.list(states=["Ongoing"], pattern=attempts_pattern(self._sink))
        room = asyncio.Semaphore(_AT_ONCE)

        async def describe(transactional_id: str) -> Mapping[str, TransactionDescription]:
            async with room:
                return await transactions.describe([transactional_id])

        ids = {each.transactional_id for each in listed}.difference(but)
        described = await asyncio.gather(*map(describe, sorted(ids)), return_exceptions=True)
        found: list[OpenAttempt] = []
        for answer in described:
            if isinstance(answer, TransactionalIdNotFoundError):
                continue  # it has ended, and is forgotten
            if isinstance(answer, BaseException):
                raise answer
            for each in answer.values():
                if each.state == "Ongoing":
                    identity = (each.transactional_id, each.producer_id, each.producer_epoch)
                    found.append(OpenAttempt(Attempt(*identity), each.is_prepared))
        return found


def with_coordinators(
    sink: str,
    servers: str,
    work: Callable[[ClusterCoordinators], Coroutine[Any, Any, R]],
    security: ClientSecurity | None = None,
) -> R:
    """Runs `work` on the loop of the process's clients, and waits for it."""

    async def run() -> R:
        coordinators = ClusterCoordinators(sink, servers, security=security)
        try:
            return await work(coordinators)
        finally:
            await coordinators.close()

    return shared_loop().run(run())
