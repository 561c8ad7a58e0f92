"""The metadata image as a tree of paths, and the differences of two trees. Pure.

    /brokers/4                     one registration
    /controllers/1                 one registration (from metadata.version 2 on)
    /topics/byName/flights/0       one partition; `id` and `name` beside it
    /topics/byId/<id>/0            the same by topic id
    /configs/topic/flights/...     own settings by name; /configs/broker/4, /configs/broker/default
    /clientQuotas/user=a,client-id=<default>/producer_byte_rate
    /features/metadata.version     finalized levels
    /producerIds/nextProducerId
    /quorum/...                    leader, epoch, voters, and where the image comes from

Branches are lazy: a cluster may have a million partitions. Leaves are JSON values with the field
names of Kafka's metadata records. Modelled on Kafka's metadata shell (KIP-631).
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from enum import IntEnum
from fnmatch import fnmatchcase
from typing import Any
from urllib.parse import quote, unquote
from uuid import UUID

from quorum.image import ConfigResource, ConfigResourceType, MetadataImage, TopicImage, diff
from tidemark.errors import ConfigError
from tidemark.quotas.entities import QuotaEntity, sort_key
from tidemark.security.scram import MECHANISM, Credential
from tidemark.types import uuid_from_text, uuid_to_text

_DEFAULT_ENTITY = "<default>"
DEFAULT_BROKER = "default"
"""Stands for the cluster's default among the brokers' settings."""

_GLOB = re.compile(r"[*?\[]")
# The source that an image was read from is not part of the cluster's state.
_QUORUM_COMPARED = ("leaderId", "leaderEpoch", "kraftVersion", "voters")


@dataclass(frozen=True, slots=True)
class MetadataView:
    """An image, and the state of the quorum from the same source (JSON values by name).

    `notes` are messages for people about skipped or possibly uncommitted data.
    """

    image: MetadataImage
    quorum: dict[str, Any] = dataclasses.field(default_factory=dict)
    notes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Leaf:
    """A value of the image.

    Its JSON is made on demand: a search by name among a million partitions needs none.
    """

    of: Any

    @property
    def value(self) -> Any:
        return json_value(self.of)


@dataclass(frozen=True, slots=True)
class Branch:
    """`names()` in the order to show; `child(name)` is None for an unknown name."""

    names: Callable[[], list[str]]
    child: Callable[[str], Leaf | Branch | None]


Node = Leaf | Branch


@dataclass(frozen=True, slots=True)
class Change:
    """A leaf that differs; `before` is None for an added one, `after` for a removed one."""

    path: str
    before: Any
    after: Any

    @property
    def kind(self) -> str:
        """added, removed or changed"""
        if self.before is None:
            return "added"
        return "removed" if self.after is None else "changed"

    def fields(self) -> list[tuple[str, Any, Any]]:
        """(name, before, after) of the differing fields of an object.

        For a value that is no object there is one entry without a name.
        """
        if not isinstance(self.before, dict) or not isinstance(self.after, dict):
            return [("", self.before, self.after)]
        return [
            (name, self.before.get(name), self.after.get(name))
            for name in {**self.before, **self.after}
            if self.before.get(name) != self.after.get(name)
        ]


# --- the tree -----------------------------------------------------------------------------------


def tree_of(view: MetadataView) -> Branch:
    """The root."""
    image = view.image
    return _fixed(
        {
            "acls": _acls(image),
            "brokers": _by_id(image.brokers),
            "clientQuotas": _client_quotas(image),
            "configs": _fixed(
                {
                    "broker": _configs(image, ConfigResourceType.BROKER),
                    "topic": _configs(image, ConfigResourceType.TOPIC),
                }
            ),
            "controllers": _by_id(image.controllers),
            "features": _values(image.features),
            "producerIds": _values({"nextProducerId": image.next_producer_id}),
            "quorum": _values(view.quorum, in_order=True),
            "scramUsers": _scram_users(image),
            "topics": _fixed(
                {
                    "byId": Branch(
                        lambda: sorted(uuid_to_text(t.topic_id) for t in image.topics),
                        lambda name: _topic_by_id(image, name),
                    ),
                    "byName": Branch(
                        image.topics.names,
                        lambda name: _topic(image.topics.get(name)),
                    ),
                }
            ),
        }
    )


def _fixed(children: Mapping[str, Node]) -> Branch:
    return Branch(lambda: list(children), children.get)


def _values(values: Mapping[str, Any], *, in_order: bool = False) -> Branch:
    def child(name: str) -> Node | None:
        return Leaf(values[name]) if name in values else None

    return Branch(lambda: list(values) if in_order else sorted(values), child)


def _sorted_ids(ids: Iterable[int]) -> list[str]:
    return [str(number) for number in sorted(ids)]


def _number(name: str) -> int | None:
    return int(name) if name.isascii() and name.isdigit() else None


def _by_id(registrations: Mapping[int, Any]) -> Branch:
    """Registrations of nodes; a name that is no id has no leaf."""

    def child(name: str) -> Node | None:
        number = _number(name)
        found = None if number is None else registrations.get(number)
        return None if found is None else Leaf(found)

    return Branch(lambda: _sorted_ids(registrations), child)


def _topic(topic: TopicImage | None) -> Branch | None:
    if topic is None:
        return None

    def child(name: str) -> Node | None:
        if name == "id":
            return Leaf(uuid_to_text(topic.topic_id))
        if name == "name":
            return Leaf(topic.name)
        number = _number(name)
        found = None if number is None else topic.partitions.get(number)
        return None if found is None else Leaf(found)

    return Branch(lambda: ["id", "name", *_sorted_ids(topic.partitions)], child)


def _topic_by_id(image: MetadataImage, name: str) -> Branch | None:
    try:
        return _topic(image.topics.by_id(uuid_from_text(name)))
    except ValueError:
        return None


def _configs(image: MetadataImage, kind: ConfigResourceType) -> Branch:
    def names() -> list[str]:
        found = [resource for resource in image.configs if resource.type == kind]
        return sorted(map(_config_name, found), key=lambda n: (n != DEFAULT_BROKER, len(n), n))

    def child(name: str) -> Node | None:
        default = kind is ConfigResourceType.BROKER and name == DEFAULT_BROKER
        found = image.configs.get(ConfigResource(kind, "" if default else name))
        return None if found is None else _values(found)

    return Branch(names, child)


def _client_quotas(image: MetadataImage) -> Branch:
    """Quotas by entity, named as in Kafka's shell but for names that a path can not have."""
    quotas = {_quota_name(entity): found for entity, found in image.client_quotas.items()}

    def child(name: str) -> Node | None:
        return _values(quotas[name]) if name in quotas else None

    return Branch(lambda: sorted(quotas), child)


