"""Java-style properties files, as `server.properties` and `meta.properties` are written, and
settings from the environment.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping

from tidemark.config.definition import nearest
from tidemark.errors import ConfigError

ENV_PREFIX = "TIDEMARK_"
# Variables of clients and stores, of the project's own tests and benches, and the links that
# Kubernetes makes for a service that is called tidemark.
_NO_SETTINGS = re.compile(
    "BOOTSTRAP_SERVER|COMMAND_CONFIG|COMPLETE|S3_.*|SPARK_.*"
    "|(SOAK|EXAMPLES|(SIM|CHAOS|DAMAGE|BENCH)_.*)"
    "|(.*_)?(SERVICE_HOST|SERVICE_PORT(_.*)?|PORT(_[0-9]+_.*)?)"
)


def parse_properties(text: str, *, source: str = "properties") -> dict[str, str]:
    """Parses `key=value` lines, with `#` and `!` comments; a trailing `\\` joins lines.

    Raises ConfigError, naming `source` and the line, for a line that is no assignment and for a key
    that is set twice.
    """
    return {key: value for key, (value, _) in numbered_properties(text, source=source).items()}


def numbered_properties(text: str, *, source: str) -> dict[str, tuple[str, int]]:
    """As `parse_properties`, each value with the number of its line."""
    values: dict[str, tuple[str, int]] = {}
    pending, first_line = "", 0
    for number, raw in enumerate(text.splitlines(), start=1):
        line = raw.strip() if not pending else pending + raw.strip()
        first_line = first_line if pending else number
        pending = ""
        if not line or line[0] in "#!":
            continue
        if line.endswith("\\"):
            pending = line[:-1]
            continue
        key, separator, value = line.partition("=")
        if not separator or not key.strip():
            raise ConfigError(
                f"{source}, line {first_line}: {_shown(raw.strip())} is not key=value"
            )
        if key.strip() in values:
            raise ConfigError(f"{source}, line {first_line}: {key.strip()!r} is set twice")
        values[key.strip()] = (value.strip(), first_line)
    if pending:
        raise ConfigError(f"{source}, line {first_line}: the file ends within a continued line")
    return values


def _shown(line: str) -> str:
    """A line that is no assignment, as far as it looks like a name: the rest may be a secret."""
    name = re.match(r"[a-z0-9._=-]{1,60}(?=[\s:]|$)", line)
    if name is None:
        return "this line"
    return repr(line if name.group() == line else f"{name.group()} ...")


def format_properties(values: Mapping[str, str]) -> str:
    """The text of a properties file, in the mapping's order."""
    return "".join(f"{key}={value}\n" for key, value in values.items())


def environment_overrides(environ: Mapping[str, str], known: Iterable[str]) -> dict[str, str]:
    """`TIDEMARK_LOG_SEGMENT_BYTES=1` as `log.segment.bytes`.

    Raises ConfigError for a name that is neither a setting's nor of another use, such as
    TIDEMARK_S3_ENDPOINT.
    """
    names = {variable_of(key): key for key in known}
    overrides: dict[str, str] = {}
    for name, value in environ.items():
        if name in names:
            overrides[names[name]] = value
        elif name.startswith(ENV_PREFIX) and not _NO_SETTINGS.fullmatch(name[len(ENV_PREFIX) :]):
            near = nearest(name, names)
            hint = f"; did you mean {near}?" if near else ""
            raise ConfigError(f"the variable {name} of the environment is no setting{hint}")
    return overrides


def variable_of(key: str) -> str:
    """`log.segment.bytes` -> `TIDEMARK_LOG_SEGMENT_BYTES`."""
    return ENV_PREFIX + key.upper().replace(".", "_")
