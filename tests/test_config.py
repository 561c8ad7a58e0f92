"""Settings: Kafka's names and defaults, bounds, helpful errors, files and variables."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidemark.config import (
    ServerConfig,
    TopicConfig,
    effective_topic_config,
    load_server_config,
    parse_server_config,
    server_defaults,
    validate_topic_configs,
)
from tidemark.config.definition import key_of, keys_of
from tidemark.config.properties import environment_overrides, format_properties, parse_properties
from tidemark.errors import ConfigError, ErrorCode, InvalidConfigError
from tidemark.types import Endpoint

BROKER = {
    "process.roles": "broker",
    "node.id": "4",
    "listeners": "PLAINTEXT://127.0.0.1:9092",
    "controller.quorum.voters": "1@a:9093,2@b:9093,3@[::1]:9093",
}


def server(**more: str) -> ServerConfig:
    """A broker's settings and the given ones, with `_` for `.` in the names."""
    return parse_server_config(BROKER | {key.replace("_", "."): v for key, v in more.items()})


def test_texts_become_typed_values() -> None:
    config = server(
        log_segment_bytes=" 1048576 ",
        controlled_shutdown_enable="FALSE",
        log_cleaner_min_cleanable_ratio="0.25",
        log_dirs="/a, /b,",
    )
    assert config.log_segment_bytes == 1 << 20
    assert config.controlled_shutdown_enable is False
    assert config.log_cleaner_min_cleanable_ratio == 0.25
    assert config.log_dirs == ("/a", "/b")
    assert config.metadata_directory == "/a"


@pytest.mark.parametrize(
    ("key", "nearest"),
    [
        ("log.segment.byte", "log.segment.bytes"),
        ("node.idd", "node.id"),
        ("min.in.sync.replicas", "min.insync.replicas"),
        ("controller.quorum.voter", "controller.quorum.voters"),
    ],
)
def test_an_unknown_key_names_the_nearest_known_one(key: str, nearest: str) -> None:
    with pytest.raises(ConfigError, match=f"unknown setting '{key}'; did you mean '{nearest}'"):
        parse_server_config(BROKER | {key: "1"})


def test_a_directory_may_not_be_named_twice_in_other_words(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "a")
    for other in ("a/", "./a", "b/../a", "link"):
        with pytest.raises(ConfigError, match="twice"):
            server(log_dirs=f"{tmp_path}/a,{tmp_path}/{other}")
    assert len(server(log_dirs=f"{tmp_path}/a,{tmp_path}/b").log_dirs) == 2


def test_all_unknown_keys_are_told_at_once() -> None:
    with pytest.raises(ConfigError) as caught:
        parse_server_config(BROKER | {"num.network.threads": "3", "zzz": "1", "node.idd": "2"})
    assert [part.split("'")[1] for part in str(caught.value).split("unknown setting ")[1:]] == [
        "num.network.threads",
        "zzz",
        "node.idd",
    ]


def test_a_key_like_no_other_is_named_without_a_guess() -> None:
    with pytest.raises(ConfigError, match=r"unknown setting 'zzz'$"):
        parse_server_config(BROKER | {"zzz": "1"})


@pytest.mark.parametrize(
    ("key", "text", "said"),
    [
        ("log.segment.bytes", "1 MiB", "is not of type int"),
        ("log.segment.bytes", "13", "below the least allowed value 14"),
        ("log.segment.bytes", str(2**31), "above the greatest allowed value"),
        ("controlled.shutdown.enable", "yes", "is not true or false"),
        ("log.cleaner.min.cleanable.ratio", "1.5", "above the greatest allowed value 1"),
        ("compression.type", "brotli", "'brotli' is none of producer"),
        ("process.roles", "broker,king", "'king' is none of controller, broker"),
        ("log.dirs", "/a,/b,/a", "names '/a' twice"),
        ("log.cleaner.min.cleanable.ratio", "nan", "is not of type float"),
        ("log.cleaner.io.max.bytes.per.second", "inf", "is not of type float"),
        ("log.retention.ms", "1_000", "is not of type int"),
        ("log.retention.ms", "٣", "is not of type int"),
        ("log.retention.ms", str(2**63), "above the greatest allowed value 9223372036854775807"),
        ("log.index.size.max.bytes", str(2**31), "above the greatest allowed value 2147483647"),
        ("log.retention.hours", "1.5", "is not of type int"),
        ("log.cleaner.min.compaction.lag.ms", str(2**63 - 1), ""),
        ("auto.create.topics.enable", "true", "tidemark topics create"),
    ],
)
def test_a_wrong_value_is_named_with_what_is_allowed(key: str, text: str, said: str) -> None:
    with pytest.raises(ConfigError, match=key) as caught:
        parse_server_config(BROKER | {"log.cleaner.max.compaction.lag.ms": "9"} | {key: text})
    assert said in str(caught.value)


