"""`tidemark quotas`: the requests it sends, and what it prints."""

from __future__ import annotations

import json

import pytest

from tests.cli.fake_admin import FakeAdmin, is_refusal
from tests.cli.test_operator_commands import admin as admin
from tests.cli.test_operator_commands import call
from tidemark.quotas.entities import QuotaEntity, QuotaFilter


def test_quotas_are_shown_by_entity(admin: FakeAdmin) -> None:
    admin.quotas = {
        QuotaEntity(None, ""): {"consumer_byte_rate": 1e6},
        QuotaEntity("alice", "etl"): {"request_percentage": 12.5, "producer_byte_rate": 5.0},
    }
    assert call("quotas", "describe").splitlines() == [
        "USER\tCLIENT ID\tQUOTA\tVALUE",
        "-\t<default>\tconsumer_byte_rate\t1000000",
        "alice\tetl\tproducer_byte_rate\t5",
        "alice\tetl\trequest_percentage\t12.5",
    ]
    assert json.loads(call("quotas", "describe", "--json")) == [
        {"client-id": None, "quotas": {"consumer_byte_rate": 1e6}},
        {
            "client-id": "etl",
            "user": "alice",
            "quotas": {"request_percentage": 12.5, "producer_byte_rate": 5.0},
        },
    ]
    assert admin.calls[-1] == ("describe_quotas", [], False)
    call("quotas", "describe", "--user", "alice", "--client-defaults", "--strict")
    filters = [QuotaFilter("user", "alice"), QuotaFilter("client-id", "")]
    assert admin.calls[-1] == ("describe_quotas", filters, True)


def test_quotas_are_set_and_removed(admin: FakeAdmin) -> None:
    alter = ["quotas", "alter", "--user", "alice", "--client-id", "etl"]
    changes = ["--set", "producer_byte_rate=1000", "--delete", "request_percentage"]
    told = "altered user 'alice' with client-id 'etl': producer_byte_rate=1000, "
    assert call(*alter, *changes) == told + "request_percentage removed\n"
    wanted = {QuotaEntity("alice", "etl"): {"producer_byte_rate": 1000, "request_percentage": None}}
    assert admin.calls == [("alter_quotas", wanted, False)]
    dry = ["quotas", "alter", "--user-defaults", "--set", "request_percentage=0.5", "--dry-run"]
    assert call(*dry) == "would alter the default user: request_percentage=0.5\n"
    assert admin.calls[-1] == ("alter_quotas", {QuotaEntity(""): {"request_percentage": 0.5}}, True)
    assert json.loads(call(*dry, "--json")) == {
        "dry_run": True,
        "user": None,
        "quotas": {"request_percentage": 0.5},
    }


@pytest.mark.parametrize(
    "wrong",
    [
        ["--set", "producer_byte_rate=1"],
        ["--user", "a"],
        ["--user", "a", "--user-defaults", "--set", "producer_byte_rate=1"],
        ["--user", "", "--set", "producer_byte_rate=1"],
        ["--user", "a", "--set", "producer_byte_rate"],
        ["--user", "a", "--set", "producer_byte_rate=much"],
        ["--user", "a", "--delete", "producer_byte_rate=1"],
        ["--user", "a", "--set", "x=1", "--delete", "x"],
    ],
)
def test_wrong_options_are_refused_before_anything_is_sent(
    admin: FakeAdmin, wrong: list[str]
) -> None:
    assert is_refusal(call("quotas", "alter", *wrong, exit_code=1))
    assert admin.calls == []
