"""Java-style properties files, as `server.properties` and `meta.properties` are written, and
settings from the environment.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from tidemark.errors import ConfigError

ENV_PREFIX = "TIDEMARK_"


def parse_properties(text: str, *, source: str = "properties") -> dict[str, str]:
    """Parses `key=value` lines, with `#` and `!` comments; a trailing `\\` joins lines.

    Raises ConfigError, naming `source` and the line, for a line that is no assignment and for a key
    that is set twice.
    """
    values: dict[str, str] = {}
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
            raise ConfigError(f"{source}, line {first_line}: {raw.strip()!r} is not key=value")
        if key.strip() in values:
            raise ConfigError(f"{source}, line {first_line}: {key.strip()!r} is set twice")
        values[key.strip()] = value.strip()
    if pending:
        raise ConfigError(f"{source}, line {first_line}: the file ends within a continued line")
    return values


def format_properties(values: Mapping[str, str]) -> str:
    """The text of a properties file, in the mapping's order."""
    return "".join(f"{key}={value}\n" for key, value in values.items())


def environment_overrides(environ: Mapping[str, str], known: Iterable[str]) -> dict[str, str]:
    """`TIDEMARK_LOG_SEGMENT_BYTES=1` as `log.segment.bytes`, for known settings only.

    Other TIDEMARK_ variables are no error: they belong to tools and tests (TIDEMARK_S3_ENDPOINT).
    """
    names = {ENV_PREFIX + key.upper().replace(".", "_"): key for key in known}
    return {names[name]: value for name, value in environ.items() if name in names}