def test_kafkas_coarser_names_count_where_the_finer_one_is_not_set(tmp_path: Path) -> None:
    coarse = {
        "log.retention.hours": "2",
        "log.roll.hours": "3",
        "log.roll.jitter.hours": "1",
        "log.dir": "/one",
    }
    config = parse_server_config(BROKER | coarse)
    assert (config.log_retention_ms, config.log_roll_ms) == (7_200_000, 10_800_000)
    assert (config.log_roll_jitter_ms, config.log_dirs) == (3_600_000, ("/one",))
    coarse["log.retention.minutes"] = "5"
    assert parse_server_config(BROKER | coarse).log_retention_ms == 300_000
    finest = coarse | {"log.retention.ms": "7", "log.dirs": "/two"}
    config = parse_server_config(BROKER | finest)
    assert (config.log_retention_ms, config.log_dirs) == (7, ("/two",))
    assert parse_server_config(BROKER | {"log.retention.hours": "-1"}).log_retention_ms == -1
    path = tmp_path / "server.properties"
    path.write_text(format_properties(BROKER))
    assert load_server_config(path, {"TIDEMARK_LOG_ROLL_HOURS": "1"}).log_roll_ms == 3_600_000


@pytest.mark.parametrize("missing", ["process.roles", "node.id"])
def test_a_required_setting_is_asked_for(missing: str) -> None:
    with pytest.raises(ConfigError, match=f"'{missing}' is required"):
        parse_server_config({k: v for k, v in BROKER.items() if k != missing})


def test_voters_by_id_with_names_and_v6_addresses() -> None:
    assert server().voters() == {
        1: Endpoint("a", 9093),
        2: Endpoint("b", 9093),
        3: Endpoint("::1", 9093),
    }
    assert server().voters()[3].address == "[::1]:9093"


@pytest.mark.parametrize("text", ["1@a", "a:9093", "x@a:9093", "1@a:99999"])
def test_a_broken_voter_is_named(text: str) -> None:
    with pytest.raises(ConfigError, match="is not id@host:port"):
        server(controller_quorum_voters=text)


def test_someone_must_know_the_quorum() -> None:
    with pytest.raises(ConfigError, match=r"set controller\.quorum\.voters or"):
        server(controller_quorum_voters="")
    assert server(
        controller_quorum_voters="", controller_quorum_bootstrap_servers="a:1"
    ).controller_quorum_bootstrap_servers == ("a:1",)


def test_advertised_listeners_go_over_listeners() -> None:
    config = server(
        listeners="PLAINTEXT://:9092,INTERNAL://:9094",
        advertised_listeners="PLAINTEXT://broker.example:19092",
    )
    assert config.listener_endpoints()["PLAINTEXT"] == Endpoint("", 9092)
    assert config.advertised_endpoints() == {
        "PLAINTEXT": Endpoint("broker.example", 19092),
        "INTERNAL": Endpoint("", 9094),
    }


def test_brokers_connect_to_each_other_on_the_listener_that_is_named() -> None:
    both = "CLIENT://:9092,PLAINTEXT://:9094,CONTROLLER://:9093"
    assert server(listeners=both).inter_broker_listener == "PLAINTEXT"
    assert server(listeners="CLIENT://:9092,OTHER://:9094").inter_broker_listener == "CLIENT"
    config = server(listeners=both, inter_broker_listener_name="client")
    assert config.inter_broker_listener == "CLIENT"


