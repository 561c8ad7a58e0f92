"""The guard of a listener: who may call which method at all, and whose word about others counts."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import grpc
import pytest

from quorum.access.audit import Audit
from quorum.access.guard import (
    FORWARDED_PRINCIPAL,
    Access,
    Authenticated,
    Guard,
    access_of_call,
)
from quorum.image import EMPTY_IMAGE
from tidemark.errors import SaslAuthenticationError

VOTE, TOPICS = "/tidemark.v1.Raft/Vote", "/tidemark.v1.Admin/ListTopics"
HEALTH = "/grpc.health.v1.Health/Check"


class Call:
    """The context of a call with some metadata."""

    def __init__(self, *metadata: tuple[str, str]) -> None:
        self._metadata = metadata

    def invocation_metadata(self) -> Any:
        return self._metadata

    def peer(self) -> str:
        return "ipv4:10.0.0.7:4711"

    async def abort(self, code: grpc.StatusCode, details: str) -> None:
        raise PermissionError(code.name, details)


def called(path: str, principal: str | None, *metadata: tuple[str, str]) -> Access:
    """The access with which a call reaches its handler. Raises PermissionError if it does not."""

    async def authenticate(_: Any) -> Authenticated:
        if principal is None:
            raise SaslAuthenticationError("no token")
        return Authenticated(principal)

    async def serve(_: Any, __: Any) -> Access:
        return access_of_call()

    async def story() -> Access:
        images = SimpleNamespace(image=EMPTY_IMAGE)
        guard = Guard(images, authenticate, None, Audit(), ["User:node"], knows_callers=True)
        handler = grpc.unary_unary_rpc_method_handler(serve)

        async def found(_: Any) -> Any:
            return handler

        guarded = await guard.intercept_service(found, SimpleNamespace(method=path))
        access: Access = await guarded.unary_unary(b"", Call(*metadata))
        return access

    return asyncio.run(story())


def test_methods_of_nodes_are_for_nodes() -> None:
    assert called(VOTE, "User:node").is_node
    with pytest.raises(PermissionError, match="PERMISSION_DENIED"):
        called(VOTE, "User:ann")


def test_a_method_that_declares_nothing_is_for_nobody() -> None:
    for who in ("User:node", "User:ann"):
        with pytest.raises(PermissionError, match="PERMISSION_DENIED"):
            called("/some.Service/Method", who)


def test_whoever_is_not_known_reaches_public_methods_alone() -> None:
    called(HEALTH, None)
    for path in (VOTE, TOPICS):
        with pytest.raises(PermissionError, match="UNAUTHENTICATED"):
            called(path, None)


def test_only_a_node_says_for_whom_it_calls() -> None:
    forwarded = (FORWARDED_PRINCIPAL, "User%3Aroot")
    assert called(TOPICS, "User:node", forwarded).principal == "User:root"
    assert called(TOPICS, "User:ann", forwarded).principal == "User:ann"
    assert called(TOPICS, "User:ann").host == "10.0.0.7"
