"""The common part of the services of coordinators: throttling, sizes, errors as answers."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from functools import partial
from typing import Any, TypeVar

import grpc
import grpc.aio
from google.protobuf.descriptor import ServiceDescriptor
from google.protobuf.message import Message

from node.serving.requests import check_size
from node.serving.throttling import Throttling
from quorum.services.serving import Context, add_service, failure
from tidemark.errors import ApiError, InvalidRequestError, set_error
from tidemark.wire.rpcs import Rpc

M = TypeVar("M", bound=Any)
Method = Callable[[Any, Context, str], Awaitable[Message]]
"""Answers a request; gets the listener's name as well."""

_KEYS_MAX = 1_000  # of one request


def serve_methods(
    server: grpc.aio.Server,
    listener: str,
    service: ServiceDescriptor,
    methods: Mapping[str, Method],
    throttling: Throttling,
) -> None:
    """Serves a method for each RPC of `service` on a listener."""
    add_service(server, service, partial(_serve, listener, methods, throttling))


async def _serve(
    listener: str,
    methods: Mapping[str, Method],
    throttling: Throttling,
    rpc: Rpc,
    request: Any,
    context: Context,
) -> Message:
    await throttling.until_unmuted(context)
    try:
        check_size(request)
        return await methods[rpc.name](request, context, listener)
    except (ApiError, ValueError) as error:
        if "error_code" not in rpc.response.DESCRIPTOR.fields_by_name:
            await context.abort(grpc.StatusCode.INVALID_ARGUMENT, str(error))
        return failure(rpc.response, error)


def failed(answer: M, error: ApiError) -> M:
    """An answer's part, with what went wrong."""
    set_error(answer, error)
    return answer


def check_key_count(keys: Any, what: str) -> None:
    """Raises InvalidRequestError for more keys than one request may have."""
    if len(keys) > _KEYS_MAX:
        raise InvalidRequestError(f"{len(keys)} {what} in one request: {_KEYS_MAX} are allowed")
