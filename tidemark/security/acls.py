"""Access control entries as Kafka has them (KIP-11, KIP-290): bindings, filters, their names.

A binding allows or denies a principal an operation on what a pattern names. `User:*` is each
principal, the host `*` each host, and the literal name `*` each resource.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from tidemark.errors import InvalidRequestError
from tidemark.v1 import acl_pb2 as pb
from tidemark.v1 import admin_pb2

TOPIC, GROUP = pb.ACL_RESOURCE_TOPIC, pb.ACL_RESOURCE_GROUP
CLUSTER, TRANSACTIONAL_ID = pb.ACL_RESOURCE_CLUSTER, pb.ACL_RESOURCE_TRANSACTIONAL_ID
CLUSTER_NAME = "kafka-cluster"
LITERAL, PREFIXED = pb.ACL_PATTERN_LITERAL, pb.ACL_PATTERN_PREFIXED
MATCH = pb.ACL_PATTERN_MATCH
ALLOW, DENY = pb.ACL_PERMISSION_ALLOW, pb.ACL_PERMISSION_DENY
ALL = pb.ACL_OPERATION_ALL
READ, WRITE, CREATE = pb.ACL_OPERATION_READ, pb.ACL_OPERATION_WRITE, pb.ACL_OPERATION_CREATE
DELETE, ALTER, DESCRIBE = (
    pb.ACL_OPERATION_DELETE,
    pb.ACL_OPERATION_ALTER,
    pb.ACL_OPERATION_DESCRIBE,
)
CLUSTER_ACTION = pb.ACL_OPERATION_CLUSTER_ACTION
DESCRIBE_CONFIGS = pb.ACL_OPERATION_DESCRIBE_CONFIGS
ALTER_CONFIGS = pb.ACL_OPERATION_ALTER_CONFIGS
IDEMPOTENT_WRITE = pb.ACL_OPERATION_IDEMPOTENT_WRITE
TWO_PHASE_COMMIT = pb.ACL_OPERATION_TWO_PHASE_COMMIT

ANYBODY, ANYWHERE, ANYTHING = "User:*", "*", "*"
ANONYMOUS = "User:ANONYMOUS"

IMPLIED: Mapping[int, frozenset[int]] = {
    DESCRIBE: frozenset({READ, WRITE, DELETE, ALTER}),
    DESCRIBE_CONFIGS: frozenset({ALTER_CONFIGS}),
}
"""Operations that allow another one as well."""

_OF_RESOURCE: Mapping[int, frozenset[int]] = {
    TOPIC: frozenset(
        {READ, WRITE, CREATE, DELETE, ALTER, DESCRIBE, DESCRIBE_CONFIGS, ALTER_CONFIGS, ALL}
    ),
    GROUP: frozenset({READ, DESCRIBE, DELETE, DESCRIBE_CONFIGS, ALTER_CONFIGS, ALL}),
    CLUSTER: frozenset(
        {
            CREATE,
            ALTER,
            DESCRIBE,
            CLUSTER_ACTION,
            DESCRIBE_CONFIGS,
            ALTER_CONFIGS,
            IDEMPOTENT_WRITE,
            ALL,
        }
    ),
    TRANSACTIONAL_ID: frozenset({DESCRIBE, WRITE, TWO_PHASE_COMMIT, ALL}),
}
"""The operations that a resource has."""

RESOURCE_TYPES = tuple(_OF_RESOURCE)


class AclBinding(NamedTuple):
    """One entry; the numbers are those of acl.proto."""

    resource_type: int
    resource_name: str
    pattern_type: int
    principal: str
    host: str
    operation: int
    permission: int

    def applies_to(self, name: str) -> bool:
        """Whether the pattern covers a resource of its type with this name."""
        if self.pattern_type == PREFIXED:
            return name.startswith(self.resource_name)
        return self.resource_name in (name, ANYTHING)

    def __str__(self) -> str:
        verb = "allows" if self.permission == ALLOW else "denies"
        return (
            f"{verb} {self.principal} from {self.host} {operation_name(self.operation)} on"
            f" {resource_type_name(self.resource_type)}"
            f" {'prefix ' if self.pattern_type == PREFIXED else ''}{self.resource_name}"
        )


class AclFilter(NamedTuple):
    """Selects bindings; None and the number of ANY select each."""

    resource_type: int = pb.ACL_RESOURCE_ANY
    resource_name: str | None = None
    pattern_type: int = pb.ACL_PATTERN_ANY
    principal: str | None = None
    host: str | None = None
    operation: int = pb.ACL_OPERATION_ANY
    permission: int = pb.ACL_PERMISSION_ANY

    def selects(self, binding: AclBinding) -> bool:
        return (
            self.resource_type in (pb.ACL_RESOURCE_ANY, binding.resource_type)
            and self._selects_pattern(binding)
            and self.principal in (None, binding.principal)
            and self.host in (None, binding.host)
            and self.operation in (pb.ACL_OPERATION_ANY, binding.operation)
            and self.permission in (pb.ACL_PERMISSION_ANY, binding.permission)
        )

    def _selects_pattern(self, binding: AclBinding) -> bool:
        if self.pattern_type == MATCH:
            return self.resource_name is None or binding.applies_to(self.resource_name)
        return self.pattern_type in (pb.ACL_PATTERN_ANY, binding.pattern_type) and (
            self.resource_name in (None, binding.resource_name)
        )


def resource_type_name(number: int) -> str:
    """`topic`, `group`, `cluster` or `transactional-id`."""
    return _short(pb.AclResourceType.Name(number), "ACL_RESOURCE_")  # type: ignore[arg-type]


def operation_name(number: int) -> str:
    """`read`, `write`, ..."""
    return _short(pb.AclOperation.Name(number), "ACL_OPERATION_")  # type: ignore[arg-type]


def _short(name: str, prefix: str) -> str:
    return name.removeprefix(prefix).lower().replace("_", "-")


def check(binding: AclBinding) -> None:
    """Raises InvalidRequestError for a binding that could never apply, or that is a filter."""
    operations = _OF_RESOURCE.get(binding.resource_type)
    if operations is None:
        raise InvalidRequestError("the resource is none of topic, group, cluster, transactional-id")
    if binding.operation not in operations:
        known = ", ".join(sorted(map(operation_name, operations)))
        kind = resource_type_name(binding.resource_type)
        raise InvalidRequestError(f"a {kind} has the operations {known}")
    if not binding.resource_name:
        raise InvalidRequestError("the resource has no name; * is each")
    if binding.pattern_type not in (LITERAL, PREFIXED):
        raise InvalidRequestError("the pattern is neither literal nor prefixed")
    if binding.resource_type == CLUSTER and binding.resource_name not in (CLUSTER_NAME, ANYTHING):
        raise InvalidRequestError(f"the cluster's name as a resource is {CLUSTER_NAME}")
    if binding.permission not in (ALLOW, DENY):
        raise InvalidRequestError("the permission is neither allow nor deny")
    kind, colon, name = binding.principal.partition(":")
    if kind != "User" or not colon or not name:
        raise InvalidRequestError(
            f"the principal {binding.principal!r} is not User:name; User:* is each"
        )
    if not binding.host:
        raise InvalidRequestError("the host is empty; * is each")


def from_wire(message: pb.AclBinding) -> AclBinding:
    return AclBinding(
        message.resource_type,
        message.resource_name,
        message.pattern_type,
        message.principal,
        message.host,
        message.operation,
        message.permission,
    )


def to_wire(binding: AclBinding) -> pb.AclBinding:
    return pb.AclBinding(
        resource_type=binding.resource_type,  # type: ignore[arg-type]
        resource_name=binding.resource_name,
        pattern_type=binding.pattern_type,  # type: ignore[arg-type]
        principal=binding.principal,
        host=binding.host,
        operation=binding.operation,  # type: ignore[arg-type]
        permission=binding.permission,  # type: ignore[arg-type]
    )


def filter_from_wire(message: admin_pb2.AclFilter) -> AclFilter:
    """Raises InvalidRequestError for an enum that was not set."""
    if not all(
        (message.resource_type, message.pattern_type, message.operation, message.permission)
    ):
        raise InvalidRequestError("a filter names its enums; ANY selects each")
    return AclFilter(
        message.resource_type,
        message.resource_name if message.HasField("resource_name") else None,
        message.pattern_type,
        message.principal if message.HasField("principal") else None,
        message.host if message.HasField("host") else None,
        message.operation,
        message.permission,
    )


def filter_to_wire(chosen: AclFilter) -> admin_pb2.AclFilter:
    return admin_pb2.AclFilter(
        resource_type=chosen.resource_type,  # type: ignore[arg-type]
        resource_name=chosen.resource_name,
        pattern_type=chosen.pattern_type,  # type: ignore[arg-type]
        principal=chosen.principal,
        host=chosen.host,
        operation=chosen.operation,  # type: ignore[arg-type]
        permission=chosen.permission,  # type: ignore[arg-type]
    )
