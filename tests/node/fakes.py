"""Fakes shared by tests of the node: a controller that answers calls, a clock on the loop's
time.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

from google.protobuf.message import Message

from node.runtime.clock import Clock
from tidemark.config import ServerConfig, parse_server_config
from tidemark.errors import RequestTimedOutError
from tidemark.v1 import controller_pb2 as pb

CLUSTER_ID = "8gSloHDwRxuSicFPSeS-4g"
WALL_START_MS = 1_400_000_000_000


def loop_clock() -> Clock:
    """A clock on the running loop's time; wall time starts at a fixed date."""
    loop = asyncio.get_running_loop()

    def mono_ms() -> int:
        return round(loop.time() * 1000)

    return Clock(lambda: WALL_START_MS + mono_ms(), mono_ms)


def broker_config(node_id: int = 1, **settings: str) -> ServerConfig:
    """Settings of a broker; keyword names have `_` for `.`."""
    values = {
        "process.roles": "broker",
        "node.id": str(node_id),
        "log.dirs": f"/unused/{node_id}",
        "listeners": f"PLAINTEXT://127.0.0.1:{19090 + node_id}",
        "controller.quorum.voters": "100@127.0.0.1:19000",
    }
    values |= {key.replace("_", "."): value for key, value in settings.items()}
    return parse_server_config(values)


class FakeController:
    """Answers calls by method name and keeps every request; `handlers` may be replaced at any
    time."""

    def __init__(self) -> None:
        self.requests: list[tuple[str, Any]] = []
        self.handlers: dict[str, Callable[[Any], Any]] = {}
        self.silent = False

    def seen(self, method: str) -> list[Any]:
        return [request for name, request in self.requests if name == method]

    async def call(self, method: str, request: Message, timeout_ms: int) -> Any:
        self.requests.append((method, request))
        if self.silent or method not in self.handlers:
            await asyncio.sleep(timeout_ms / 1000)
            raise RequestTimedOutError(f"{method}: no active controller answered")
        answer = self.handlers[method](request)
        return await answer if asyncio.iscoroutine(answer) else answer


def registering_controller(broker_epoch: int = 42) -> FakeController:
    """A controller that registers brokers and unfences those that ask for it."""
    controller = FakeController()
    controller.handlers["RegisterBroker"] = lambda _: pb.RegisterBrokerResponse(
        broker_epoch=broker_epoch
    )
    controller.handlers["BrokerHeartbeat"] = lambda request: pb.BrokerHeartbeatResponse(
        is_caught_up=True, is_fenced=request.want_fence, should_shut_down=request.want_shut_down
    )
    return controller


class FakeContext:
    """A unary call as its handler sees it; `end` is what gRPC does once the client has the
    answer.
    """

    def __init__(self) -> None:
        self._callbacks: list[Callable[[Any], None]] = []

    def add_done_callback(self, callback: Callable[[Any], None]) -> None:
        self._callbacks.append(callback)

    def end(self) -> None:
        for callback in self._callbacks:
            callback(self)
