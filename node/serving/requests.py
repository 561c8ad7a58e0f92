"""Limits of the requests of clients, and their parsing: no request takes the loop for long.

A message of `socket.request.max.bytes` may hold millions of empty entries, each of which becomes an
object. So small calls and fetches have limits of their own; a produce carries records.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

import grpc
from google.protobuf.message import DecodeError, Message

from tidemark.errors import ApiError, InvalidRequestError
from tidemark.wire.produce import PARTITIONS_MAX

M = TypeVar("M", bound=Message)

REQUEST_BYTES_MAX = 8 << 20


def parse(kind: type[M], payload: bytes) -> M:
    """Parses a request without records. Raises InvalidRequestError."""
    if len(payload) > REQUEST_BYTES_MAX:
        raise InvalidRequestError(
            f"{kind.DESCRIPTOR.name} of {len(payload)} bytes: {REQUEST_BYTES_MAX} are allowed; "
            "send several"
        )
    try:
        request = kind.FromString(payload)
    except DecodeError as error:
        raise InvalidRequestError(f"no {kind.DESCRIPTOR.name}: {error}") from None
    check_count(len(getattr(request, "partitions", ())))
    return request


def check_size(request: Message) -> None:
    """Raises InvalidRequestError for a request of too many bytes, which gRPC has parsed."""
    size_bytes = request.ByteSize()
    if size_bytes > REQUEST_BYTES_MAX:
        raise InvalidRequestError(
            f"{request.DESCRIPTOR.name} of {size_bytes} bytes: {REQUEST_BYTES_MAX} are allowed;"
            " send several"
        )


def check_count(partitions: int) -> None:
    """Raises InvalidRequestError if a request or session has too many partitions."""
    if partitions > PARTITIONS_MAX:
        raise InvalidRequestError(
            f"{partitions} partitions in one request: {PARTITIONS_MAX} are allowed; send several"
        )


def parsed(method: Callable[[M, Any], Awaitable[Any]], kind: type[M]) -> Callable[..., Any]:
    """A unary method that gets bytes; a wrong request ends with INVALID_ARGUMENT."""

    async def call(payload: bytes, context: Any) -> Any:
        try:
            request = parse(kind, payload)
        except ApiError as error:
            await context.abort(grpc.StatusCode.INVALID_ARGUMENT, str(error))
            raise
        return await method(request, context)

    return call
