"""Whether a principal may do something, by the ACLs of the metadata log (KIP-801).

What denies goes before what allows. Super users may do everything. A resource that no entry covers
is everybody's only with allow.everyone.if.no.acl.found.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Protocol
from uuid import UUID

from tidemark.config.security import NodeSecurity
from tidemark.security import acls
from tidemark.security.acls import AclBinding

_VERDICTS_MAX = 100_000
_KEPT_NAME_MAX = 256  # characters; of a longer name, which a caller may make up, nothing is kept


class AclSource(Protocol):
    """Holder of the newest entries: a `MetadataImage`."""

    @property
    def acls(self) -> Mapping[UUID, AclBinding]: ...


class _Index:
    """Entries by type and name, so that a look-up reads only those that cover the name."""

    def __init__(self, bindings: Iterable[AclBinding]) -> None:
        self._literal: dict[tuple[int, str], list[AclBinding]] = {}
        self._prefixed: dict[tuple[int, str], list[AclBinding]] = {}
        for binding in bindings:
            where = self._prefixed if binding.pattern_type == acls.PREFIXED else self._literal
            where.setdefault((binding.resource_type, binding.resource_name), []).append(binding)
        self._lengths = sorted({len(prefix) for _, prefix in self._prefixed})

    def covering(self, resource_type: int, name: str) -> Iterator[AclBinding]:
        """The entries that apply to a resource."""
        yield from self._literal.get((resource_type, name), ())
        if name != acls.ANYTHING:
            yield from self._literal.get((resource_type, acls.ANYTHING), ())
        for length in self._lengths:
            if length > len(name):
                break
            yield from self._prefixed.get((resource_type, name[:length]), ())

    def of_type(self, resource_type: int) -> Iterator[AclBinding]:
        for where in (self._literal, self._prefixed):
            for (kind, _), found in where.items():
                if kind == resource_type:
                    yield from found


class Authorizer:
    """One per node. Verdicts are kept until the entries change."""

    def __init__(self, security: NodeSecurity) -> None:
        self._everyone = security.allow_everyone_if_no_acl_found
        self._super = security.super_principals
        self._source: Mapping[UUID, AclBinding] | None = None
        self._index = _Index(())
        self._verdicts: dict[tuple[str, str, int, int, str], bool] = {}

    def follow(self, source: AclSource) -> None:
        """Takes the entries of an image; costs nothing while they are the same."""
        if source.acls is not self._source:
            self._source = source.acls
            self._index = _Index(source.acls.values())
            self._verdicts.clear()

    def is_super(self, principal: str) -> bool:
        return principal in self._super

    def allows(
        self, principal: str, host: str, operation: int, resource_type: int, name: str
    ) -> bool:
        """Whether `principal`, which calls from the address `host`, may do `operation`."""
        if principal in self._super:
            return True
        key = (principal, host, operation, resource_type, name)
        verdict = self._verdicts.get(key)
        if verdict is None:
            if len(self._verdicts) >= _VERDICTS_MAX:
                self._verdicts.clear()
            covering = list(self._index.covering(resource_type, name))
            verdict = self._verdict(covering, principal, host, operation)
            if len(name) <= _KEPT_NAME_MAX:
                self._verdicts[key] = verdict
        return verdict

    def allows_any(self, principal: str, host: str, operation: int, resource_type: int) -> bool:
        """Whether the operation is allowed on some resource of the type (KIP-679)."""
        if principal in self._super:
            return True
        found = list(self._index.of_type(resource_type))
        everything = [
            b for b in found if (b.resource_name, b.pattern_type) == (acls.ANYTHING, acls.LITERAL)
        ]
        if _denies(everything, principal, host, operation):
            return False
        return _allows(found, principal, host, operation) or (self._everyone and not found)

    def _verdict(
        self, covering: list[AclBinding], principal: str, host: str, operation: int
    ) -> bool:
        if not covering:
            return self._everyone
        if _denies(covering, principal, host, operation):
            return False
        return _allows(covering, principal, host, operation)


def _concerns(binding: AclBinding, principal: str, host: str) -> bool:
    return binding.principal in (principal, acls.ANYBODY) and binding.host in (host, acls.ANYWHERE)


def _denies(covering: Iterable[AclBinding], principal: str, host: str, operation: int) -> bool:
    return any(
        b.permission == acls.DENY
        and b.operation in (operation, acls.ALL)
        and _concerns(b, principal, host)
        for b in covering
    )


def _allows(covering: Iterable[AclBinding], principal: str, host: str, operation: int) -> bool:
    implied = acls.IMPLIED.get(operation, frozenset())
    return any(
        b.permission == acls.ALLOW
        and (b.operation in (operation, acls.ALL) or b.operation in implied)
        and _concerns(b, principal, host)
        for b in covering
    )
