"""Applies the rules of an RPC to its request and its answer (pure).

What is denied is taken out of the request, and gets an error of its own in the answer. If nothing
is left, the handler is not asked: an empty list often means everything.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Protocol, TypeVar

from google.protobuf.message import Message

from quorum.access import rules
from tidemark.errors import ApiError, ErrorCode, error_for, set_error
from tidemark.security import acls

M = TypeVar("M", bound=Message)
Change = Callable[[Any], None]


class Asking(Protocol):
    """The caller."""

    @property
    def is_node(self) -> bool: ...
    def allows(self, operation: int, resource_type: int, name: str) -> bool: ...


class Judgement:
    """`request` is what may be asked of the handler; None: nothing."""

    def __init__(self, request: Message | None) -> None:
        self.request = request
        self.changes: list[Change] = []

    def answered(self, answer: M) -> M:
        """The answer, with the errors of what was denied and without what is not shown."""
        for change in self.changes:
            change(answer)
        return answer


def refused(error: ApiError) -> Judgement:
    """The whole request is refused."""
    verdict = Judgement(None)

    def change(answer: Any) -> None:
        set_error(answer, error)

    verdict.changes.append(change)
    return verdict


def judged(parts: Sequence[rules.Rule], asked: rules.CheckedRequest, access: Asking) -> Judgement:
    """The verdict on a request. Raises ApiError where it is refused as a whole."""
    verdict = Judgement(asked.request)
    for rule in parts:
        if isinstance(rule, rules.Whole):
            _check_whole(rule, asked, access)
        elif isinstance(rule, rules.Shown):
            verdict.changes.append(_showing(rule, access))
        elif isinstance(rule, rules.OffsetsShown):
            verdict.changes.append(_showing_offsets(asked.request, access))
        elif isinstance(rule, rules.GroupsShown):
            verdict.changes.append(_showing_groups(asked, access))
        elif isinstance(rule, rules.TransactionsShown):
            verdict.changes.append(_showing_transactions(access))
        elif not (rule.nodes and access.is_node):
            _take_out(rule, asked, access, verdict)
    return verdict


def denial(resource_type: int, name: str) -> ApiError:
    """The error of a denied resource."""
    kind = acls.resource_type_name(resource_type)
    text = f"not authorised for this operation on the {kind} {name}: it needs an ACL"
    return error_for(rules.DENIED[resource_type], text)


def _check_whole(rule: rules.Whole, asked: rules.CheckedRequest, access: Asking) -> None:
    for operation, resource_type, name in rule.needed(asked.request, asked):
        if not access.allows(operation, resource_type, name):
            raise denial(resource_type, name)


def _take_out(
    rule: rules.Each, asked: rules.CheckedRequest, access: Asking, verdict: Judgement
) -> None:
    """Takes denied items out of the request, which is copied then."""
    denied: list[tuple[int, Any, ApiError]] = []
    items = _field(asked.request, rule.items)
    for index, item in enumerate(items):
        needed = rule.needed(item, asked)
        if needed and not any(access.allows(*one) for one in needed):
            denied.append((index, item, denial(*needed[-1][1:])))
    if not denied:
        return
    for _, item, error in denied:
        verdict.changes.append(_refusing(rule, item, error))
    if len(denied) == len(items):
        verdict.request = None
        return
    if verdict.request is None:
        return
    left = type(asked.request)()
    left.CopyFrom(verdict.request)
    for index, _, _ in reversed(denied):
        del _field(left, rule.items)[index]
    verdict.request = left


def _field(message: Any, path: str) -> Any:
    for name in path.split("."):
        message = getattr(message, name)
    return message


def _showing(rule: rules.Shown, access: Asking) -> Change:
    def change(answer: Any) -> None:
        entries = getattr(answer, rule.answers)
        for index in range(len(entries) - 1, -1, -1):
            entry = entries[index]
            if getattr(entry, "error_code", ErrorCode.NONE) != ErrorCode.NONE:
                continue  # it was asked for by name
            if not access.allows(rule.operation, rule.resource_type, getattr(entry, rule.name)):
                del entries[index]

    return change


def _showing_offsets(request: Any, access: Asking) -> Change:
    named = {(group.group_id, topic.name) for group in request.groups for topic in group.topics}

    def change(answer: Any) -> None:
        for group in answer.groups:
            for index in range(len(group.topics) - 1, -1, -1):
                name = group.topics[index].name
                if access.allows(acls.DESCRIBE, acls.TOPIC, name):
                    continue
                numbers = [one.partition_index for one in group.topics[index].partitions]
                del group.topics[index]
                if (group.group_id, name) not in named:
                    continue
                entry, error = group.topics.add(name=name), denial(acls.TOPIC, name)
                for number in numbers:
                    _set_error(_added_partition(entry, number), error)
                    entry.partitions[-1].committed_offset = -1

    return change


def _showing_groups(asked: rules.CheckedRequest, access: Asking) -> Change:
    def names_of(member: Any) -> set[str]:
        found = set(member.subscribed_topic_names)
        for assigned in (member.assignment, member.target_assignment):
            ids = (topic.topic_id for topic in assigned.topic_partitions)
            found.update(name for one in ids if (name := asked.topic_name(one)) is not None)
        return found

    def change(answer: Any) -> None:
        for group in answer.groups:
            names = set[str]().union(*map(names_of, group.members))
            hidden = [n for n in names if not access.allows(acls.DESCRIBE, acls.TOPIC, n)]
            if not hidden:
                continue
            group_id = group.group_id
            group.Clear()
            group.group_id = group_id
            text = "a member reads topics that may not be described"  # and that are not told
            _set_error(group, error_for(rules.DENIED[acls.TOPIC], text))

    return change


def _showing_transactions(access: Asking) -> Change:
    def change(answer: Any) -> None:
        for transaction in answer.transactions:
            for index in range(len(transaction.topics) - 1, -1, -1):
                name = transaction.topics[index].name
                if not access.allows(acls.DESCRIBE, acls.TOPIC, name):
                    del transaction.topics[index]

    return change


def _refusing(rule: rules.Each, item: Any, error: ApiError) -> Change:
    def change(answer: Any) -> None:
        entry = getattr(answer, rule.answers).add()
        if isinstance(item, str):
            setattr(entry, rule.key, item)
        else:
            _copy_shared(item, entry)
        _set_error(entry, error)
        partitions = getattr(item, "partitions", ())
        if "error_code" not in entry.DESCRIPTOR.fields_by_name:
            for one in partitions:
                _set_error(_added_partition(entry, one), error)

    return change


def _added_partition(entry: Any, partition: Any) -> Any:
    index = partition if isinstance(partition, int) else partition.partition_index
    return entry.partitions.add(partition_index=index)


def _copy_shared(item: Any, entry: Any) -> None:
    """Copies the singular fields that both messages have, such as topic and partition_index."""
    for field, value in item.ListFields():
        other = entry.DESCRIPTOR.fields_by_name.get(field.name)
        if other is None or other.is_repeated or other.type != field.type:
            continue
        if field.message_type is None:
            setattr(entry, field.name, value)
        elif other.message_type is field.message_type:
            getattr(entry, field.name).CopyFrom(value)


def _set_error(entry: Any, error: ApiError) -> None:
    fields = entry.DESCRIPTOR.fields_by_name
    if "error_code" in fields:
        entry.error_code = int(error.code)
    if "error_message" in fields:
        entry.error_message = str(error)
