"""The name of whom a certificate is for (KIP-371): its subject, or what rules make of it."""

from __future__ import annotations

import functools
import re
from collections.abc import Sequence
from typing import NamedTuple

from tidemark.errors import ConfigError

_RULE = re.compile(
    r"\s*(?:(?P<default>DEFAULT)"
    r"|RULE:(?P<pattern>(?:\\.|[^\\/])*)/(?P<new>(?:\\.|[^\\/])*)/(?P<case>[LU]?))\s*(?:,|$)"
)
_JAVA_GROUP = re.compile(r"\$(\d+)")


class _Rule(NamedTuple):
    """`pattern` of None: the subject as it is."""

    pattern: re.Pattern[str] | None
    replacement: str = ""
    case: str = ""


class PrincipalMapping:
    """ssl.principal.mapping.rules: the first rule that matches the whole subject counts."""

    def __init__(self, text: str) -> None:
        """Raises ConfigError."""
        self._rules = tuple(_parsed(text))

    def principal_of(self, subject: str) -> str:
        """`User:` and a name, of a subject in the form of RFC 2253."""
        for rule in self._rules:
            if rule.pattern is None:
                return f"User:{subject}"
            match = rule.pattern.fullmatch(subject)
            if match is None:
                continue
            name = match.expand(rule.replacement)
            cased = {"L": name.lower(), "U": name.upper()}
            return f"User:{cased.get(rule.case, name)}"
        return f"User:{subject}"


def _parsed(text: str) -> Sequence[_Rule]:
    rules, position = [], 0
    while position < len(text):
        found = _RULE.match(text, position)
        if found is None:
            raise ConfigError(
                f"ssl.principal.mapping.rules: {text[position:]!r} is neither DEFAULT nor"
                " RULE:pattern/replacement/ with L or U behind it"
            )
        position = found.end()
        if found["default"]:
            rules.append(_Rule(None))
            continue
        try:
            pattern = re.compile(found["pattern"])
            replacement = _JAVA_GROUP.sub(r"\\\1", found["new"])
            if any(int(number) > pattern.groups for number in _JAVA_GROUP.findall(found["new"])):
                raise ConfigError(
                    f"ssl.principal.mapping.rules: {found['new']!r} names a group that the pattern"
                    " does not have"
                )
        except re.error as error:
            raise ConfigError(
                f"ssl.principal.mapping.rules: {found['pattern']!r}: {error}"
            ) from None
        rules.append(_Rule(pattern, replacement, found["case"]))
    return rules


@functools.lru_cache(maxsize=1_024)
def subject_of(certificate: bytes) -> str:
    """The subject of the first certificate in `certificate` (PEM), as in RFC 2253: the most
    specific part first.
    """
    from cryptography import x509

    return x509.load_pem_x509_certificates(certificate)[0].subject.rfc4514_string()
