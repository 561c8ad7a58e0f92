"""Client quotas: what is written for a change, refused, described, and kept by snapshots."""

from __future__ import annotations

from typing import Any

import pytest

from quorum.image import EMPTY_IMAGE, MetadataDelta, diff
from quorum.image.image import METADATA_VERSION
from quorum.services.quota_answers import describe_client_quotas
from tests.quorum.controller.scenario import Scenario
from tidemark.errors import ErrorCode, InvalidRequestError, UnsupportedVersionError
from tidemark.quotas.entities import QuotaEntity, entity_from_wire, parts_to_wire
from tidemark.v1 import admin_pb2, common_pb2

ALICE, BOTH, CLIENTS = QuotaEntity("alice"), QuotaEntity("alice", "etl"), QuotaEntity(None, "")
Describe = admin_pb2.DescribeClientQuotasRequest
Part = common_pb2.QuotaEntityPart


def altering(*entries: tuple[QuotaEntity, dict[str, float | None]]) -> Any:
    request = admin_pb2.AlterClientQuotasRequest()
    for entity, quotas in entries:
        entry = request.entries.add(entity=parts_to_wire(entity))
        for key, value in quotas.items():
            entry.ops.add(key=key, value=value or 0, remove=value is None)
    return request


def quotas_of(s: Scenario) -> dict[QuotaEntity, dict[str, float]]:
    return {entity: dict(quotas) for entity, quotas in s.image.client_quotas.items()}


def test_quotas_are_set_changed_and_removed_and_only_changes_are_written() -> None:
    s = Scenario()
    quotas: dict[str, float | None] = {"producer_byte_rate": 1000, "request_percentage": 12.5}
    s.ask(altering((ALICE, quotas), (CLIENTS, {"consumer_byte_rate": 5})))
    assert quotas_of(s) == {
        ALICE: {"producer_byte_rate": 1000, "request_percentage": 12.5},
        CLIENTS: {"consumer_byte_rate": 5},
    }
    s.ask(altering((ALICE, quotas | {"consumer_byte_rate": None})))
    assert s.written == []
    s.ask(altering((ALICE, dict.fromkeys(quotas)), (CLIENTS, {"consumer_byte_rate": 6})))
    assert quotas_of(s) == {CLIENTS: {"consumer_byte_rate": 6}}
    assert [r.WhichOneof("record") for r in s.written] == ["client_quota"] * 3


def test_what_is_only_validated_is_not_written() -> None:
    s = Scenario()
    request = altering((ALICE, {"producer_byte_rate": 1}))
    request.validate_only = True
    assert not s.ask(request).entries[0].error_code
    assert s.written == []


@pytest.mark.parametrize(
    ("parts", "key", "value"),
    [
        ([], "producer_byte_rate", 1),
        ([Part(entity_type="user", entity_name="")], "producer_byte_rate", 1),
        ([Part(entity_type="ip", entity_name="::1")], "producer_byte_rate", 1),
        ([Part(entity_type="user"), Part(entity_type="user")], "producer_byte_rate", 1),
        ([Part(entity_type="user")], "producer_byte_rte", 1),
        ([Part(entity_type="user")], "controller_mutation_rate", 1),
        ([Part(entity_type="user")], "producer_byte_rate", 0),
        ([Part(entity_type="user")], "producer_byte_rate", 1.5),
        ([Part(entity_type="user")], "request_percentage", -1),
        ([Part(entity_type="user")], "request_percentage", float("nan")),
        ([Part(entity_type="user")], "consumer_byte_rate", float("inf")),
    ],
)
def test_an_entity_with_an_error_is_refused_and_the_others_are_not(
    parts: list[Part], key: str, value: float
) -> None:
    s = Scenario()
    request = altering((BOTH, {"producer_byte_rate": 7}))
    request.entries.add(entity=parts).ops.add(key=key, value=value)
    answer = s.ask(request)
    assert [e.error_code for e in answer.entries] == [0, ErrorCode.INVALID_REQUEST]
    assert answer.entries[1].error_message
    assert quotas_of(s) == {BOTH: {"producer_byte_rate": 7}}


