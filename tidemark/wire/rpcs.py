"""The unary RPCs of a service, read from its protobuf descriptor.

Clients and servers take paths and message classes from here, so an RPC is written down once: in its
.proto file.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from google.protobuf.descriptor import ServiceDescriptor
from google.protobuf.message import Message
from google.protobuf.message_factory import GetMessageClass

from tidemark.v1 import admin_pb2, controller_pb2


class Rpc(NamedTuple):
    """One RPC: `path` is its HTTP/2 path, e.g. "/tidemark.v1.Admin/CreateTopics"."""

    name: str
    path: str
    request: type[Message]
    response: type[Message]
    is_stream: bool


def rpcs_of(service: ServiceDescriptor) -> tuple[Rpc, ...]:
    """The RPCs of `service` in the order of its .proto file."""
    return tuple(
        Rpc(
            method.name,
            f"/{service.full_name}/{method.name}",
            GetMessageClass(method.input_type),
            GetMessageClass(method.output_type),
            method.client_streaming,
        )
        for method in service.methods
    )


ADMIN: ServiceDescriptor = admin_pb2.DESCRIPTOR.services_by_name["Admin"]
CONTROLLER: ServiceDescriptor = controller_pb2.DESCRIPTOR.services_by_name["Controller"]


def every_rpc() -> Iterator[Rpc]:
    """The RPCs of all services of proto/."""
    from tidemark.v1 import authentication_pb2, group_pb2, log_pb2, raft_pb2, transaction_pb2

    files = (admin_pb2, controller_pb2, authentication_pb2, group_pb2, log_pb2, raft_pb2)
    for file in (*files, transaction_pb2):
        for service in file.DESCRIPTOR.services_by_name.values():
            yield from rpcs_of(service)