def test_an_inter_broker_listener_must_be_one_of_the_brokers_own() -> None:
    both = "CLIENT://:9092,PLAINTEXT://:9094,CONTROLLER://:9093"
    with pytest.raises(ConfigError, match=r"INTERNAL is not a listener.*are CLIENT, PLAINTEXT"):
        server(listeners=both, inter_broker_listener_name="INTERNAL")
    for listeners in (both, "PLAINTEXT://:9092"):
        with pytest.raises(ConfigError, match=r"CONTROLLER is in controller\.listener\.names"):
            server(listeners=listeners, inter_broker_listener_name="CONTROLLER")
    server(
        process_roles="controller",
        listeners="CONTROLLER://:9093",
        inter_broker_listener_name="INTERNAL",
    )


def test_a_controller_needs_its_listener_and_a_broker_one_of_its_own() -> None:
    with pytest.raises(ConfigError, match="a controller needs the listener 'CONTROLLER'"):
        server(process_roles="controller")
    with pytest.raises(ConfigError, match="a broker needs a listener beside"):
        server(listeners="CONTROLLER://:9093")
    both = server(process_roles="controller,broker", listeners="CONTROLLER://:1,PLAINTEXT://:2")
    assert both.is_controller and both.is_broker
    assert both.broker_listeners() == {"PLAINTEXT": Endpoint("", 2)}


@pytest.mark.parametrize("text", ["127.0.0.1:9092", "PLAINTEXT://host", "://h:1", "A://h:port"])
def test_a_broken_listener_is_named(text: str) -> None:
    with pytest.raises(ConfigError, match="is not NAME://host:port"):
        server(listeners=text)


def test_settings_of_plugins_are_passed_on() -> None:
    config = parse_server_config(BROKER | {"rsm.config.bucket": " tide ", "rlmm.config.x.y": "1"})
    assert config.rsm_config == {"bucket": "tide"}
    assert config.rlmm_config == {"x.y": "1"}


def test_variables_go_over_the_file(tmp_path: Path) -> None:
    path = tmp_path / "server.properties"
    path.write_text(format_properties(BROKER | {"log.segment.bytes": "100"}))
    environment = {
        "TIDEMARK_LOG_SEGMENT_BYTES": "200",
        "TIDEMARK_S3_ENDPOINT": "a tool's own",
        "LOG_SEGMENT_BYTES": "300",
    }
    assert load_server_config(path, environment).log_segment_bytes == 200
    assert load_server_config(path, {}).log_segment_bytes == 100


def test_a_wrong_variable_is_an_error_of_its_setting(tmp_path: Path) -> None:
    path = tmp_path / "server.properties"
    path.write_text(format_properties(BROKER))
    with pytest.raises(ConfigError, match=r"node\.id='four'"):
        load_server_config(path, {"TIDEMARK_NODE_ID": "four"})


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("# a\nnode.id=1\nlisteners\n", "line 3: 'listeners' is not key=value"),
        ("node.id=1\n\nnode.id=2\n", "line 3: 'node.id' is set twice"),
        ("=1\n", "line 1: '=1' is not key=value"),
        ("node.id=1\nlog.dirs=/a,\\\n", "line 2: the file ends within a continued line"),
        ("a=1\\\n2\nb\n", "line 3: 'b' is not key=value"),
        ("sasl.password: hunter2\n", "line 1: 'sasl.password ...' is not key=value"),
        ("sasl.password hunter2\n", "line 1: 'sasl.password ...' is not key=value"),
        ("ssl.keystore.key=-----BEGIN\nMIIEvQIBADANBg\n", "line 2: this line is not key=value"),
    ],
)
def test_a_broken_properties_file_names_the_file_and_line(
    tmp_path: Path, text: str, said: str
) -> None:
    path = tmp_path / "server.properties"
    path.write_text(text)
    with pytest.raises(ConfigError) as caught:
        load_server_config(path, {})
    assert str(caught.value) == f"{path}, {said}"