def test_an_entity_or_a_key_that_is_named_twice_is_refused() -> None:
    s = Scenario()
    answer = s.ask(altering((ALICE, {"producer_byte_rate": 7}), (ALICE, {})))
    assert [e.error_code for e in answer.entries] == [0, ErrorCode.INVALID_REQUEST]
    request = altering((CLIENTS, {"producer_byte_rate": 7}))
    request.entries[0].ops.add(key="producer_byte_rate", remove=True)
    assert s.ask(request).entries[0].error_code == ErrorCode.INVALID_REQUEST
    assert CLIENTS not in s.image.client_quotas


def test_a_lower_metadata_version_has_no_quotas_and_a_safe_downgrade_keeps_them() -> None:
    s = Scenario(level=2)
    with pytest.raises(UnsupportedVersionError, match=r"need metadata.version 3, 2 is in effect"):
        s.ask(altering((ALICE, {"producer_byte_rate": 7})))
    assert s.set_feature(METADATA_VERSION, 3) == 0
    s.ask(altering((ALICE, {"producer_byte_rate": 7})))
    safe, unsafe = 1, 2
    assert s.set_feature(METADATA_VERSION, 2, safe) == ErrorCode.INVALID_UPDATE_VERSION
    assert "the client quotas of 1 entities" in s.message
    assert s.set_feature(METADATA_VERSION, 2, unsafe) == 0
    assert not s.image.client_quotas


def test_a_snapshot_has_the_quotas_and_a_loaded_one_tells_the_changes() -> None:
    s = Scenario()
    s.ask(altering((ALICE, {"producer_byte_rate": 7}), (BOTH, {"request_percentage": 0.5})))
    loaded = MetadataDelta(EMPTY_IMAGE)
    for value in s.image.values():
        loaded.replay_value(value)
    assert loaded.apply(s.image.offset, s.image.epoch) == s.image
    before = s.image
    s.ask(altering((ALICE, {"producer_byte_rate": None}), (CLIENTS, {"consumer_byte_rate": 9})))
    assert diff(before, s.image).client_quotas_changed == {
        ALICE: {"producer_byte_rate": None},
        CLIENTS: {"consumer_byte_rate": 9},
    }


@pytest.mark.parametrize(
    ("components", "strict", "found"),
    [
        ([], False, [CLIENTS, ALICE, BOTH]),
        ([("user", Describe.EXACT, "alice")], False, [ALICE, BOTH]),
        ([("user", Describe.EXACT, "alice")], True, [ALICE]),
        ([("client-id", Describe.DEFAULT, "")], False, [CLIENTS]),
        ([("client-id", Describe.ANY, "")], False, [CLIENTS, BOTH]),
        ([("user", Describe.ANY, ""), ("client-id", Describe.EXACT, "etl")], True, [BOTH]),
        ([("user", Describe.DEFAULT, "")], False, []),
    ],
)
def test_quotas_are_found_by_what_their_entities_match(
    components: list[tuple[str, Any, str]], strict: bool, found: list[QuotaEntity]
) -> None:
    s = Scenario()
    s.ask(altering(*((entity, {"producer_byte_rate": 7}) for entity in (ALICE, BOTH, CLIENTS))))
    request = Describe(strict=strict)
    for kind, match_type, match in components:
        request.components.add(entity_type=kind, match_type=match_type, match=match)
    entries = describe_client_quotas(s.image, request).entries
    assert [entity_from_wire(entry.entity) for entry in entries] == found


@pytest.mark.parametrize("wrong", [[("ip", "a")], [("user", "")], [("user", "a"), ("user", "b")]])
def test_a_wrong_filter_is_refused(wrong: list[tuple[str, str]]) -> None:
    request = Describe()
    for kind, match in wrong:
        request.components.add(entity_type=kind, match=match)
    with pytest.raises(InvalidRequestError):
        describe_client_quotas(EMPTY_IMAGE, request)
