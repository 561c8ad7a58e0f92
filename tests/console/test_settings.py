"""Settings of the console: loopback alone, and never a way around logins and ACLs."""

from __future__ import annotations

import pytest

from tidemark.config import ServerConfig, parse_server_config
from tidemark.config.console import console_access, is_loopback
from tidemark.errors import ConfigError

NODE = {
    "process.roles": "broker",
    "node.id": "4",
    "controller.quorum.voters": "1@127.0.0.1:9093",
    "listeners": "PLAINTEXT://127.0.0.1:9092",
    "console.listener": "127.0.0.1:9088",
}
SECURE = {
    "listeners": "INTERNAL://:9092,USERS://:9094",
    "advertised.listeners": "USERS://broker-4.example:9094",
    "inter.broker.listener.name": "INTERNAL",
    "listener.security.protocol.map": "CONTROLLER:SSL,INTERNAL:SSL,USERS:SASL_SSL",
    "ssl.keystore.location": "/k.pem",
    "ssl.truststore.location": "/ca.pem",
    "listener.name.internal.ssl.client.auth": "required",
    "authorizer.class.name": "StandardAuthorizer",
}


def config(**changes: str) -> ServerConfig:
    return parse_server_config(NODE | {k.replace("_", "."): v for k, v in changes.items()})


def test_a_plain_cluster_has_a_plain_console() -> None:
    access = console_access(config())
    assert access is not None and access.login is None
    assert access.bootstrap.address == "127.0.0.1:9092"
    everywhere = console_access(config(listeners="PLAINTEXT://:9092"))
    assert everywhere is not None and everywhere.bootstrap.address == "127.0.0.1:9092"
    assert console_access(config(console_listener="")) is None


@pytest.mark.parametrize("host", ["127.0.0.1", "127.9.9.9", "[::1]", "localhost"])
def test_loopback_is_taken(host: str) -> None:
    assert config(console_listener=f"{host}:0").console.endpoint.port == 0


@pytest.mark.parametrize(
    "text",
    ["0.0.0.0:9088", "[::]:9088", "10.0.0.1:9088", "localhost.example:9088", "9088", ":9088"],
)
def test_everything_else_is_refused_with_the_way_to_come_from_elsewhere(text: str) -> None:
    with pytest.raises(ConfigError, match=r"console\.listener"):
        config(console_listener=text)
    if text.startswith("10."):
        with pytest.raises(ConfigError, match="ssh -L"):
            config(console_listener=text)


def test_names_that_look_like_loopback_are_none() -> None:
    for name in ("", "127.0.0.1.example", "localhost.example", "0.0.0.0", "127.1", "2130706433"):
        assert not is_loopback(name)


def test_a_secured_cluster_has_its_users_log_in_at_its_own_listener() -> None:
    access = console_access(parse_server_config(NODE | SECURE))
    assert access is not None
    assert access.bootstrap.address == "broker-4.example:9094"
    assert access.login == {
        "security.protocol": "SASL_SSL",
        "sasl.mechanism": "SCRAM-SHA-512",
        "ssl.truststore.location": "/ca.pem",
    }
    own = console_access(
        parse_server_config(NODE | SECURE | {"console.ssl.truststore.location": "/public.pem"})
    )
    assert own is not None and own.login is not None
    assert own.login["ssl.truststore.location"] == "/public.pem"


def test_a_login_is_asked_for_although_a_plain_listener_is_there_too() -> None:
    listeners = "PLAINTEXT://127.0.0.1:9092,LOGINS://127.0.0.1:9094"
    protocols = "PLAINTEXT:PLAINTEXT,LOGINS:SASL_PLAINTEXT,CONTROLLER:PLAINTEXT"
    access = console_access(config(listeners=listeners, listener_security_protocol_map=protocols))
    assert access is not None and access.login is not None
    assert access.bootstrap.port == 9094


@pytest.mark.parametrize(
    "changes",
    [
        # The nodes' own listener would make every visitor a super user.
        {"authorizer.class.name": "StandardAuthorizer", "super.users": "User:ANONYMOUS"},
        {**SECURE, "listener.name.users.sasl.enabled.mechanisms": "OAUTHBEARER"},
        {**SECURE, "listeners": "INTERNAL://:9092", "advertised.listeners": ""},
    ],
)
def test_without_a_listener_for_passwords_a_secured_broker_has_no_console(
    changes: dict[str, str],
) -> None:
    with pytest.raises(ConfigError, match=r"console\.listener: its users log in by SCRAM-SHA-512"):
        parse_server_config(NODE | changes)
    parse_server_config(NODE | changes | {"console.listener": ""})


def test_a_controller_serves_no_console() -> None:
    with pytest.raises(ConfigError, match="a broker serves the console"):
        config(
            process_roles="controller",
            node_id="1",
            listeners="CONTROLLER://127.0.0.1:9093",
        )