@pytest.mark.parametrize(
    ("line", "environ", "said"),
    [
        (
            "log.segment.bytes=many",
            {},
            "{path}, line 5: log.segment.bytes='many' is not of type int",
        ),
        ("log.roll.hours=x", {}, "{path}, line 5: log.roll.hours='x' is not of type int"),
        ("log.roll.hours=-7", {}, "{path}, line 5: log.roll.ms='-7' is below the least allowed"),
        ("log.segment.byte=1", {}, "{path}, line 5: unknown setting 'log.segment.byte'; did you"),
        (
            "",
            {"TIDEMARK_LOG_SEGMENT_BYTES": "x"},
            "the variable TIDEMARK_LOG_SEGMENT_BYTES: log.segment.bytes='x' is not",
        ),
        (
            "",
            {"TIDEMARK_LOG_SEGMENT_BYTE": "1"},
            "the variable TIDEMARK_LOG_SEGMENT_BYTE of the environment is no setting; did you mean"
            " TIDEMARK_LOG_SEGMENT_BYTES?",
        ),
        ("auto.create.topics.enable=true", {}, "{path}: auto.create.topics.enable=true: topics"),
        ("", {"TIDEMARK_S3_ENDPOINT": "x", "TIDEMARK_PORT_9092_TCP_ADDR": "y"}, None),
        ("", {"TIDEMARK_COMMAND_CONFIG": "x", "TIDEMARK_BOOTSTRAP_SERVER": "y"}, None),
    ],
)
def test_a_wrong_setting_is_told_with_its_place(
    tmp_path: Path, line: str, environ: dict[str, str], said: str | None
) -> None:
    path = tmp_path / "server.properties"
    path.write_text(
        "# a node\nprocess.roles=broker\nnode.id=1\nlisteners=PLAINTEXT://h:1\n" + line + "\n"
        "log.dirs=/data\ncontroller.quorum.bootstrap.servers=h:2\n"
        "controller.listener.names=CONTROLLER\n"
    )
    if said is None:
        load_server_config(path, environ)
        return
    with pytest.raises(ConfigError) as caught:
        load_server_config(path, environ)
    assert str(caught.value).startswith(said.format(path=path))


def test_a_file_that_can_not_be_read_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"can not read .*nowhere"):
        load_server_config(tmp_path / "nowhere", {})
    (tmp_path / "binary").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(ConfigError, match=r"can not read .*binary"):
        load_server_config(tmp_path / "binary", {})


def test_lines_join_comments_go_and_values_may_hold_equals_signs() -> None:
    text = "# c\n! c\n a = b=c \nlong = x,\\\n  y\n"
    assert parse_properties(text) == {"a": "b=c", "long": "x,y"}


NAMES = st.from_regex(r"[a-z][a-z0-9.]{0,20}", fullmatch=True)
VALUES = st.from_regex(r"([A-Za-z0-9:/@.,=-][A-Za-z0-9:/@., =-]{0,20})?", fullmatch=True)


@given(st.dictionaries(NAMES, VALUES.map(str.strip)))
def test_what_is_written_reads_the_same(values: dict[str, str]) -> None:
    assert parse_properties(format_properties(values)) == values


@pytest.mark.parametrize("settings", [ServerConfig, TopicConfig])
def test_every_setting_has_a_doc_and_a_default_within_its_bounds(settings: type) -> None:
    for key, field in keys_of(settings).items():
        assert field.metadata["doc"], key
        assert environment_overrides({"TIDEMARK_" + field.name.upper(): "x"}, [key]) == {key: "x"}
        low, high = field.metadata["at_least"], field.metadata["at_most"]
        if field.default is not dataclasses.MISSING and low is not None:
            assert low <= field.default, key
        if field.default is not dataclasses.MISSING and high is not None:
            assert field.default <= high, key


