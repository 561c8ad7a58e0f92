"""The protocol of calls to the active controller, by method name."""

from __future__ import annotations

from typing import Any, Protocol

from google.protobuf.message import Message


class ControllerCaller(Protocol):
    """`quorum.services.controller_client.ControllerClient`, or a fake in tests."""

    async def call(self, method: str, request: Message, timeout_ms: int) -> Any:
        """Returns the active controller's answer. Raises RequestTimedOutError if none arrives in
        `timeout_ms`."""
        ...