def _acls(image: MetadataImage) -> Branch:
    def child(name: str) -> Node | None:
        found = image.acls.get(uuid_from_text(name))
        return None if found is None else Leaf(str(found))

    return Branch(lambda: sorted(map(uuid_to_text, image.acls)), child)


def _scram_users(image: MetadataImage) -> Branch:
    """Users by name; of their keys nothing is told."""

    def child(name: str) -> Node | None:
        found = image.scram_users.get(unquote(name))
        return None if found is None else _values(_scram_user(found))

    return Branch(lambda: sorted(quote(name, safe="") for name in image.scram_users), child)


def _scram_user(credential: Credential) -> dict[str, Any]:
    return {"mechanism": MECHANISM, "iterations": credential.iterations}


def _quota_name(entity: QuotaEntity) -> str:
    """`user=a,client-id=<default>`, where `%` stands before the hex of other characters."""
    parts = reversed(entity.parts())
    return ",".join(f"{kind}={quote(name, safe='') or _DEFAULT_ENTITY}" for kind, name in parts)


def _config_name(resource: ConfigResource) -> str:
    return resource.name or DEFAULT_BROKER


def json_value(value: Any) -> Any:
    """A value of the image as JSON, with fields in Kafka's spelling (`leaderEpoch`)."""
    if isinstance(value, UUID):
        return uuid_to_text(value)
    if isinstance(value, IntEnum):
        return value.name
    if dataclasses.is_dataclass(value):
        return {
            _camel(f.name): json_value(getattr(value, f.name)) for f in dataclasses.fields(value)
        }
    if isinstance(value, tuple) and hasattr(value, "_asdict"):
        return {_camel(name): json_value(item) for name, item in value._asdict().items()}
    if isinstance(value, Mapping):
        return {str(name): json_value(item) for name, item in value.items()}
    if isinstance(value, list | tuple | set | frozenset):
        return [json_value(item) for item in value]
    return value


def _camel(name: str) -> str:
    first, *rest = name.split("_")
    return first + "".join(part.capitalize() for part in rest)


# --- looking around -----------------------------------------------------------------------------


def find(root: Branch, path: str) -> list[tuple[str, Node]]:
    """Nodes that a path matches, each part of which may be a glob.

    Raises ConfigError if there is none.
    """
    found: list[tuple[str, Node]] = [("/", root)]
    for part in [part for part in path.split("/") if part not in ("", ".")]:
        found = [match for at, node in found for match in _matches(at, node, part)]
    if not found:
        raise ConfigError(f"there is no {path}: `ls` shows what is")
    return found


