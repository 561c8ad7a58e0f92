"""The one thing the parts of a broker need of the controller's client: a call by method name."""

from __future__ import annotations

from typing import Any, Protocol

from google.protobuf.message import Message


class ControllerCaller(Protocol):
    """`quorum.services.controller_client.ControllerClient`, or a fake in tests."""

    async def call(self, method: str, request: Message, timeout_ms: int) -> Any:
        """The active controller's answer; raises RequestTimedOutError when none answers in time."""
        ...
