"""Descriptions of nodes that each gives of itself: certificates, failed tasks, the log's end."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Coroutine
from typing import Any, TypeVar

from google.protobuf.message import Message

from tidemark.client.metadata import MetadataCache
from tidemark.client.models import FailedTask, ListenerCertificate, NodeState
from tidemark.errors import ApiError, NetworkError
from tidemark.types import TopicPartition
from tidemark.v1 import admin_pb2

T = TypeVar("T")
R = TypeVar("R", bound=Message)

_TIMEOUT_MS = 10_000  # a node that does not answer is an answer, too


class AsyncNodeAdmin:
    """`AsyncAdmin.nodes`: about single nodes, brokers and controllers.

    A controller is asked at the first listener that it registered.
    """

    def __init__(
        self,
        ask: Callable[..., Coroutine[Any, Any, Any]],
        send: Callable[..., Coroutine[Any, Any, Any]],
        with_retries: Callable[..., Coroutine[Any, Any, Any]],
        metadata: MetadataCache,
    ) -> None:
        """`ask` any node, `send` to one, both of an admin client."""
        self._ask = ask
        self._send = send
        self._with_retries = with_retries
        self._metadata = metadata
        self.controllers: dict[int, str] = {}
        """Addresses of the controllers, as far as they were looked for."""

    async def describe(
        self, nodes: Collection[int] | None = None
    ) -> dict[int, NodeState | ApiError]:
        """State of each node's process that no metadata has; of all known nodes by default.

        A node that does not answer, or not to this client, has its error.
        """
        request, response = admin_pb2.DescribeNodeRequest(), admin_pb2.DescribeNodeResponse
        return await self._of_each(nodes, request, response, _state)

    async def logs(
        self, nodes: Collection[int] | None = None, *, max_lines: int = 0
    ) -> dict[int, list[str] | ApiError]:
        """The newest lines of each node's log, oldest first; 0: all that the node remembers.

        A node that does not answer, or not to this client, has its error.
        """
        request = admin_pb2.DescribeNodeLogRequest(max_lines=max_lines)
        response = admin_pb2.DescribeNodeLogResponse
        return await self._of_each(nodes, request, response, lambda answer: list(answer.lines))

    async def _of_each(
        self,
        nodes: Collection[int] | None,
        request: Message,
        response: type[R],
        decode: Callable[[R], T],
    ) -> dict[int, T | ApiError]:
        await self._with_retries(lambda _: self._metadata.refresh())
        await self._find_controllers()
        known = {*self._metadata.brokers, *self.controllers}

        async def of_node(node_id: int) -> T | ApiError:
            address = self._metadata.address(node_id) or self.controllers.get(node_id)
            if address is None:
                return NetworkError(f"node {node_id} is not alive, or not known")
            try:
                return decode(
                    await self._with_retries(
                        lambda _: self._send(address, request, response), _TIMEOUT_MS
                    )
                )
            except ApiError as error:
                return error

        ids = sorted(known if nodes is None else set(nodes))
        return dict(zip(ids, await asyncio.gather(*map(of_node, ids)), strict=True))

    async def _find_controllers(self) -> None:
        request, response = admin_pb2.DescribeFeaturesRequest(), admin_pb2.DescribeFeaturesResponse
        for node in (await self._ask(request, response)).nodes:
            if node.is_controller and node.listeners:
                one = node.listeners[0]
                self.controllers[node.node_id] = f"{one.host}:{one.port}"


class NodeAdmin:
    """`Admin.nodes`: the calls of `AsyncNodeAdmin`, each blocks until the answer is there."""

    def __init__(self, nodes: AsyncNodeAdmin, run: Callable[[Coroutine[Any, Any, Any]], Any]):
        self._nodes = nodes
        self._run = run

    def describe(self, nodes: Collection[int] | None = None) -> dict[int, NodeState | ApiError]:
        """See `AsyncNodeAdmin.describe`."""
        found: dict[int, NodeState | ApiError] = self._run(self._nodes.describe(nodes))
        return found

    def logs(
        self, nodes: Collection[int] | None = None, *, max_lines: int = 0
    ) -> dict[int, list[str] | ApiError]:
        """See `AsyncNodeAdmin.logs`."""
        found: dict[int, list[str] | ApiError] = self._run(
            self._nodes.logs(nodes, max_lines=max_lines)
        )
        return found


def _state(answer: admin_pb2.DescribeNodeResponse) -> NodeState:
    return NodeState(
        answer.node_id,
        answer.version,
        tuple(
            ListenerCertificate(c.listener, c.subject, c.not_after_ms, c.error_message)
            for c in answer.certificates
        ),
        tuple(
            FailedTask(
                t.task,
                TopicPartition(t.topic, t.partition_index),
                t.failures,
                t.since_ms,
                t.last_error,
            )
            for t in answer.failed_tasks
        ),
    )
