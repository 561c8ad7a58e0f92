"""ACLs and users of SCRAM: what is written for a change, and what is refused."""

from __future__ import annotations

from typing import Any

import pytest

from tests.quorum.controller.scenario import Scenario, controller_config
from tidemark.errors import ErrorCode, SecurityDisabledError, UnsupportedVersionError
from tidemark.security import acls
from tidemark.security.acls import AclBinding, AclFilter
from tidemark.v1 import acl_pb2, admin_pb2

READS = AclBinding(acls.TOPIC, "t", acls.LITERAL, "User:a", "*", acls.READ, acls.ALLOW)
WRITES = READS._replace(operation=acls.WRITE)


def guarded(**settings: Any) -> Scenario:
    config = controller_config(authorizer_class_name="StandardAuthorizer", **settings)
    return Scenario(config=config)


def adding(*bindings: AclBinding) -> Any:
    return admin_pb2.CreateAclsRequest(creations=map(acls.to_wire, bindings))


def codes(answer: Any) -> list[int]:
    return [int(result.error_code) for result in answer.results]


def test_an_entry_is_written_once_and_removed_by_what_selects_it() -> None:
    s = guarded(super_users="User:ANONYMOUS")
    assert codes(s.ask(adding(READS, WRITES, READS))) == [0, 0, 0]
    assert len(s.written) == 2
    s.ask(adding(READS))
    assert s.written == []
    only = AclFilter(operation=acls.READ)
    wanted = admin_pb2.DeleteAclsRequest(filters=[acls.filter_to_wire(only)] * 2)
    first, second = s.ask(wanted).results
    assert list(map(acls.from_wire, first.matching)) == [READS]
    assert list(second.matching) == []
    assert [*s.image.acls.values()] == [WRITES]


@pytest.mark.parametrize(
    "change",
    [
        {"operation": acls.CLUSTER_ACTION},
        {"resource_type": acl_pb2.ACL_RESOURCE_ANY},
        {"resource_name": ""},
        {"pattern_type": acls.MATCH},
        {"principal": "alice"},
        {"principal": "User:"},
        {"host": ""},
        {"permission": acl_pb2.ACL_PERMISSION_ANY},
        {"resource_type": acls.CLUSTER, "operation": acls.ALTER},
    ],
    ids=str,
)
def test_an_entry_that_could_never_apply_is_refused_and_the_others_are_not(change: Any) -> None:
    s = guarded(super_users="User:ANONYMOUS")
    answer = s.ask(adding(READS._replace(**change), WRITES))
    assert codes(answer) == [int(ErrorCode.INVALID_REQUEST), 0]
    assert [*s.image.acls.values()] == [WRITES]


def test_entries_that_nothing_would_heed_are_refused() -> None:
    for request in (adding(READS), admin_pb2.DeleteAclsRequest()):
        with pytest.raises(SecurityDisabledError):
            Scenario().ask(request)


def test_a_level_without_records_of_them_refuses_both() -> None:
    s = Scenario(level=3)
    for request in (adding(READS), admin_pb2.AlterUserScramCredentialsRequest()):
        with pytest.raises(UnsupportedVersionError, match=r"need metadata.version 4, 3 is in"):
            s.ask(request)


def user(name: str, /, **change: Any) -> Any:
    fields = {
        "name": name,
        "mechanism": acl_pb2.SCRAM_SHA_512,
        "iterations": 4096,
        "salt": b"salt",
        "salted_password": bytes(64),
    }
    return admin_pb2.AlterUserScramCredentialsRequest.Upsertion(**(fields | change))


def test_users_are_set_and_removed() -> None:
    s = Scenario()
    request = admin_pb2.AlterUserScramCredentialsRequest
    assert codes(s.ask(request(upsertions=[user("a"), user("b")]))) == [0, 0]
    kept = s.image.scram_users["a"]
    assert (kept.salt, kept.iterations) == (b"salt", 4096)
    assert bytes(64) not in kept, "the salted password itself is not kept"
    gone = request.Deletion(name="a", mechanism=acl_pb2.SCRAM_SHA_512)
    answer = s.ask(request(deletions=[gone, request.Deletion(name="x", mechanism=2)]))
    assert codes(answer) == [0, int(ErrorCode.RESOURCE_NOT_FOUND)]
    assert [*s.image.scram_users] == ["b"]


@pytest.mark.parametrize(
    ("change", "code"),
    [
        ({"iterations": 4095}, ErrorCode.UNACCEPTABLE_CREDENTIAL),
        ({"iterations": 16385}, ErrorCode.UNACCEPTABLE_CREDENTIAL),
        ({"salt": b""}, ErrorCode.UNACCEPTABLE_CREDENTIAL),
        ({"salted_password": b"short"}, ErrorCode.UNACCEPTABLE_CREDENTIAL),
        ({"name": ""}, ErrorCode.UNACCEPTABLE_CREDENTIAL),
        ({"mechanism": acl_pb2.SCRAM_UNKNOWN}, ErrorCode.UNSUPPORTED_SASL_MECHANISM),
    ],
    ids=str,
)
def test_a_credential_that_is_not_acceptable_is_refused(change: Any, code: ErrorCode) -> None:
    s = Scenario()
    request = admin_pb2.AlterUserScramCredentialsRequest(upsertions=[user("a", **change)])
    assert codes(s.ask(request)) == [int(code)]
    assert dict(s.image.scram_users) == {}


def test_a_user_that_one_request_names_twice_stays_as_it_was() -> None:
    s = Scenario()
    twice = admin_pb2.AlterUserScramCredentialsRequest(upsertions=[user("a"), user("a")])
    assert codes(s.ask(twice)) == [int(ErrorCode.DUPLICATE_RESOURCE)] * 2
    assert dict(s.image.scram_users) == {}
