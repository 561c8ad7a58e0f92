"""The network between the simulated servers: drops, repeats, delays (and so reorders) messages, and
cuts links one way or both. It carries requests of the quorum, of brokers and of clients.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import TYPE_CHECKING, Any

from quorum.raft import messages as m
from tidemark.errors import NetworkError, code_of
from tidemark.types import Endpoint

if TYPE_CHECKING:
    from tests.sim.servers.node import ServerNode
    from tests.sim.servers.world import ServerWorld

Ask = Callable[["ServerNode"], Coroutine[Any, Any, Any]]
CLIENT = 0
"""Node id of the clients; no node has it."""


class FaultyNetwork:
    """All links between all nodes."""

    def __init__(self, world: ServerWorld) -> None:
        self._world = world
        self.drop_rate = 0.0
        self.duplicate_rate = 0.0
        self.delay_max_ms = 3
        self.cut: set[tuple[int, int]] = set()  # one-way: (source, target)

    def heal(self) -> None:
        self.drop_rate = self.duplicate_rate = 0.0
        self.delay_max_ms = 3
        self.cut.clear()

    async def call(
        self, source: int, target_id: int, ask: Ask, timeout_ms: int, *, repeatable: bool = False
    ) -> Any:
        """Returns the answer of `ask(target)`, run on the target. Raises NetworkError if none comes
        in time. A `repeatable` request may arrive twice."""
        try:
            async with asyncio.timeout(timeout_ms / 1000):
                return await self._exchange(source, target_id, ask, repeatable)
        except TimeoutError as error:
            raise NetworkError(f"node {target_id}: DEADLINE_EXCEEDED") from error

    async def _exchange(self, source: int, target_id: int, ask: Ask, repeatable: bool) -> Any:
        await self._travel(source, target_id)
        target = self._world.nodes[target_id]
        if target.life is None:
            if self._world.rng.random() < 0.5:
                raise NetworkError(f"node {target_id}: UNAVAILABLE")
            await _for_ever()
        assert target.life is not None
        under_way = target.life.spawn(ask(target))
        if repeatable and self._world.rng.random() < self.duplicate_rate:
            self._world.seen["message repeated"] += 1
            target.life.spawn(self._again(target, ask))
        await asyncio.wait({under_way})
        if under_way.cancelled():  # the node crashed during the request
            raise NetworkError(f"node {target_id}: UNAVAILABLE")
        await self._travel(target_id, source)
        return under_way.result()

    async def _again(self, target: ServerNode, ask: Ask) -> None:
        await asyncio.sleep(self._world.rng.randrange(1, 3 * self.delay_max_ms) / 1000)
        await ask(target)

    async def _travel(self, source: int, target: int) -> None:
        rng = self._world.rng
        if (source, target) in self.cut:
            self._world.seen["message cut"] += 1
            await _for_ever()
        if rng.random() < self.drop_rate:
            self._world.seen["message dropped"] += 1
            await _for_ever()
        await asyncio.sleep((1 + rng.randrange(self.delay_max_ms)) / 1000)


async def _for_ever() -> None:
    await asyncio.get_running_loop().create_future()


class SimTransport:
    """`quorum.replica.transport.Transport` of one node."""

    def __init__(self, world: ServerWorld, node_id: int) -> None:
        self._world = world
        self._node_id = node_id

    async def call(self, endpoint: Endpoint, request: m.Request, timeout_ms: int) -> m.Response:
        async def ask(target: ServerNode) -> m.Response:
            try:
                return await target.raft.handle(request)
            except Exception as error:  # the same answer as RaftService's
                return m.error_response(request, m.Header(code_of(error), None, -1))

        network = self._world.network
        response = await network.call(
            self._node_id, endpoint.port, ask, timeout_ms, repeatable=True
        )
        if isinstance(response, m.VoteResponse) and response.vote_granted:
            self._world.vote_was_granted(endpoint.port, request)
        assert not isinstance(response, BaseException)
        return response

    async def close(self) -> None:
        return None
