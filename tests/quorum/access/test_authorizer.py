"""Verdicts of the authorizer, as Kafka's StandardAuthorizer gives them (KIP-801, KIP-290)."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any
from uuid import UUID

import pytest

from quorum.access.authorizer import Authorizer
from quorum.access.principals import PrincipalMapping
from tidemark.config.security import NodeSecurity
from tidemark.errors import ConfigError
from tidemark.security import acls
from tidemark.security.acls import AclBinding

ALICE, BOB = "User:alice", "User:bob"


def entry(
    operation: int,
    principal: str = ALICE,
    name: str = "flights",
    *,
    permission: int = acls.ALLOW,
    pattern: int = acls.LITERAL,
    host: str = "*",
    kind: int = acls.TOPIC,
) -> AclBinding:
    return AclBinding(kind, name, pattern, principal, host, operation, permission)


def asked(*entries: AclBinding, **settings: Any) -> Authorizer:
    authorizer = Authorizer(NodeSecurity(**settings))
    source = {UUID(int=number): binding for number, binding in enumerate(entries)}
    authorizer.follow(SimpleNamespace(acls=source))
    return authorizer


def may(
    authorizer: Authorizer, operation: int, principal: str = ALICE, name: str = "flights"
) -> bool:
    return authorizer.allows(principal, "10.0.0.1", operation, acls.TOPIC, name)


def test_what_no_entry_allows_is_denied() -> None:
    assert not may(asked(), acls.READ)
    only = asked(entry(acls.READ))
    assert may(only, acls.READ)
    assert not may(only, acls.WRITE)
    assert not may(only, acls.READ, BOB)
    assert not may(only, acls.READ, name="flights2")


def test_what_denies_goes_before_what_allows() -> None:
    denied = entry(acls.READ, permission=acls.DENY)
    assert not may(asked(entry(acls.ALL), denied), acls.READ)
    assert may(asked(entry(acls.ALL), denied), acls.WRITE)
    everybody = entry(acls.ALL, acls.ANYBODY, "*", permission=acls.DENY)
    assert not may(asked(entry(acls.ALL), everybody), acls.WRITE)


def test_reading_writing_deleting_and_altering_allow_describing_and_nothing_else() -> None:
    for operation in (acls.READ, acls.WRITE, acls.DELETE, acls.ALTER):
        assert may(asked(entry(operation)), acls.DESCRIBE)
    assert may(asked(entry(acls.ALTER_CONFIGS)), acls.DESCRIBE_CONFIGS)
    assert not may(asked(entry(acls.DESCRIBE)), acls.READ)
    assert not may(asked(entry(acls.CREATE)), acls.DESCRIBE)
    denied = entry(acls.READ, permission=acls.DENY)
    assert may(asked(entry(acls.DESCRIBE), denied), acls.DESCRIBE)


def test_prefixes_and_stars_cover_names() -> None:
    prefixed = asked(entry(acls.READ, name="fli", pattern=acls.PREFIXED))
    assert may(prefixed, acls.READ)
    assert may(prefixed, acls.READ, name="fli")
    assert not may(prefixed, acls.READ, name="fl")
    assert may(asked(entry(acls.READ, name="*")), acls.READ, name="anything")
    assert not may(asked(entry(acls.READ, name="*", pattern=acls.PREFIXED)), acls.READ)
    assert may(asked(entry(acls.READ, acls.ANYBODY)), acls.READ, BOB)


def test_an_entry_for_a_host_holds_there() -> None:
    here = asked(entry(acls.READ, host="10.0.0.1"))
    assert may(here, acls.READ)
    assert not here.allows(ALICE, "10.0.0.2", acls.READ, acls.TOPIC, "flights")


def test_super_users_may_do_everything_and_others_nothing_more() -> None:
    denied = entry(acls.ALL, acls.ANYBODY, "*", permission=acls.DENY)
    authorizer = asked(denied, super_users=f"{ALICE};User:CN=ops,O=x")
    assert may(authorizer, acls.WRITE)
    assert may(authorizer, acls.WRITE, "User:CN=ops,O=x")
    assert not may(authorizer, acls.WRITE, BOB)


def test_a_resource_without_entries_is_everybodys_only_if_the_setting_says_so() -> None:
    open_ = asked(entry(acls.READ), allow_everyone_if_no_acl_found=True)
    assert may(open_, acls.WRITE, BOB, name="other")
    assert not may(open_, acls.READ, BOB)


def test_a_verdict_changes_with_the_entries() -> None:
    authorizer = asked(entry(acls.READ))
    assert may(authorizer, acls.READ)
    authorizer.follow(SimpleNamespace(acls={}))
    assert not may(authorizer, acls.READ)


def test_a_right_on_some_resource_of_a_type_is_found() -> None:
    some = asked(entry(acls.WRITE, name="fli", pattern=acls.PREFIXED))
    assert some.allows_any(ALICE, "h", acls.WRITE, acls.TOPIC)
    assert not some.allows_any(BOB, "h", acls.WRITE, acls.TOPIC)
    denied = entry(acls.WRITE, name="*", permission=acls.DENY)
    assert not asked(entry(acls.WRITE), denied).allows_any(ALICE, "h", acls.WRITE, acls.TOPIC)


DN = "CN=Kafka-1,OU=Ops,O=Acme"


@pytest.mark.parametrize(
    ("rules", "principal"),
    [
        ("DEFAULT", f"User:{DN}"),
        (r"RULE:^CN=([^,]+),.*$/$1/", "User:Kafka-1"),
        (r"RULE:^CN=([^,]+),.*$/$1/L", "User:kafka-1"),
        (r"RULE:^CN=([^,]+),OU=([^,]+),.*$/$2:$1/U,DEFAULT", "User:OPS:KAFKA-1"),
        (r"RULE:^O=.*$/x/,RULE:^CN=(.{5}).*$/$1/", "User:Kafka"),
        (r"RULE:^nothing$/x/", f"User:{DN}"),
        (r"RULE:CN/x/", f"User:{DN}"),
    ],
)
def test_the_first_rule_that_matches_the_whole_subject_names_the_principal(
    rules: str, principal: str
) -> None:
    assert PrincipalMapping(rules).principal_of(DN) == principal


@pytest.mark.parametrize("rules", ["CN=x", "RULE:(/x/", "RULE:a/$2/", "RULE:a/b", "DEFAULT;x"])
def test_a_wrong_rule_is_refused(rules: str) -> None:
    with pytest.raises(ConfigError, match=r"ssl\.principal\.mapping\.rules"):
        PrincipalMapping(rules)
