"""Statuses of gRPC as errors of a client: which of them are a matter of the network."""

from __future__ import annotations

import grpc
import pytest

from tidemark.client.connections import error_of_status
from tidemark.errors import (
    ApiError,
    BrokerNotAvailableError,
    MessageTooLargeError,
    NetworkError,
    RequestTimedOutError,
    UnknownServerError,
    UnsupportedVersionError,
)

CODE = grpc.StatusCode


@pytest.mark.parametrize(
    ("code", "details", "error"),
    [
        # As grpcio says them of nodes that were killed while a client wrote to them.
        (CODE.UNAVAILABLE, "Stream removed (Socket closed)", NetworkError),
        (CODE.UNAVAILABLE, "Stream removed (sendmsg: Broken pipe (32))", NetworkError),
        (CODE.INTERNAL, "Internal error from Core", NetworkError),
        (CODE.INTERNAL, "Received RST_STREAM with error code 2", NetworkError),
        (CODE.INTERNAL, "RST_STREAM (Received RST_STREAM with error code 1)", NetworkError),
        (CODE.UNKNOWN, "Stream removed", NetworkError),
        (CODE.CANCELLED, "Received RST_STREAM with error code 8", NetworkError),
        (CODE.DEADLINE_EXCEEDED, "no answer in 1 s", RequestTimedOutError),
        (CODE.UNIMPLEMENTED, "Method not found!", UnsupportedVersionError),
        (CODE.RESOURCE_EXHAUSTED, "Sent message larger than max (5 vs. 4)", MessageTooLargeError),
        (CODE.RESOURCE_EXHAUSTED, "too many calls", BrokerNotAvailableError),
        # Errors of a node's handler, and of whoever else may answer there.
        (CODE.UNKNOWN, "Unexpected <class 'RuntimeError'>: no such field", UnknownServerError),
        (CODE.INTERNAL, "a proxy's own trouble", UnknownServerError),
        (CODE.INVALID_ARGUMENT, "malformed message", UnknownServerError),
    ],
)
def test_a_call_that_broke_is_a_network_error_and_a_node_that_failed_is_not(
    code: grpc.StatusCode, details: str, error: type[ApiError]
) -> None:
    found = error_of_status(code, details, "127.0.0.1:1")
    assert type(found) is error
    assert str(found) == f"127.0.0.1:1: {details}"
