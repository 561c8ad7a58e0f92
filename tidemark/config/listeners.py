"""Listeners of a node: their text format, and what they have to agree on."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

from tidemark.config.security import ListenerSecurity, NodeSecurity, uses_sasl, uses_ssl
from tidemark.errors import ConfigError
from tidemark.types import Endpoint


class ListenerConfig(Protocol):
    """The part of a node's settings that is read here: `ServerConfig`."""

    @property
    def is_broker(self) -> bool: ...
    @property
    def inter_broker_listener_name(self) -> str: ...
    @property
    def controller_listener_names(self) -> tuple[str, ...]: ...
    @property
    def security(self) -> NodeSecurity: ...
    @property
    def listener_name(self) -> Mapping[str, str]: ...
    @property
    def inter_broker_listener(self) -> str: ...
    def listener_endpoints(self) -> dict[str, Endpoint]: ...
    def broker_listeners(self) -> dict[str, Endpoint]: ...
    def security_of(self, listener: str) -> ListenerSecurity: ...


def parse_listeners(key: str, texts: tuple[str, ...]) -> dict[str, Endpoint]:
    """Endpoints by listener name from NAME://host:port. Raises ConfigError."""
    found: dict[str, Endpoint] = {}
    for text in texts:
        name, separator, address = text.partition("://")
        host, colon, port = address.rpartition(":")
        if not separator or not name or not colon or not port.isdigit():
            raise ConfigError(f"{key}: {text!r} is not NAME://host:port")
        found[name.upper()] = Endpoint(host.strip("[]"), int(port))
    return found


def check_listeners(config: ListenerConfig) -> None:
    """Raises ConfigError where the settings of listeners contradict each other."""
    if config.is_broker:
        _check_inter_broker_listener(config)
    for name in config.listener_endpoints():
        _check_security(config, name)
    for name in config.controller_listener_names:  # a broker connects to them
        if uses_sasl(config.security.protocol_of(name)):
            raise _nodes_need_certificates(name)
    for key in config.listener_name:
        name = key.partition(".")[0].upper()
        if name not in (*config.listener_endpoints(), *config.controller_listener_names):
            raise ConfigError(
                f"listener.name.{key}: {name} is not in listeners:"
                f" {', '.join(config.listener_endpoints())}"
            )


def _check_inter_broker_listener(config: ListenerConfig) -> None:
    name = config.inter_broker_listener_name.upper()
    if name and name in config.controller_listener_names:
        raise ConfigError(
            f"inter.broker.listener.name={name} is in controller.listener.names: name a"
            " listener that serves brokers"
        )
    if name and name not in config.broker_listeners():
        raise ConfigError(
            f"inter.broker.listener.name={name} is not a listener of this broker; the valid"
            f" options by listeners are {', '.join(config.broker_listeners())}"
        )


def _check_security(config: ListenerConfig, name: str) -> None:
    protocol, secured = config.security.protocol_of(name), config.security_of(name)
    if uses_ssl(protocol) and not secured.ssl.has_key:
        raise ConfigError(
            f"listener {name} speaks {protocol}: set ssl.keystore.location to PEM files with its"
            " private key and certificate chain"
        )
    if uses_ssl(protocol) and secured.ssl_client_auth == "required" and not secured.ssl.has_trust:
        raise ConfigError(
            f"listener {name}: ssl.client.auth=required needs ssl.truststore.location, PEM files of"
            " the authorities that sign clients' certificates"
        )
    is_for_nodes = name in config.controller_listener_names or (
        config.is_broker and name == config.inter_broker_listener
    )
    if is_for_nodes and uses_sasl(protocol):
        raise _nodes_need_certificates(name)
    if is_for_nodes and not uses_ssl(protocol):
        _check_anonymous_nodes(config, name)
    if is_for_nodes and uses_ssl(protocol) and secured.ssl_client_auth != "required":
        raise ConfigError(
            f"nodes meet on the listener {name}, and prove themselves by certificates: set"
            f" listener.name.{name.lower()}.ssl.client.auth=required"
        )


def _check_anonymous_nodes(config: ListenerConfig, name: str) -> None:
    security = config.security
    if security.authorizer_class_name and "User:ANONYMOUS" not in security.super_principals:
        raise ConfigError(
            f"nodes meet on the listener {name} without certificates, so the authorizer would turn"
            " them away: let it speak SSL, or add User:ANONYMOUS to super.users where no client"
            " reaches a PLAINTEXT listener"
        )


def _nodes_need_certificates(name: str) -> ConfigError:
    return ConfigError(
        f"nodes meet on the listener {name}, and prove themselves by certificates: let it speak SSL"
        " in listener.security.protocol.map, and give clients that log in another listener"
    )
