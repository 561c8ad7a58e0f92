"""The entity that a quota is for, the keys of quotas, and the quota that applies to a client.

An entity is a user, a client id, or a client id of a user. In place of a name stands DEFAULT for
all that have no quota of their own. The most specific quota applies, and a user's goes before that
of a client id (KIP-55). The quota of a user is shared by the user's clients. A default is granted
to each user or client id anew.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

from tidemark.errors import InvalidRequestError
from tidemark.v1 import common_pb2

USER = "user"
CLIENT_ID = "client-id"
DEFAULT = ""
"""Stands for the name of a default. No name is empty."""

PRODUCER_BYTE_RATE = "producer_byte_rate"
CONSUMER_BYTE_RATE = "consumer_byte_rate"
REQUEST_PERCENTAGE = "request_percentage"
KEYS: Mapping[str, type] = {
    PRODUCER_BYTE_RATE: int,
    CONSUMER_BYTE_RATE: int,
    REQUEST_PERCENTAGE: float,
}
"""Keys of quotas. Byte rates are whole numbers of bytes a second, for each broker.

request_percentage is the share of a broker's event loop that requests may take.
"""

_NOT_ENFORCED = ("controller_mutation_rate", "connection_creation_rate")


class QuotaEntity(NamedTuple):
    """A user, a client id, or both; None: not part of the entity, DEFAULT: its default."""

    user: str | None = None
    client_id: str | None = None

    def parts(self) -> list[tuple[str, str]]:
        """Entity types and names, as they are on the wire."""
        found = [(CLIENT_ID, self.client_id), (USER, self.user)]
        return [(kind, name) for kind, name in found if name is not None]

    def __str__(self) -> str:
        texts = [
            f"{kind} {name!r}" if name else f"the default {kind}"
            for kind, name in reversed(self.parts())
        ]
        return " with ".join(texts)


class QuotaFilter(NamedTuple):
    """Selects entities by one type; `name` may be DEFAULT, and None stands for any name."""

    entity_type: str
    name: str | None = None


def sort_key(entity: QuotaEntity) -> tuple[bool, str, bool, str]:
    """Orders entities; the same order on every node."""
    user, client_id = entity
    return (user is not None, user or "", client_id is not None, client_id or "")


def parts_to_wire(entity: QuotaEntity) -> list[common_pb2.QuotaEntityPart]:
    return [
        common_pb2.QuotaEntityPart(entity_type=kind, entity_name=name or None)
        for kind, name in entity.parts()
    ]


def entity_from_wire(parts: Sequence[common_pb2.QuotaEntityPart]) -> QuotaEntity:
    """The entity of a request or a record; raises InvalidRequestError."""
    names: dict[str, str] = {}
    for part in parts:
        kind = part.entity_type
        check_type(kind)
        if kind in names:
            raise InvalidRequestError(f"the entity has {kind} more than once")
        if part.HasField("entity_name") and not part.entity_name:
            raise InvalidRequestError(f"an empty {kind} has no quota; leave it out for the default")
        names[kind] = part.entity_name
    if not names:
        raise InvalidRequestError(f"an empty entity has no quota: name a {USER} or a {CLIENT_ID}")
    return QuotaEntity(names.get(USER), names.get(CLIENT_ID))


def check_type(kind: str) -> None:
    """Raises InvalidRequestError for an unknown type of entity."""
    if kind not in (USER, CLIENT_ID):
        raise InvalidRequestError(f"{kind!r} has no quotas: {USER} and {CLIENT_ID} have")


def check_quota(key: str, value: float) -> None:
    """Raises InvalidRequestError for an unknown key, or a value that it can not have."""
    kind = KEYS.get(key)
    if kind is None:
        known = ", ".join(KEYS)
        why = "is not enforced here" if key in _NOT_ENFORCED else "is no quota"
        raise InvalidRequestError(f"{key} {why}: use one of {known}")
    if not 0 < value < float("inf"):
        raise InvalidRequestError(f"{key}={value:g}: a quota is above 0; remove it for no limit")
    if kind is int and value != int(value):
        raise InvalidRequestError(f"{key}={value}: a whole number of bytes a second is needed")


class Applied(NamedTuple):
    """A quota that applies to a client: its value, and the entity that shares it."""

    value: float
    shared_by: QuotaEntity


def applying_to(
    user: str, client_id: str, quota_of: Callable[[QuotaEntity], float | None]
) -> Applied | None:
    """The quota of a client; None: no quota applies, so there is no limit.

    `quota_of` returns the quota that is set for exactly this entity.
    """
    both, alone, client = (
        QuotaEntity(user, client_id), QuotaEntity(user), QuotaEntity(None, client_id)
    )  # fmt: skip
    for entity, shared_by in (
        (both, both),
        (QuotaEntity(user, DEFAULT), both),
        (alone, alone),
        (QuotaEntity(DEFAULT, client_id), both),
        (QuotaEntity(DEFAULT, DEFAULT), both),
        (QuotaEntity(DEFAULT), alone),
        (client, client),
        (QuotaEntity(None, DEFAULT), client),
    ):
        value = quota_of(entity)
        if value is not None:
            return Applied(value, shared_by)
    return None
