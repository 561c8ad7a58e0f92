"""The fake cluster without sockets, for producers in virtual time: nodes that hang, and a clock.

`scenario` runs a coroutine with a cluster and a maker of producers. Threads of the loop's executor
run at once, on the loop.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

import grpc

from tests import virtual_time
from tests.client.fake_cluster import FakeCluster
from tidemark import wire
from tidemark.client import AsyncProducer
from tidemark.client.connections import Connections
from tidemark.errors import NetworkError, RequestTimedOutError
from tidemark.v1 import log_pb2

Change = Callable[[int, Any], None]
Method = Callable[[int, bytes, Any], Awaitable[bytes]]


class VirtualCluster(FakeCluster):
    """Nodes in this process; `hung` ones take requests and answer nothing."""

    def __init__(self, nodes: int = 1) -> None:
        super().__init__(nodes)
        self.ports = {node_id: 9000 + node_id for node_id in self.node_ids}
        self.hung: set[int] = set()
        self.asked: list[tuple[float, int, str]] = []  # (s, node, method)
        self.requests: list[wire.ProduceRequest] = []
        self.change_answer: Change = lambda node_id, answer: None
        self.services: dict[str, Method] = {}  # beside those of every cluster

    def times(self, method: str) -> list[float]:
        return [at_s for at_s, _, name in self.asked if name == method]


class _Context:
    async def abort(self, code: grpc.StatusCode, details: str) -> None:
        raise NetworkError(details)


class VirtualConnections(Connections):
    """Connections to a virtual cluster."""

    def __init__(self, cluster: VirtualCluster, **settings: Any) -> None:
        super().__init__(**settings)
        self.cluster = cluster

    async def call(
        self,
        address: str,
        path: str,
        request: Any,
        decode: Callable[[bytes], Any],
        *,
        timeout_ms: float | None = None,
    ) -> Any:
        limit_ms = self.request_timeout_ms if timeout_ms is None else timeout_ms
        return decode(await self._ask(address, path, request.SerializeToString(), limit_ms))

    async def exchange(
        self,
        address: str,
        path: str,
        request: bytes,
        decode: Callable[[bytes], Any],
        timeout_ms: float,
        *,
        alone: str,
    ) -> Any:
        answer = await self._ask(address, path, request, timeout_ms)
        if path == wire.PRODUCE_STREAM:
            message = log_pb2.ProduceResponse.FromString(answer)
            self.cluster.change_answer(int(address[-1]), message)
            return message
        return decode(answer)

    async def _ask(self, address: str, path: str, request: bytes, timeout_ms: float) -> bytes:
        cluster, node_id = self.cluster, int(address[-1])
        name = path.rpartition("/")[2]
        cluster.asked.append((asyncio.get_running_loop().time(), node_id, name))
        if name == "ProduceStream":
            cluster.requests.append(wire.decode_produce_request(request))
        await asyncio.sleep(0.001)
        if node_id in cluster.hung:
            await asyncio.sleep(timeout_ms / 1000)
            raise RequestTimedOutError(f"{address}: no answer in {timeout_ms:.0f} ms")
        methods: dict[str, Method] = {
            "Metadata": cluster._metadata,
            "ProduceStream": cluster._produce,
            "InitProducerId": cluster._init_producer_id,
            **cluster.services,
        }
        try:
            async with asyncio.timeout(timeout_ms / 1000):
                return await methods[name](node_id, request, _Context())
        except TimeoutError:
            raise RequestTimedOutError(f"{address}: no answer in {timeout_ms:.0f} ms") from None


Make = Callable[..., AsyncProducer]
C = TypeVar("C", bound=VirtualCluster)


def scenario(
    play: Callable[[C, Make], Awaitable[None]],
    *,
    partitions: int = 1,
    nodes: int = 1,
    cluster_type: type[C] = VirtualCluster,  # type: ignore[assignment]
) -> None:
    """Plays with a topic `t`, in virtual time."""
    import tidemark.records.kernels.codec  # noqa: F401  # small batches are encoded on the loop

    async def main() -> None:
        cluster = cluster_type(nodes)
        cluster.create_topic("t", partitions)

        def at_once(_: Any, function: Callable[..., Any], *arguments: Any) -> asyncio.Future[Any]:
            done: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
            try:
                done.set_result(function(*arguments))
            except Exception as error:
                done.set_exception(error)
            return done

        asyncio.get_running_loop().run_in_executor = at_once  # type: ignore[assignment,method-assign]

        def make(**settings: Any) -> AsyncProducer:
            def connect(**given: Any) -> Connections:
                return VirtualConnections(cluster, **given)

            chosen: dict[str, Any] = {"random_seed": 1, "linger_ms": 0} | settings
            return AsyncProducer(cluster.bootstrap_servers, connect=connect, **chosen)

        await play(cluster, make)

    virtual_time.run(main())


def now_s() -> float:
    return asyncio.get_running_loop().time()
