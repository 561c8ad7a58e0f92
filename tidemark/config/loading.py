"""Reads the settings of a node: `server.properties`, overridden by `TIDEMARK_...` variables."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

from tidemark.config.definition import keys_of, parse
from tidemark.config.properties import (
    environment_overrides,
    numbered_properties,
    variable_of,
)
from tidemark.config.server import ServerConfig
from tidemark.errors import ConfigError

# Kafka's coarser names of a setting, and their units in ms. The finer name takes precedence where
# several are set; -1 stays -1 (no limit).
_MINUTE_MS, _HOUR_MS = 60_000, 3_600_000
_COARSER = {
    "log.retention.minutes": ("log.retention.ms", _MINUTE_MS),
    "log.retention.hours": ("log.retention.ms", _HOUR_MS),
    "log.roll.hours": ("log.roll.ms", _HOUR_MS),
    "log.roll.jitter.hours": ("log.roll.jitter.ms", _HOUR_MS),
    "log.dir": ("log.dirs", 1),
}
_PREFIXES = {
    "rsm.config.": "rsm_config",
    "rlmm.config.": "rlmm_config",
    "listener.name.": "listener_name",
}


def parse_server_config(
    values: Mapping[str, str], origins: Mapping[str, str] | None = None
) -> ServerConfig:
    """Parses settings by name, including Kafka's coarser ones (log.retention.hours).

    Raises ConfigError, which begins with the place in `origins` of a setting.
    """
    places = dict(origins or {})
    finer = _in_ms(values, places)
    return parse(ServerConfig, finer, prefixes=_PREFIXES, origins=places)


def _in_ms(values: Mapping[str, str], places: dict[str, str]) -> dict[str, str]:
    """The settings with each coarser name of `_COARSER` replaced by its finer one, unless that is
    set. The finer one has its place.
    """
    finer = {key: text for key, text in values.items() if key not in _COARSER}
    for key, (target, unit_ms) in _COARSER.items():
        text = values.get(key)
        if text is not None and target not in finer:
            place = places.get(key)
            finer[target] = text if unit_ms == 1 else _times(key, text.strip(), unit_ms, place)
            if place is not None:
                places[target] = place
    return finer


def _times(key: str, text: str, unit_ms: int, place: str | None) -> str:
    digits = text.removeprefix("-")
    if not (digits.isascii() and digits.isdigit()):
        where = "" if place is None else f"{place}: "
        raise ConfigError(f"{where}{key}={text!r} is not of type int")
    return text if int(text) < 0 else str(int(text) * unit_ms)


def load_server_config(path: str | Path, environ: Mapping[str, str] | None = None) -> ServerConfig:
    """Reads a properties file and applies TIDEMARK_... variables to it.

    Raises ConfigError, which names the line, the variable, or at least the file.
    """
    try:
        text = Path(path).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"can not read {path}: {error}") from error
    numbered = numbered_properties(text, source=str(path))
    chosen = os.environ if environ is None else environ
    overrides = environment_overrides(chosen, [*keys_of(ServerConfig), *_COARSER])
    values = {key: value for key, (value, _) in numbered.items()} | overrides
    origins = {key: f"{path}, line {line}" for key, (_, line) in numbered.items()}
    origins |= {key: f"the variable {variable_of(key)}" for key in overrides}
    try:
        return parse_server_config(values, origins)
    except ConfigError as error:
        if str(error).startswith(tuple(origins.values())):
            raise
        raise ConfigError(f"{path}: {error}") from None
