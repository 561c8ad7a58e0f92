"""Security of the source's and the sink's clients: the options of Kafka's clients, checked at once.

Names are those of `tidemark.config.security.ClientSecurity`, with or without `kafka.` before them,
as Spark's Kafka source wants them. The option commandConfig names a file of the same settings,
which keeps secrets out of options, plans and catalogs. Every process reads it where it runs.

No error of this module has a value in it: it may be a secret.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path

from tidemark.config.definition import keys_of, text_of, value_of
from tidemark.config.properties import parse_properties
from tidemark.config.security import NO_SECURITY, ClientSecurity, client_security
from tidemark.errors import ConfigError

FILE_OPTION = "commandConfig"
_PREFIX = "kafka."
_FILE = FILE_OPTION.lower()
_REFUSED = {
    "sasl.jaas.config": "give sasl.username and sasl.password, or sasl.oauthbearer.token",
    "ssl.truststore.password": "certificates are PEM, which has no password",
    "ssl.keystore.password": "keys are PEM: an encrypted one has ssl.key.password",
    "ssl.truststore.type": "certificates are PEM; leave it out",
    "ssl.keystore.type": "keys are PEM; leave it out",
}


def names() -> tuple[str, ...]:
    """The options of this module, as they are written."""
    return (*keys_of(ClientSecurity), FILE_OPTION)


def _plain(option: str) -> str:
    return option.lower().removeprefix(_PREFIX)


def is_security(option: str) -> bool:
    """Whether this module reads, or refuses, an option."""
    name = _plain(option)
    return name in keys_of(ClientSecurity) or name == _FILE or name in _REFUSED


def secrets_in(options: Iterable[str]) -> list[str]:
    """The options whose values nobody else may see."""
    known = keys_of(ClientSecurity)
    return [
        option
        for option in options
        if _plain(option) in known and known[_plain(option)].metadata["secret"]
    ]


def security_of(options: Mapping[str, str]) -> ClientSecurity | None:
    """How clients connect; None without such options: as the process does.

    Raises ConfigError for a wrong value, settings that do not belong together, and a file that can
    not be read.
    """
    given = _given(options)
    if not given:
        return None
    path = given.pop(_FILE, None)
    if path is None:
        return _parsed(given)
    if given:
        raise ConfigError(
            f"{', '.join(sorted(given))}: {FILE_OPTION} has the settings; give the file or options"
        )
    try:
        return _parsed(parse_properties(Path(path).read_text(encoding="utf-8"), source=path))
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(
            f"{FILE_OPTION}: {error}; the file has to be on the driver and where tasks run"
        ) from None
    except ConfigError as error:
        raise ConfigError(f"{FILE_OPTION}: {error}") from None


def _given(options: Mapping[str, str]) -> dict[str, str]:
    found: dict[str, str] = {}
    for option in filter(is_security, options):
        name, value = _plain(option), str(options[option]).strip()
        if name in _REFUSED:
            raise ConfigError(f"{name}: {_REFUSED[name]}")
        if found.get(name, value) != value:
            raise ConfigError(f"{name} and {_PREFIX}{name} differ: give one of them")
        found[name] = value
    return found


def _parsed(given: Mapping[str, str]) -> ClientSecurity:
    """Raises ConfigError also for settings that the protocol leaves without effect."""
    security = client_security(given) if given else NO_SECURITY
    uses = {"ssl.": security.uses_ssl, "sasl.": security.uses_sasl}
    for prefix, is_used in uses.items():
        idle = sorted(name for name in given if name.startswith(prefix) and not is_used)
        if idle:
            wanted = "SSL or SASL_SSL" if prefix == "ssl." else "SASL_SSL"
            raise ConfigError(
                f"{', '.join(idle)} without effect: security.protocol={wanted} uses it, and"
                f" {security.security_protocol} does not"
            )
    return security


def as_options(security: ClientSecurity | None) -> dict[str, str]:
    """The options that mean `security`; none for that of the process."""
    if security is None:
        return {}
    texts = {key: text_of(value_of(security, key)) for key in keys_of(ClientSecurity)}
    return {key: text for key, text in texts.items() if text}