def test_a_topic_takes_the_servers_defaults_by_their_synonyms() -> None:
    config = server(
        log_segment_bytes="2000000",
        log_roll_ms="11",
        message_max_bytes="12",
        log_segment_delete_delay_ms="13",
        log_local_retention_ms="14",
        min_insync_replicas="2",
        log_cleanup_policy="compact",
    )
    defaults = server_defaults(config)
    assert (defaults.segment_bytes, defaults.segment_ms, defaults.max_message_bytes) == (
        2_000_000,
        11,
        12,
    )
    assert (defaults.file_delete_delay_ms, defaults.local_retention_ms) == (13, 14)
    assert defaults.min_insync_replicas == 2
    assert defaults.is_compacted and not defaults.is_deleted


def test_defaults_of_server_and_topic_agree() -> None:
    assert server_defaults(server()) == TopicConfig()


def test_a_topics_own_settings_go_over_the_defaults() -> None:
    config = effective_topic_config(TopicConfig(retention_ms=5), {"segment.bytes": "100"})
    assert (config.segment_bytes, config.retention_ms) == (100, 5)


def test_a_setting_that_can_not_be_read_costs_a_topic_that_one_alone() -> None:
    stored = {"cleanup.policy": "compact", "of.a.later.version": "1", "segment.bytes": "many"}
    told: list[str] = []
    config = effective_topic_config(TopicConfig(), stored, lambda error: told.append(str(error)))
    assert config == TopicConfig(cleanup_policy=("compact",))
    assert ["of.a.later.version" in told[0], "segment.bytes" in told[1]] == [True, True]
    with pytest.raises(InvalidConfigError):
        effective_topic_config(TopicConfig(), stored)


def test_a_topic_is_judged_by_what_it_takes_from_the_server_too() -> None:
    short = server(log_retention_ms="1000")
    with pytest.raises(InvalidConfigError, match=r"above retention\.ms=1000"):
        validate_topic_configs({"local.retention.ms": "2000"}, short)
    with pytest.raises(InvalidConfigError, match=r"above retention\.ms=1500"):
        validate_topic_configs({"local.retention.ms": "2000"}, short, {"log.retention.ms": "1500"})
    assert validate_topic_configs({"local.retention.ms": "2000"})
    lag = {"log.cleaner.max.compaction.lag.ms": "10"}
    with pytest.raises(InvalidConfigError, match=r"min\.compaction\.lag\.ms=11 is above"):
        validate_topic_configs({"min.compaction.lag.ms": "11"}, server(), lag)


def test_a_topic_is_tiered_only_on_servers_with_a_tier() -> None:
    wanted = {"remote.storage.enable": "true"}
    with pytest.raises(InvalidConfigError, match=r"remote\.log\.storage\.system\.enable=true"):
        validate_topic_configs(wanted, server())
    assert validate_topic_configs(wanted, server(remote_log_storage_system_enable="true"))


def test_values_of_topics() -> None:
    assert validate_topic_configs({"retention.ms": "7"}) == {"retention_ms": 7}


@pytest.mark.parametrize(
    ("overrides", "said"),
    [
        ({"segment.byte": "1"}, "did you mean 'segment.bytes'"),
        ({"segment.bytes": "small"}, "is not of type int"),
        ({"remote.storage.enable": "true", "cleanup.policy": "compact"}, "cleanup.policy=delete"),
        ({"remote.storage.enable": "true", "cleanup.policy": "delete,compact"}, "cleanup.policy"),
        ({"retention.ms": "10", "local.retention.ms": "11"}, "local.retention.ms=11 is above"),
        ({"retention.ms": "10", "local.retention.ms": "-1"}, "local.retention.ms=-1 is above"),
        ({"retention.bytes": "10", "local.retention.bytes": "11"}, "local.retention.bytes=11"),
        ({"local.retention.ms": "-3"}, "below the least allowed value -2"),
        ({"min.compaction.lag.ms": "9", "max.compaction.lag.ms": "5"}, "max.compaction.lag.ms=5"),
        ({"min.cleanable.dirty.ratio": "nan"}, "is not of type float"),
        ({"cleanup.policy": "delete,delete"}, "names 'delete' twice"),
        ({"segment.index.bytes": str(2**31)}, "above the greatest"),
        ({"retention.ms": str(2**63)}, "above the greatest"),
        ({"preallocate": "true"}, "has no effect"),
    ],
)
def test_what_kafka_refuses_of_a_topic_is_invalid_config(
    overrides: dict[str, str], said: str
) -> None:
    with pytest.raises(InvalidConfigError) as caught:
        validate_topic_configs(overrides)
    assert said in str(caught.value)
    assert caught.value.code is ErrorCode.INVALID_CONFIG


