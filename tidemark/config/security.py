"""Settings of secured connections, by Kafka's names: `ssl.*` in PEM (KIP-651), and logins.

`Ssl` is what both ends have. `ClientSecurity` is that of a client, `ListenerSecurity` that of one
listener of a node.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from tidemark.config.definition import keys_of, parse, section, setting, text_of, value_of
from tidemark.errors import ConfigError
from tidemark.security.scram import MECHANISM

PLAINTEXT, SSL, SASL_PLAINTEXT, SASL_SSL = "PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL"
PROTOCOLS = (PLAINTEXT, SSL, SASL_PLAINTEXT, SASL_SSL)
SCRAM, BEARER = MECHANISM, "OAUTHBEARER"
MECHANISMS = (SCRAM, BEARER)


def uses_ssl(protocol: str) -> bool:
    return protocol in (SSL, SASL_SSL)


def uses_sasl(protocol: str) -> bool:
    return protocol in (SASL_PLAINTEXT, SASL_SSL)


@dataclass(frozen=True, slots=True)
class Ssl:
    """Key, certificate and trust of one end; each from files, which are read again when they
    change, or as PEM text.
    """

    ssl_keystore_location: tuple[str, ...] = setting(
        (), doc="PEM files with a private key and its certificate chain"
    )
    ssl_keystore_key: str = setting("", doc="private key as PEM, in place of a file", secret=True)
    ssl_keystore_certificate_chain: str = setting(
        "", doc="certificate chain as PEM, in place of a file"
    )
    ssl_key_password: str = setting("", doc="password of an encrypted private key", secret=True)
    ssl_truststore_location: tuple[str, ...] = setting(
        (), doc="PEM files with the certificates of trusted authorities"
    )
    ssl_truststore_certificates: str = setting(
        "", doc="certificates of trusted authorities as PEM, in place of files"
    )

    @property
    def has_key(self) -> bool:
        return bool(self.ssl_keystore_location or self.ssl_keystore_key)

    @property
    def has_trust(self) -> bool:
        return bool(self.ssl_truststore_location or self.ssl_truststore_certificates)


@dataclass(frozen=True, slots=True)
class ClientSecurity:
    """How a client connects. The same settings hold for a producer, a consumer, an admin, the
    command line and Spark.
    """

    security_protocol: str = setting(PLAINTEXT, doc="how brokers are spoken with", one_of=PROTOCOLS)
    ssl: Ssl = section(Ssl)
    sasl_mechanism: str = setting("", doc="how a user logs in", one_of=("", *MECHANISMS))
    sasl_username: str = setting("", doc="name of a SCRAM user")
    sasl_password: str = setting("", doc="password of a SCRAM user", secret=True)
    sasl_oauthbearer_token: str = setting("", doc="JWT of the user", secret=True)
    sasl_oauthbearer_token_location: str = setting(
        "", doc="file with the JWT of the user, which is read again when it changes"
    )

    def __post_init__(self) -> None:
        if not uses_sasl(self.security_protocol):
            if self.sasl_mechanism:
                raise ConfigError(
                    f"sasl.mechanism={self.sasl_mechanism} needs security.protocol=SASL_SSL,"
                    f" which is {self.security_protocol}"
                )
            return
        if self.sasl_mechanism == SCRAM and not (self.sasl_username and self.sasl_password):
            raise ConfigError("sasl.mechanism=SCRAM-SHA-512 needs sasl.username and sasl.password")
        tokens = (self.sasl_oauthbearer_token, self.sasl_oauthbearer_token_location)
        if self.sasl_mechanism == BEARER and not any(tokens):
            raise ConfigError(
                "sasl.mechanism=OAUTHBEARER needs sasl.oauthbearer.token or"
                " sasl.oauthbearer.token.location"
            )
        if not self.sasl_mechanism:
            raise ConfigError(
                f"security.protocol={self.security_protocol} needs sasl.mechanism:"
                f" {' or '.join(MECHANISMS)}"
            )

    @property
    def uses_ssl(self) -> bool:
        return uses_ssl(self.security_protocol)

    @property
    def uses_sasl(self) -> bool:
        return uses_sasl(self.security_protocol)


NO_SECURITY = ClientSecurity()


def client_security(values: Mapping[str, str] | None) -> ClientSecurity:
    """The security of a client from settings by Kafka's names. Raises ConfigError."""
    return parse(ClientSecurity, values) if values else NO_SECURITY


