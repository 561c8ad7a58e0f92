"""Partitions that may not be written or read are taken out, and answered with own errors."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any
from uuid import UUID

from node.serving.access import deny_fetch, deny_produce
from node.serving.fetch_session import FetchPartition
from quorum.access.audit import Audit
from quorum.access.authorizer import Authorizer
from quorum.access.guard import Access
from tidemark.config.security import NodeSecurity
from tidemark.errors import ErrorCode
from tidemark.security import acls
from tidemark.security.acls import AclBinding
from tidemark.wire import PartitionProduceData, ProduceRequest, decode_fetch_response

KNOWN, STRANGE = UUID(int=1, version=4).bytes, UUID(int=2, version=4).bytes


def access(*allowed: tuple[int, int, str]) -> Access:
    entries = {
        UUID(int=n): AclBinding(kind, name, acls.LITERAL, "User:ann", "*", operation, acls.ALLOW)
        for n, (operation, kind, name) in enumerate(allowed)
    }

    def by_id(topic_id: UUID) -> Any:
        return SimpleNamespace(name="b") if topic_id.bytes == KNOWN else None

    image = SimpleNamespace(acls=entries, topics=SimpleNamespace(by_id=by_id))
    guard: Any = SimpleNamespace(
        images=SimpleNamespace(image=image),
        authorizer=Authorizer(NodeSecurity()),
        audit=Audit(),
    )
    return Access("User:ann", "h", guard=guard)


def produce(transactional_id: str = "") -> ProduceRequest:
    data = [PartitionProduceData("a", 0), PartitionProduceData("", 1, topic_id=KNOWN)]
    return ProduceRequest(partition_data=data, transactional_id=transactional_id)


def test_partitions_that_may_not_be_written_have_errors_and_the_others_are_left() -> None:
    request = produce()
    (denied,) = deny_produce(access((acls.WRITE, acls.TOPIC, "a")), request)
    assert [item.topic for item in request.partition_data] == ["a"]
    assert (denied.topic, denied.topic_id, denied.index) == ("", KNOWN, 1)
    assert denied.error_code == ErrorCode.TOPIC_AUTHORIZATION_FAILED
    assert deny_produce(Access(), produce()) == []


def test_without_a_right_on_its_transactional_id_nothing_of_a_request_is_written() -> None:
    both = [(acls.WRITE, acls.TOPIC, "a"), (acls.WRITE, acls.TOPIC, "b")]
    request = produce("t")
    denied = deny_produce(access(*both), request)
    assert request.partition_data == []
    codes = {int(result.error_code) for result in denied}
    assert codes == {int(ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED)}
    request = produce("t")
    assert deny_produce(access(*both, (acls.WRITE, acls.TRANSACTIONAL_ID, "t")), request) == []


def test_partitions_that_may_not_be_read_are_answered_apart_and_unknown_ids_are_left() -> None:
    wanted = [
        FetchPartition("a", 0, 0, 1),
        FetchPartition("", 1, 0, 1, topic_id=KNOWN),
        FetchPartition("", 2, 0, 1, topic_id=STRANGE),
    ]
    allowed, encoded = deny_fetch(access((acls.READ, acls.TOPIC, "b")), wanted)
    assert allowed == wanted[1:]
    (denied,) = decode_fetch_response(encoded).responses
    assert (denied.topic, denied.partition_index, denied.error_code) == ("a", 0, 29)
