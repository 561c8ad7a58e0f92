"""Settings of the web console of a broker, and the listener by which it asks the cluster."""

from __future__ import annotations

import ipaddress
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

from tidemark.config.definition import setting
from tidemark.config.security import (
    PLAINTEXT,
    SASL_SSL,
    SCRAM,
    ListenerSecurity,
    NodeSecurity,
    uses_sasl,
)
from tidemark.errors import ConfigError
from tidemark.types import Endpoint


def is_loopback(host: str) -> bool:
    """Whether a name or an address is that of this machine alone."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


@dataclass(frozen=True, slots=True)
class ConsoleConfig:
    """A section of `ServerConfig`."""

    console_listener: str = setting(
        "",
        doc="host:port of the web console of this broker, on a loopback address; empty: none",
        matching=r"|.+:[0-9]{1,5}",
    )
    console_ssl_truststore_location: tuple[str, ...] = setting(
        (),
        doc="PEM files of the authorities that signed the brokers' certificates; empty: those of"
        " ssl.truststore.location",
    )

    def __post_init__(self) -> None:
        if self.console_listener and not is_loopback(self.endpoint.host):
            raise ConfigError(
                f"console.listener={self.console_listener}: the console speaks plain HTTP, so it"
                " listens on loopback only: say 127.0.0.1:PORT, and come from elsewhere by"
                " `ssh -L` or `kubectl port-forward`"
            )

    @property
    def endpoint(self) -> Endpoint:
        """The console's address and port. Raises ConfigError."""
        try:
            return Endpoint.parse(self.console_listener)
        except ValueError as error:
            raise ConfigError(f"console.listener: {error}") from None


class ConsoleNode(Protocol):
    """The part of a node's settings that is read here: `ServerConfig`."""

    @property
    def is_broker(self) -> bool: ...
    @property
    def console(self) -> ConsoleConfig: ...
    @property
    def security(self) -> NodeSecurity: ...
    def broker_listeners(self) -> dict[str, Endpoint]: ...
    def advertised_endpoints(self) -> dict[str, Endpoint]: ...
    def security_of(self, listener: str) -> ListenerSecurity: ...


@dataclass(frozen=True, slots=True)
class ConsoleAccess:
    """The listener that the console connects to, and how its users prove who they are.

    `login` has the settings of a client that lack a name and a password; None: nobody logs in.
    """

    bootstrap: Endpoint
    login: Mapping[str, str] | None


def console_access(config: ConsoleNode) -> ConsoleAccess | None:
    """How the console of this node asks the cluster; None: it has no console.

    Nobody gets more by the console than by a listener: where it would be the only one to come
    without a login, it is refused. Raises ConfigError.
    """
    if not config.console.console_listener:
        return None
    if not config.is_broker:
        raise ConfigError(
            "console.listener: a broker serves the console: set it in the settings of one, not of"
            " a controller"
        )
    names = config.broker_listeners()
    protocols = {name: config.security.protocol_of(name) for name in names}
    logins = [
        name
        for name in sorted(names, key=lambda name: protocols[name] != SASL_SSL)
        if uses_sasl(protocols[name]) and SCRAM in config.security_of(name).sasl_enabled_mechanisms
    ]
    if logins:
        name = logins[0]
        trust = config.console.console_ssl_truststore_location
        trust = trust or config.security_of(name).ssl.ssl_truststore_location
        login = {"security.protocol": protocols[name], "sasl.mechanism": SCRAM}
        if trust and protocols[name] == SASL_SSL:
            login["ssl.truststore.location"] = ",".join(trust)
        return ConsoleAccess(_reachable(config, name), login)
    plain = [name for name in names if protocols[name] == PLAINTEXT]
    if not plain or config.security.authorizer_class_name:
        raise ConfigError(
            f"console.listener: its users log in by {SCRAM}, which no listener of this broker"
            " takes: add one that speaks SASL_SSL, or leave console.listener empty"
        )
    return ConsoleAccess(_reachable(config, plain[0]), None)


def _reachable(config: ConsoleNode, name: str) -> Endpoint:
    """The advertised endpoint of a listener, whose name its certificate has."""
    endpoint = config.advertised_endpoints()[name]
    return endpoint if endpoint.host else endpoint._replace(host="127.0.0.1")
