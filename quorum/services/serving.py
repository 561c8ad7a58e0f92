"""Services on a gRPC server: handlers made from a service's descriptor, errors as answers."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

import grpc
import grpc.aio
from google.protobuf.descriptor import ServiceDescriptor
from google.protobuf.message import Message

from tidemark.errors import ApiError, code_of
from tidemark.wire.rpcs import Rpc, rpcs_of

logger = logging.getLogger(__name__)

Context = grpc.aio.ServicerContext[Any, Any] | Any
Serve = Callable[[Rpc, Any, Context], Awaitable[Message]]
"""Answers a request of an RPC."""

R = TypeVar("R", bound=Message)


def add_service(server: grpc.aio.Server, service: ServiceDescriptor, serve: Serve) -> None:
    """Registers `serve` for every RPC of `service`."""
    handlers = {rpc.name: _handler(rpc, serve) for rpc in rpcs_of(service)}
    server.add_generic_rpc_handlers(
        (grpc.method_handlers_generic_handler(service.full_name, handlers),)
    )
    # As generated code does: gRPC's core dispatches registered methods itself.
    server.add_registered_method_handlers(  # type: ignore[attr-defined]  # not in the stubs
        service.full_name, handlers
    )


def _handler(rpc: Rpc, serve: Serve) -> Any:
    async def answer(request: Message, context: Context) -> Message:
        return await serve(rpc, request, context)

    return grpc.unary_unary_rpc_method_handler(
        answer,
        request_deserializer=rpc.request.FromString,
        response_serializer=rpc.response.SerializeToString,
    )


def failure(response: type[R], error: BaseException) -> R:
    """An answer that contains only the error."""
    if not isinstance(error, ApiError):
        logger.error("a request failed", exc_info=error)
    return response(error_code=int(code_of(error)), error_message=str(error))


async def answered(response: type[R], work: Awaitable[R]) -> R:
    """Returns the result of `work`, or its error as an answer; cancellation is raised."""
    try:
        return await work
    except asyncio.CancelledError:
        raise
    except Exception as error:
        return failure(response, error)
