"""Requests of peers that wait for the replica's reply, and the reads that complete a reply.

The core replies with offsets; the bytes are read here. A damaged batch or checkpoint is reported
to the server, and the peer gets an error.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
from collections.abc import Callable, Coroutine
from dataclasses import replace

from quorum.raft import messages as m
from quorum.raft.effects import ReadSnapshot, Reply
from quorum.replica.metadata_log import ReplicatedLog
from quorum.replica.own_damage import OwnLogDamagedError
from quorum.replica.reads import complete
from quorum.replica.served_checkpoints import ServedCheckpoints
from snapshot.names import SnapshotId
from tidemark.errors import (
    BrokerNotAvailableError,
    ErrorCode,
)

logger = logging.getLogger(__name__)


class Answers:
    """The waiting requests of one replica, by token."""

    def __init__(
        self,
        log: ReplicatedLog,
        served: ServedCheckpoints,
        spawn: Callable[[Coroutine[None, None, None]], None],
        on_log_damage: Callable[[OwnLogDamagedError], None],
        on_checkpoint_damage: Callable[[SnapshotId, str], None],
    ) -> None:
        self._log = log
        self._served = served
        self._spawn = spawn
        self._on_log_damage = on_log_damage
        self._on_checkpoint_damage = on_checkpoint_damage
        self._tokens = itertools.count(1)
        self._waiting: dict[int, asyncio.Future[m.Response]] = {}

    async def wait(self, begin: Callable[[int], None]) -> m.Response:
        """Begins a request under a new token, and waits for its response."""
        token = next(self._tokens)
        future: asyncio.Future[m.Response] = asyncio.get_running_loop().create_future()
        self._waiting[token] = future
        begin(token)
        try:
            return await future
        finally:
            self._waiting.pop(token, None)

    def give(self, reply: Reply) -> None:
        """Gives the replica's reply, completed with what it reads."""
        future = self._future(reply)
        if future is None:
            return
        if isinstance(reply.read, ReadSnapshot) and self._served.must_verify(reply.read):
            self._spawn(self._verify_and_give(reply, reply.read))
            return
        response, damage = complete(self._log, reply)
        if damage is not None:
            self._on_log_damage(damage)
        future.set_result(response)

    def _future(self, reply: Reply) -> asyncio.Future[m.Response] | None:
        """The request that waits for this reply; None if it was given up."""
        future = self._waiting.get(reply.token)
        return None if future is None or future.done() else future

    async def _verify_and_give(self, reply: Reply, read: ReadSnapshot) -> None:
        """Gives the first piece of a checkpoint when the whole is verified. An unforeseen error is
        the answer to this request alone: the checkpoint is verified again for the next one.
        """
        try:
            damage = await self._served.damage(read.snapshot_id)
            if damage is None:
                self.give(replace(reply, read=replace(read, doubted=False)))
                return
            self._on_checkpoint_damage(read.snapshot_id, damage)
            header = replace(reply.response.header, error=ErrorCode.SNAPSHOT_NOT_FOUND)
            self.give(Reply(reply.token, m.FetchSnapshotResponse(header)))
        except Exception as error:
            future = self._future(reply)
            if future is None:
                raise
            future.set_exception(error)  # the service logs it

    def end(self) -> None:
        """Fails all waiting requests: the replica stops."""
        for future in self._waiting.values():
            if not future.done():
                future.set_exception(BrokerNotAvailableError("the node is shutting down"))
        self._waiting.clear()
