"""Settings of topics, brokers and all brokers together: changes, checks, descriptions."""

from __future__ import annotations

import pytest

from quorum.controller.result import ControllerResult
from quorum.image import ConfigResource
from quorum.image.image import ELR_VERSION
from quorum.image.records import feature_record
from quorum.services.config_answers import describe_configs
from tests.quorum.controller.scenario import Scenario, controller_config
from tidemark.errors import ErrorCode
from tidemark.v1 import admin_pb2

Request = admin_pb2.IncrementalAlterConfigsRequest
Source = admin_pb2.DescribeConfigsResponse
TOPIC = ConfigResource.topic("t")
BROKER = ConfigResource.broker(1)
EVERYBODY = ConfigResource.broker(None)


@pytest.fixture
def s() -> Scenario:
    scenario = Scenario()
    scenario.start_brokers(1, 2, 3)
    scenario.create("t", (1, 2, 3), retention_ms="1000")
    return scenario


def alter(
    s: Scenario,
    resource: tuple[int, str],
    *ops: tuple[str, int, str | None],
    validate_only: bool = False,
) -> admin_pb2.IncrementalAlterConfigsResponse.Resource:
    request = Request(validate_only=validate_only)
    asked = request.resources.add()
    asked.resource.resource_type, asked.resource.resource_name = resource
    for name, kind, value in ops:
        asked.ops.add(name=name, type=kind, value=value)  # type: ignore[arg-type]
    return s.ask(request).responses[0]


def described(
    s: Scenario, resource: tuple[int, str], *names: str, node_id: int = 1
) -> dict[str, admin_pb2.DescribeConfigsResponse.Entry]:
    request = admin_pb2.DescribeConfigsRequest(include_synonyms=True)
    asked = request.resources.add(names=names)
    asked.resource.resource_type, asked.resource.resource_name = resource
    config = controller_config(node_id=str(node_id), log_retention_ms="5000")
    [result] = describe_configs(s.image, config, request).results
    assert result.error_code == 0, result.error_message
    return {entry.name: entry for entry in result.configs}


def test_settings_are_changed_one_by_one(s: Scenario) -> None:
    answer = alter(
        s, TOPIC, ("segment.bytes", Request.SET, "2000"), ("retention.ms", Request.DELETE, None)
    )
    assert answer.error_code == 0
    assert dict(s.image.topic_configs("t")) == {"segment.bytes": "2000"}
    alter(s, TOPIC, ("min.insync.replicas", Request.SET, "2"))
    assert dict(s.image.topic_configs("t")) == {"segment.bytes": "2000", "min.insync.replicas": "2"}


def test_what_is_so_already_needs_no_record(s: Scenario) -> None:
    ops = (("retention.ms", Request.SET, "1000"), ("segment.bytes", Request.DELETE, None))
    assert alter(s, TOPIC, *ops).error_code == 0
    assert s.written == []


def test_lists_grow_and_shrink_from_what_is_set_or_the_default(s: Scenario) -> None:
    alter(s, TOPIC, ("cleanup.policy", Request.APPEND, "compact"))
    assert s.image.topic_configs("t")["cleanup.policy"] == "delete,compact"
    alter(s, TOPIC, ("cleanup.policy", Request.APPEND, "compact"))
    assert s.written == []
    alter(s, TOPIC, ("cleanup.policy", Request.SUBTRACT, "delete"))
    assert s.image.topic_configs("t")["cleanup.policy"] == "compact"


def test_only_lists_are_appended_to(s: Scenario) -> None:
    answer = alter(s, TOPIC, ("retention.ms", Request.APPEND, "1"))
    assert answer.error_code == ErrorCode.INVALID_CONFIG
    assert "no list" in answer.error_message