@pytest.mark.parametrize(("own", "effective_ms"), [({}, 100), ({"local.retention.ms": "40"}, 40)])
def test_local_retention_follows_the_total_unless_set(
    own: dict[str, str], effective_ms: int
) -> None:
    config = effective_topic_config(TopicConfig(), {"retention.ms": "100"} | own)
    assert config.effective_local_retention_ms == effective_ms
    assert config.effective_local_retention_bytes == -1


def test_names_are_attributes_with_dots() -> None:
    assert key_of("log_segment_bytes") == "log.segment.bytes"


def test_a_compacting_default_makes_no_tiered_topic() -> None:
    server = parse_server_config(
        {**BROKER, "log.cleanup.policy": "compact", "remote.log.storage.system.enable": "true"}
    )
    with pytest.raises(InvalidConfigError, match=r"cleanup\.policy=delete only"):
        validate_topic_configs({"remote.storage.enable": "true"}, server)
    validate_topic_configs({"remote.storage.enable": "true", "cleanup.policy": "delete"}, server)


def test_a_default_that_changes_later_compacts_no_tiered_topic() -> None:
    config = TopicConfig(remote_storage_enable=True, cleanup_policy=("compact",))
    assert not config.is_compacted
    assert TopicConfig(cleanup_policy=("compact",)).is_compacted


SECURED = {
    "process.roles": "controller,broker",
    "node.id": "1",
    "listeners": "CONTROLLER://:9093,INTERNAL://:9092,USERS://:9094",
    "inter.broker.listener.name": "INTERNAL",
    "controller.listener.names": "CONTROLLER",
    "controller.quorum.voters": "1@127.0.0.1:9093",
    "listener.security.protocol.map": "CONTROLLER:SSL,INTERNAL:SSL,USERS:SASL_SSL",
    "ssl.keystore.location": "/node.pem",
    "ssl.truststore.location": "/ca.pem",
    "listener.name.controller.ssl.client.auth": "required",
    "listener.name.internal.ssl.client.auth": "required",
}


def test_a_secured_node_has_settings_of_its_own_for_a_listener() -> None:
    config = parse_server_config(SECURED)
    clients = [config.security_of(n).ssl_client_auth for n in ("CONTROLLER", "INTERNAL", "USERS")]
    assert clients == ["required", "required", "none"]
    assert config.channel_security("INTERNAL").security_protocol == "SSL"


@pytest.mark.parametrize(
    ("change", "complaint"),
    [
        ({"ssl.keystore.location": ""}, r"set ssl\.keystore\.location"),
        ({"ssl.truststore.location": ""}, r"needs ssl\.truststore\.location"),
        ({"listener.name.internal.ssl.client.auth": "none"}, "internal.ssl.client.auth=required"),
        ({"inter.broker.listener.name": "USERS"}, "USERS.* give clients that log in another"),
        (
            {"listener.security.protocol.map": "CONTROLLER:SASL_SSL,INTERNAL:SSL,USERS:SSL"},
            "nodes meet on the listener CONTROLLER",
        ),
        ({"listener.security.protocol.map": "CONTROLLER:SSL,INTERNAL:SSL"}, "no entry.* USERS"),
        ({"listener.name.other.ssl.client.auth": "none"}, "OTHER is not in listeners"),
        (
            {
                "listener.security.protocol.map": "CONTROLLER:PLAINTEXT,INTERNAL:SSL,USERS:SSL",
                "authorizer.class.name": "StandardAuthorizer",
            },
            "without certificates",
        ),
        ({"super.users": "alice"}, r"super\.users"),
    ],
    ids=str,
)
def test_contradictions_of_a_secured_node_are_refused(
    change: dict[str, str], complaint: str
) -> None:
    with pytest.raises(ConfigError, match=complaint):
        parse_server_config(SECURED | change)
