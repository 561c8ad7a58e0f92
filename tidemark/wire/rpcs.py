"""The unary RPCs of a service, read from its protobuf descriptor.

Clients and servers take paths and message classes from here, so an RPC is written down once: in its
.proto file.
"""

from __future__ import annotations

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


def rpcs_of(service: ServiceDescriptor) -> tuple[Rpc, ...]:
    """The RPCs of `service` in the order of its .proto file."""
    return tuple(
        Rpc(
            method.name,
            f"/{service.full_name}/{method.name}",
            GetMessageClass(method.input_type),
            GetMessageClass(method.output_type),
        )
        for method in service.methods
    )


ADMIN: ServiceDescriptor = admin_pb2.DESCRIPTOR.services_by_name["Admin"]
CONTROLLER: ServiceDescriptor = controller_pb2.DESCRIPTOR.services_by_name["Controller"]
