"""The guards of a node's listeners, made from its settings."""

from __future__ import annotations

from collections.abc import Callable

import grpc.aio

from quorum.access.audit import Audit
from quorum.access.authorizer import Authorizer
from quorum.access.guard import Context, Guard, Images, nobody
from quorum.access.logins import Sessions, by_tokens
from quorum.access.principals import PrincipalMapping, subject_of
from tidemark.config import ServerConfig
from tidemark.config.security import SCRAM, ListenerSecurity, uses_sasl, uses_ssl
from tidemark.errors import ConfigError
from tidemark.wire.credentials import read_pems


class AccessControl:
    """Of one node: what its listeners share."""

    def __init__(self, config: ServerConfig, images: Images) -> None:
        """Raises ConfigError."""
        self._config = config
        self._images = images
        self._audit = Audit()
        security = config.security
        self._authorizer = Authorizer(security) if security.authorizer_class_name else None
        self._sessions = Sessions(
            images,
            security.defaults.connections_max_reauth_ms,
            self._audit,
            security.connection_failed_authentication_delay_ms,
        )
        self._nodes = {*security.super_principals, *self._own_principals()}

    def _own_principals(self) -> set[str]:
        """The names that this node has at others: those of its certificates."""
        config, found = self._config, set()
        names = [*config.controller_listener_names]
        if config.is_broker:
            names.append(config.inter_broker_listener)
        for name in names:
            if not uses_ssl(config.security.protocol_of(name)):
                continue
            secured = config.security_of(name)
            if not secured.ssl.has_key:
                raise ConfigError(
                    f"nodes prove themselves by certificates on the listener {name}: set"
                    " ssl.keystore.location"
                )
            mapping = PrincipalMapping(secured.ssl_principal_mapping_rules)
            found.add(mapping.principal_of(subject_of(read_pems(secured.ssl).chain)))
        return found

    def guard_of(self, listener: str) -> Guard:
        """The guard of a listener. Raises ConfigError."""
        protocol, secured = (
            self._config.security.protocol_of(listener),
            self._config.security_of(listener),
        )
        own = (self._images, self._authorizer, self._audit)
        if uses_sasl(protocol):
            # Nodes have certificates: a user with the name of one is none.
            nodes = self._config.security.super_principals
            return Guard(*own, nodes, tokens=by_tokens(secured, self._sessions))
        if uses_ssl(protocol) and secured.ssl_client_auth == "required":
            return Guard(*own, self._nodes, principal_of=_by_certificate(secured))
        return Guard(*own, self._nodes)

    def add_login_to(self, server: grpc.aio.Server, listener: str) -> None:
        """Serves SCRAM logins where the listener has them."""
        mechanisms = self._config.security_of(listener).sasl_enabled_mechanisms
        if uses_sasl(self._config.security.protocol_of(listener)) and SCRAM in mechanisms:
            self._sessions.add_to(server)


def _by_certificate(secured: ListenerSecurity) -> Callable[[Context], str]:
    mapping = PrincipalMapping(secured.ssl_principal_mapping_rules)

    def principal_of(context: Context) -> str:
        shown = context.auth_context().get("x509_pem_cert", ())
        return mapping.principal_of(subject_of(shown[0])) if shown else nobody(context)

    return principal_of
