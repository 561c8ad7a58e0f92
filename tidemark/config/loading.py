"""Reads the settings of a node: `server.properties`, overridden by `TIDEMARK_...` variables."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

from tidemark.config.definition import keys_of, parse
from tidemark.config.properties import environment_overrides, parse_properties
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
_PLUGIN_PREFIXES = {"rsm.config.": "rsm_config", "rlmm.config.": "rlmm_config"}


def parse_server_config(values: Mapping[str, str]) -> ServerConfig:
    """Parses settings by name, including Kafka's coarser ones (log.retention.hours). Raises
    ConfigError.
    """
    return parse(ServerConfig, _in_ms(values), prefixes=_PLUGIN_PREFIXES)


def _in_ms(values: Mapping[str, str]) -> dict[str, str]:
    """The settings with each coarser name of `_COARSER` replaced by its finer one, unless that is
    set.
    """
    finer = {key: text for key, text in values.items() if key not in _COARSER}
    for key, (target, unit_ms) in _COARSER.items():
        text = values.get(key)
        if text is not None and target not in finer:
            finer[target] = text if unit_ms == 1 else _times(key, text.strip(), unit_ms)
    return finer


def _times(key: str, text: str, unit_ms: int) -> str:
    digits = text.removeprefix("-")
    if not (digits.isascii() and digits.isdigit()):
        raise ConfigError(f"{key}={text!r} is not of type int")
    return text if int(text) < 0 else str(int(text) * unit_ms)


def load_server_config(path: str | Path, environ: Mapping[str, str] | None = None) -> ServerConfig:
    """Reads a properties file and applies TIDEMARK_... variables to it. Raises ConfigError."""
    try:
        text = Path(path).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"can not read {path}: {error}") from error
    values = parse_properties(text, source=str(path))
    chosen = os.environ if environ is None else environ
    known = [*keys_of(ServerConfig), *_COARSER]
    return parse_server_config(values | environment_overrides(chosen, known))