@dataclass(frozen=True, slots=True)
class ListenerSecurity:
    """How one listener is secured; `listener.name.NAME.` before a setting is for NAME alone."""

    ssl: Ssl = section(Ssl)
    ssl_client_auth: str = setting(
        "none", doc="whether clients have to show a certificate", one_of=("none", "required")
    )
    ssl_principal_mapping_rules: str = setting(
        "DEFAULT", doc="how the subject of a certificate becomes a user's name (KIP-371)"
    )
    sasl_enabled_mechanisms: tuple[str, ...] = setting(
        (SCRAM,), doc="how users may log in", one_of=MECHANISMS
    )
    sasl_oauthbearer_jwks_endpoint_url: str = setting(
        "", doc="https:// or file:// URL of the keys that sign users' JWTs"
    )
    sasl_oauthbearer_expected_audience: tuple[str, ...] = setting(
        (), doc="audiences of which a JWT has to name one"
    )
    sasl_oauthbearer_expected_issuer: str = setting("", doc="issuer that a JWT has to name")
    sasl_oauthbearer_sub_claim_name: str = setting("sub", doc="claim of a JWT with the user's name")
    sasl_oauthbearer_clock_skew_seconds: int = setting(
        30, doc="by how much clocks may differ where a JWT ends", at_least=0
    )
    connections_max_reauth_ms: int = setting(
        3_600_000, doc="time after which a user has to log in again (KIP-368)", at_least=1_000
    )


@dataclass(frozen=True, slots=True)
class NodeSecurity:
    """The security of a node: which listener speaks what, and who may do what."""

    listener_security_protocol_map: tuple[str, ...] = setting(
        (),
        doc="NAME:PROTOCOL for each listener that is not named by its protocol",
        matching=r"[A-Za-z0-9_.-]+:(PLAINTEXT|SSL|SASL_PLAINTEXT|SASL_SSL)",
    )
    defaults: ListenerSecurity = section(ListenerSecurity)
    connection_failed_authentication_delay_ms: int = setting(
        100, doc="time until a failed login is answered, against guessing", at_least=0
    )
    authorizer_class_name: str = setting(
        "",
        doc="StandardAuthorizer: ACLs of the metadata log say who may do what; empty: everybody may"
        " do everything",
        one_of=(
            "",
            "StandardAuthorizer",
            "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
        ),
    )
    super_users: str = setting(
        "", doc="User:name;User:name who may do everything", matching=r"(User:[^;]+(;|$))*"
    )
    allow_everyone_if_no_acl_found: bool = setting(
        False, doc="whether a resource without ACLs is everybody's"
    )

    @property
    def super_principals(self) -> frozenset[str]:
        return frozenset(one.strip() for one in self.super_users.split(";") if one.strip())

    def of_listener(self, listener: str, overrides: Mapping[str, str]) -> ListenerSecurity:
        """The security of a listener; `overrides` are settings that begin with its name.

        Raises ConfigError.
        """
        prefix = f"{listener.lower()}."
        own = {k.removeprefix(prefix): t for k, t in overrides.items() if k.startswith(prefix)}
        if not own:
            return self.defaults
        common = {key: text_of(value_of(self.defaults, key)) for key in keys_of(ListenerSecurity)}
        try:
            return parse(ListenerSecurity, common | own)
        except ConfigError as error:
            raise ConfigError(f"listener.name.{listener.lower()}.*: {error}") from None

    def protocol_of(self, listener: str) -> str:
        """The security protocol of a listener.

        A listener that no entry of the map names has that of its own name, else PLAINTEXT as long
        as there is no map. Raises ConfigError.
        """
        told = dict(entry.upper().split(":", 1) for entry in self.listener_security_protocol_map)
        if listener in told:
            return told[listener]
        if listener in PROTOCOLS:
            return listener
        if told:
            raise ConfigError(
                f"listener.security.protocol.map has no entry for the listener {listener}: add"
                f" {listener}:PLAINTEXT, or another of {', '.join(PROTOCOLS)}"
            )
        return PLAINTEXT