def _matches(at: str, node: Node, part: str) -> Iterator[tuple[str, Node]]:
    if isinstance(node, Leaf):
        return
    names = node.names() if _GLOB.search(part) else [part]
    for name in names:
        child = node.child(name)
        if child is not None and (name == part or fnmatchcase(name, part)):
            yield join(at, name), child


def join(path: str, name: str) -> str:
    """`name` below `path`."""
    return f"{path.rstrip('/')}/{name}"


def children(path: str, node: Node) -> Iterator[tuple[str, Node]]:
    """(path, node) of the children of a branch, in its order; empty for a leaf."""
    if isinstance(node, Branch):
        for name in node.names():
            child = node.child(name)
            if child is not None:
                yield join(path, name), child


def walk(path: str, node: Node, depth: int | None = None) -> Iterator[tuple[str, Node]]:
    """The node and everything below it, parents first, down to `depth` levels below it."""
    yield path, node
    if depth is None or depth > 0:
        for below, child in children(path, node):
            yield from walk(below, child, None if depth is None else depth - 1)


def value_of(node: Node) -> Any:
    """JSON value of a leaf; for a branch, the object of all its children."""
    if isinstance(node, Leaf):
        return node.value
    return {
        name: value_of(child) for name in node.names() if (child := node.child(name)) is not None
    }


# --- differences --------------------------------------------------------------------------------


def changes(before: MetadataView, after: MetadataView) -> Iterator[Change]:
    """Differences by path; topics appear under their names only."""
    old, new = before.image, after.image
    delta = diff(old, new)
    registrations: tuple[tuple[str, Iterable[int], Mapping[int, Any], Mapping[int, Any]], ...] = (
        ("brokers", delta.brokers_changed, old.brokers, new.brokers),
        ("controllers", delta.controllers_changed, old.controllers, new.controllers),
    )
    for kind, changed, earlier, later in registrations:
        for node_id in sorted(changed):
            was, now = earlier.get(node_id), later.get(node_id)
            yield Change(f"/{kind}/{node_id}", json_value(was), json_value(now))
    for resource in sorted(delta.configs_changed):
        kind = "topic" if resource.type == ConfigResourceType.TOPIC else "broker"
        base = f"/configs/{kind}/{_config_name(resource)}"
        settings: Mapping[str, str] = old.configs.get(resource, {})
        for name, value in sorted(delta.configs_changed[resource].items()):
            yield Change(f"{base}/{name}", settings.get(name), value)
    for entity in sorted(delta.client_quotas_changed, key=sort_key):
        quotas: Mapping[str, float] = old.client_quotas.get(entity, {})
        for name, quota in sorted(delta.client_quotas_changed[entity].items()):
            yield Change(f"/clientQuotas/{_quota_name(entity)}/{name}", quotas.get(name), quota)
    for acl_id in sorted(delta.acls_changed):
        texts = [str(found) if (found := one.acls.get(acl_id)) else None for one in (old, new)]
        yield Change(f"/acls/{uuid_to_text(acl_id)}", texts[0], texts[1])
    for name in sorted(delta.scram_users_changed):
        was_set, is_set = (
            _scram_user(user) if (user := one.scram_users.get(name)) else {} for one in (old, new)
        )
        for field in sorted({*was_set, *is_set}):
            if was_set.get(field) != is_set.get(field):
                path = f"/scramUsers/{quote(name, safe='')}/{field}"
                yield Change(path, was_set.get(field), is_set.get(field))
    for name, level in sorted(delta.features_changed.items()):
        yield Change(f"/features/{name}", old.features.get(name), level)
    if delta.next_producer_id is not None:
        yield Change("/producerIds/nextProducerId", old.next_producer_id, new.next_producer_id)
    for name in _QUORUM_COMPARED:
        was, now = before.quorum.get(name), after.quorum.get(name)
        if was is not None and now is not None and was != now:
            yield Change(f"/quorum/{name}", was, now)
    for gone in sorted(delta.topics_deleted.values(), key=lambda t: t.name):
        yield from _whole_topic(gone, removed=True)
    for topic in sorted(delta.topics_changed.values(), key=lambda t: t.name):
        if topic.before is None:
            yield from _whole_topic(topic.apply(), removed=False)
            continue
        for index in sorted(topic.partitions):
            yield Change(
                f"/topics/byName/{topic.name}/{index}",
                json_value(topic.partition_before(index)),
                json_value(topic.partitions[index]),
            )


def _whole_topic(topic: TopicImage, *, removed: bool) -> Iterator[Change]:
    base = f"/topics/byName/{topic.name}"
    leaves = [("id", uuid_to_text(topic.topic_id))]
    leaves += [(str(index), json_value(partition)) for index, partition in topic.ordered()]
    for name, value in leaves:
        before, after = (value, None) if removed else (None, value)
        yield Change(join(base, name), before, after)