@pytest.mark.parametrize(
    ("resource", "op", "error"),
    [
        (TOPIC, ("retention.mss", Request.SET, "1"), ErrorCode.INVALID_CONFIG),
        (TOPIC, ("retention.ms", Request.SET, "soon"), ErrorCode.INVALID_CONFIG),
        (TOPIC, ("retention.ms", Request.SET, None), ErrorCode.INVALID_REQUEST),
        (TOPIC, ("", Request.SET, "1"), ErrorCode.INVALID_REQUEST),
        (TOPIC, ("retention.ms", 9, "1"), ErrorCode.INVALID_REQUEST),
        (TOPIC, ("local.retention.ms", Request.SET, "2000"), ErrorCode.INVALID_CONFIG),
        ((2, "u"), ("retention.ms", Request.SET, "1"), ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
        ((4, "9"), ("log.retention.ms", Request.SET, "1"), ErrorCode.BROKER_ID_NOT_REGISTERED),
        ((4, "x"), ("log.retention.ms", Request.SET, "1"), ErrorCode.INVALID_REQUEST),
        ((8, "x"), ("log.retention.ms", Request.SET, "1"), ErrorCode.INVALID_REQUEST),
        (BROKER, ("node.id", Request.SET, "7"), ErrorCode.INVALID_CONFIG),
        (BROKER, ("log.retention.ms", Request.SET, "soon"), ErrorCode.INVALID_CONFIG),
        (BROKER, ("min.insync.replicas", Request.SET, "2"), ErrorCode.INVALID_CONFIG),
    ],
    ids=str,
)
def test_what_is_wrong_is_refused_and_nothing_is_written(
    s: Scenario, resource: tuple[int, str], op: tuple[str, int, str | None], error: ErrorCode
) -> None:
    answer = alter(s, resource, op, ("segment.bytes", Request.SET, "2000"))
    assert answer.error_code == error
    assert answer.error_message
    assert s.written == []


def test_a_setting_or_a_resource_named_twice_is_refused(s: Scenario) -> None:
    ops = [("retention.ms", Request.SET, "1"), ("retention.ms", Request.DELETE, None)]
    assert alter(s, TOPIC, *ops).error_code == ErrorCode.INVALID_REQUEST
    request = Request()
    for _ in range(2):
        asked = request.resources.add()
        asked.resource.resource_type, asked.resource.resource_name = TOPIC
        asked.ops.add(name="retention.ms", value="1")
    answers = s.ask(request).responses
    assert [a.error_code for a in answers] == [ErrorCode.INVALID_REQUEST] * 2


def test_validation_alone_writes_nothing(s: Scenario) -> None:
    answer = alter(s, TOPIC, ("retention.ms", Request.SET, "2"), validate_only=True)
    assert (answer.error_code, s.written) == (0, [])


def test_the_tier_can_not_be_switched_on_where_there_is_none(s: Scenario) -> None:
    answer = alter(s, TOPIC, ("remote.storage.enable", Request.SET, "true"))
    assert answer.error_code == ErrorCode.INVALID_CONFIG
    assert "remote.log.storage.system.enable=true" in answer.error_message
    created = s.try_create("tiered", (1, 2, 3), remote_storage_enable="true")
    assert created.error_code == ErrorCode.INVALID_CONFIG


def test_a_topics_settings_must_fit_what_all_brokers_were_given(s: Scenario) -> None:
    alter(s, EVERYBODY, ("log.retention.ms", Request.SET, "3000"))
    alter(s, TOPIC, ("retention.ms", Request.DELETE, None))
    answer = alter(s, TOPIC, ("local.retention.ms", Request.SET, "4000"))
    assert answer.error_code == ErrorCode.INVALID_CONFIG
    assert "retention.ms=3000" in answer.error_message


def test_the_tier_is_switched_off_only_with_its_records() -> None:
    """KIP-950: to delete what the tier has must be said, and stays said."""
    s = Scenario(config=controller_config(remote_log_storage_system_enable="true"))
    s.start_brokers(1)
    s.create("t", (1,))
    tiered, deletes = "remote.storage.enable", "remote.log.delete.on.disable"
    assert alter(s, TOPIC, (tiered, Request.SET, "true")).error_code == 0
    for op, value in ((Request.DELETE, None), (Request.SET, "false")):
        answer = alter(s, TOPIC, (tiered, op, value))
        assert answer.error_code == ErrorCode.INVALID_CONFIG
        assert "remote.log.delete.on.disable=true" in answer.error_message
        assert "remote.log.copy.disable=true" in answer.error_message
    assert alter(s, TOPIC, ("retention.ms", Request.SET, "5000")).error_code == 0
    both = ((tiered, Request.SET, "false"), (deletes, Request.SET, "TRUE"))
    assert alter(s, TOPIC, *both).error_code == 0
    answer = alter(s, TOPIC, (deletes, Request.DELETE, None))
    assert answer.error_code == ErrorCode.INVALID_CONFIG
    assert "stays true" in answer.error_message
    again = ((tiered, Request.SET, "true"), (deletes, Request.SET, "false"))
    assert alter(s, TOPIC, *again).error_code == 0


def test_a_topics_setting_comes_from_the_strongest_who_says_it(s: Scenario) -> None:
    alter(s, EVERYBODY, ("log.retention.ms", Request.SET, "3000"))
    alter(s, BROKER, ("log.retention.ms", Request.SET, "2000"))
    entry = described(s, TOPIC)["retention.ms"]
    assert (entry.value, entry.source, entry.type) == ("1000", Source.TOPIC_CONFIG, "LONG")
    assert [(said.name, said.value, said.source) for said in entry.synonyms] == [
        ("retention.ms", "1000", Source.TOPIC_CONFIG),
        ("log.retention.ms", "2000", Source.DYNAMIC_BROKER_CONFIG),
        ("log.retention.ms", "3000", Source.DYNAMIC_DEFAULT_BROKER_CONFIG),
        ("log.retention.ms", "5000", Source.STATIC_BROKER_CONFIG),
        ("log.retention.ms", "604800000", Source.DEFAULT_CONFIG),
    ]
    alter(s, TOPIC, ("retention.ms", Request.DELETE, None))
    assert described(s, TOPIC)["retention.ms"].value == "2000"
    elsewhere = described(s, TOPIC, "retention.ms", node_id=2)
    assert {name: e.value for name, e in elsewhere.items()} == {"retention.ms": "3000"}


def test_a_broker_tells_all_its_settings_and_the_default_what_was_altered(s: Scenario) -> None:
    alter(s, EVERYBODY, ("log.retention.ms", Request.SET, "3000"))
    mine = described(s, BROKER)
    assert mine["log.retention.ms"].source == Source.DYNAMIC_DEFAULT_BROKER_CONFIG
    assert not mine["log.retention.ms"].read_only
    assert (mine["node.id"].value, mine["node.id"].read_only) == ("1", True)
    assert mine["log.cleanup.policy"].type == "LIST"
    assert set(described(s, EVERYBODY)) == {"log.retention.ms"}


def test_only_a_broker_itself_knows_its_settings(s: Scenario) -> None:
    request = admin_pb2.DescribeConfigsRequest()
    request.resources.add().resource.CopyFrom(
        admin_pb2.ConfigResource(resource_type=4, resource_name="2")
    )
    [result] = describe_configs(s.image, controller_config(), request).results
    assert result.error_code == ErrorCode.INVALID_REQUEST
    assert "ask that broker" in result.error_message


def test_a_secret_has_no_value_in_any_answer(s: Scenario) -> None:
    key, names = "s3cret-words", ("ssl.key.password", "ssl.keystore.key")
    own = {"ssl_key_password": key, "listener.name.controller.ssl.key.password": key}
    config = controller_config(ssl_keystore_key=key, rsm_config_password=key, **own)
    request = admin_pb2.DescribeConfigsRequest(include_synonyms=True)
    for asked in (names, ()):
        added = request.resources.add(names=asked).resource
        added.resource_type, added.resource_name = BROKER
    answer = describe_configs(s.image, config, request)
    assert key not in str(answer)
    for result in answer.results:
        told = {entry.name: entry for entry in result.configs}
        for name in names:
            assert (told[name].value, told[name].source) == ("", Source.STATIC_BROKER_CONFIG)
    assert key not in repr(config)


def test_unclean_elections_follow_the_topic_then_all_brokers(s: Scenario) -> None:
    s.create("careful", (1, 2), unclean_leader_election_enable="false")
    s.create("bold", (1, 2))
    alter(s, EVERYBODY, ("unclean.leader.election.enable", Request.SET, "true"))
    s.keep_alive(18_000, 1, 3)
    s.keep_alive(18_000, 3)
    s.heartbeat(2)
    assert s.partition("careful").leader is None
    assert s.partition("bold").leader == 2


def test_a_request_has_as_many_settings_as_a_batch_has_records(
    s: Scenario, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("quorum.controller.configs.RECORDS_PER_BATCH_MAX", 2)
    ops = [(name, Request.SET, "2000") for name in ("segment.bytes", "retention.ms", "x")]
    assert alter(s, TOPIC, *ops).error_code == ErrorCode.POLICY_VIOLATION
    assert alter(s, TOPIC, *ops[:2]).error_code == 0


@pytest.mark.parametrize("name", ["x", "-1", "\u0661"], ids=ascii)
def test_a_broker_is_named_by_the_digits_of_its_id(s: Scenario, name: str) -> None:
    answer = alter(s, (4, name), ("log.retention.ms", Request.SET, "2000"))
    assert answer.error_code == ErrorCode.INVALID_REQUEST
    assert "no broker's id" in answer.error_message


def test_a_change_to_what_is_so_already_is_no_batch(s: Scenario) -> None:
    request = Request()
    asked = request.resources.add()
    asked.resource.resource_type, asked.resource.resource_name = TOPIC
    asked.ops.add(name="retention.ms", type=Request.SET, value="1000")
    assert s.generate(request).groups == []


def test_a_tiered_topic_stays_so_and_one_that_was_not_may_say_it(s: Scenario) -> None:
    assert alter(s, TOPIC, ("remote.storage.enable", Request.SET, "false")).error_code == 0
    assert alter(s, TOPIC, ("remote.storage.enable", Request.DELETE, None)).error_code == 0


def test_the_minimum_of_the_cluster_may_be_absent_while_eligible_replicas_are_kept(
    s: Scenario,
) -> None:
    """A log of an earlier version may lack it; other settings can still be changed."""
    record = feature_record(ELR_VERSION, 1)
    s.apply(ControllerResult.atomic([record], None))
    assert "min.insync.replicas" not in s.image.broker_configs(None)
    answer = alter(s, EVERYBODY, ("log.retention.ms", Request.SET, "2000"))
    assert answer.error_code == 0, answer.error_message
