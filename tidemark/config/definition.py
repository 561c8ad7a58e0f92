"""Settings as dataclass fields: the attribute's name is the setting's name with '.' for '_'
(Kafka's names).

A settings class is a frozen dataclass whose fields are made by `setting(...)`. `parse` reads a
mapping of texts into one: it converts by the field's type and checks bounds and choices. An unknown
key is an error that suggests the nearest known one. Sizes are in bytes, durations in milliseconds.
"""

from __future__ import annotations

import dataclasses
import difflib
import math
import re
import typing
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, TypeVar

from tidemark.errors import ConfigError

T = TypeVar("T")

_MISSING = object()
_MAX_LONG = 2**63 - 1  # no number of Kafka's settings is wider
_DIGITS = re.compile(r"[+-]?[0-9]+")  # int() would take 1_000 and the digits of other scripts, too

# By settings class: ServerConfig and TopicConfig.
_keys: dict[type[Any], dict[str, dataclasses.Field[Any]]] = {}
_types: dict[type[Any], dict[str, Any]] = {}


def setting(
    default: Any = _MISSING,
    *,
    doc: str,
    at_least: float | None = None,
    at_most: float | None = None,
    one_of: tuple[str, ...] | None = None,
    matching: str | None = None,
    secret: bool = False,
) -> Any:
    """A field of a settings class; without a default the setting is required.

    A tuple is written as a comma-separated list. Its items, or the text, have to match the regular
    expression `matching`. The value of a `secret` one is told to nobody, also not by `repr`.
    """
    metadata = {
        "doc": doc,
        "at_least": at_least,
        "at_most": at_most,
        "one_of": one_of,
        "matching": matching,
        "secret": secret,
    }
    shown: Any = {"metadata": metadata, "kw_only": True, "repr": not secret}
    if default is _MISSING:
        return dataclasses.field(**shown)
    return dataclasses.field(default=default, **shown)


def section(settings_class: type[Any]) -> Any:
    """A field that holds settings of one subject, which have a class of their own.

    Their names are those of that class: a file of settings does not tell sections.
    """
    return dataclasses.field(
        default_factory=settings_class, metadata={"section": settings_class}, kw_only=True
    )


def key_of(attribute: str) -> str:
    """`log_segment_bytes` -> `log.segment.bytes`."""
    return attribute.replace("_", ".")


def keys_of(settings_class: type[Any]) -> Mapping[str, dataclasses.Field[Any]]:
    """The settings of a class and of its sections by Kafka's names. The mapping is computed once
    per class; do not change it.
    """
    found = _keys.get(settings_class)
    if found is None:
        found = _keys[settings_class] = {
            key_of(field.name): field
            for owner in _classes(settings_class)
            for field in dataclasses.fields(owner)
            if "doc" in field.metadata
        }
    return found


def _sections(settings_class: type[Any]) -> dict[str, type[Any]]:
    fields = dataclasses.fields(settings_class)
    return {f.name: f.metadata["section"] for f in fields if "section" in f.metadata}


def _classes(settings_class: type[Any]) -> Iterator[type[Any]]:
    """The class, and those of its sections and theirs."""
    yield settings_class
    for part in _sections(settings_class).values():
        yield from _classes(part)


def value_of(settings: Any, key: str) -> Any:
    """The value of the setting `key` in `settings` or one of its sections.

    Raises KeyError for an unknown one.
    """
    name = keys_of(type(settings))[key].name
    if hasattr(settings, name):
        return getattr(settings, name)
    parts = _sections(type(settings)).items()
    owner = next(part for part, kind in parts if key in keys_of(kind))
    return value_of(getattr(settings, owner), key)


def with_values(settings: T, altered: Mapping[str, Any]) -> T:
    """A copy of `settings` with other values by attribute, also of attributes of its sections."""
    changes = {k: v for k, v in altered.items() if hasattr(settings, k)}
    for part, kind in _sections(type(settings)).items():
        names = {field.name for field in keys_of(kind).values()}
        inner = {k: v for k, v in altered.items() if k in names and k not in changes}
        if inner:
            changes[part] = with_values(getattr(settings, part), inner)
    return dataclasses.replace(settings, **changes) if changes else settings  # type: ignore[type-var]


def types_of(settings_class: type[Any]) -> Mapping[str, Any]:
    """The types of a class's attributes, and of its sections'.

    They are resolved once per class, because that takes longer than the rest of a parse.
    """
    found = _types.get(settings_class)
    if found is None:
        found = _types[settings_class] = {}
        for owner in _classes(settings_class):
            found |= typing.get_type_hints(owner)
    return found


def text_of(value: Any) -> str:
    """The text that `convert` reads as `value`."""
    if isinstance(value, bool):
        return "true" if value else "false"
    return ",".join(value) if isinstance(value, tuple) else str(value)


def nearest(name: str, known: Iterable[str]) -> str | None:
    """The known name that `name` may be meant for."""
    return next(iter(difflib.get_close_matches(name, list(known), n=1, cutoff=0.5)), None)


def unknown_key(key: str, known: Iterable[str]) -> ConfigError:
    """The error for an unknown setting; it suggests the nearest known name."""
    near = nearest(key, known)
    hint = f"; did you mean {near!r}?" if near else ""
    return ConfigError(f"unknown setting {key!r}{hint}")


def convert(key: str, field: dataclasses.Field[Any], kind: Any, text: str) -> Any:
    """The typed and checked value of one setting. Raises ConfigError."""
    value = _convert_text(key, kind, text.strip())
    low, high = field.metadata["at_least"], field.metadata["at_most"]
    if kind is int and high is None:
        high = _MAX_LONG
    if low is not None and value < low:
        raise ConfigError(f"{key}={text!r} is below the least allowed value {low}")
    if high is not None and value > high:
        raise ConfigError(f"{key}={text!r} is above the greatest allowed value {high}")
    choices = field.metadata["one_of"]
    items = value if isinstance(value, tuple) else (value,)
    pattern = field.metadata["matching"]
    for item in items:
        if pattern is not None and not re.fullmatch(pattern, item):
            raise ConfigError(f"{key}={text!r}: {item!r} is not {field.metadata['doc']}")
        if choices is not None and item not in choices:
            raise ConfigError(f"{key}={text!r}: {item!r} is none of {', '.join(choices)}")
        if items.count(item) > 1:
            raise ConfigError(f"{key}={text!r} names {item!r} twice")
    return value


def _convert_text(key: str, kind: Any, text: str) -> Any:
    try:
        if kind is bool:
            return {"true": True, "false": False}[text.lower()]
        if kind is int and _DIGITS.fullmatch(text):
            return int(text)
        if kind is float and math.isfinite(float(text)):
            return float(text)
        if kind == tuple[str, ...]:
            return tuple(part.strip() for part in text.split(",") if part.strip())
        if kind is str:
            return text
    except (KeyError, ValueError):
        pass
    name = "true or false" if kind is bool else f"of type {kind.__name__}"
    raise ConfigError(f"{key}={text!r} is not {name}")


def parse(
    settings_class: type[T],
    values: Mapping[str, str],
    *,
    prefixes: Mapping[str, str] | None = None,
    origins: Mapping[str, str] | None = None,
) -> T:
    """Reads texts into `settings_class`.

    `prefixes` maps the key prefix of a plug-in's own settings (`rsm.config.`) to the dict attribute
    that collects them. `origins` has the place of each key, for errors. Raises ConfigError for
    unknown keys (all of them at once), missing required settings, and values of a wrong type or
    range.
    """
    places = {key: f"{place}: " for key, place in (origins or {}).items()}
    known = keys_of(settings_class)
    hints = types_of(settings_class)
    chosen: dict[str, Any] = {}
    plugin: dict[str, dict[str, str]] = {attribute: {} for attribute in (prefixes or {}).values()}
    strange: list[str] = []
    for key, text in values.items():
        if key in known:
            field = known[key]
            try:
                chosen[field.name] = convert(key, field, hints[field.name], text)
            except ConfigError as error:
                raise ConfigError(f"{places.get(key, '')}{error}") from None
            continue
        for prefix, attribute in (prefixes or {}).items():
            if key.startswith(prefix):
                plugin[attribute][key.removeprefix(prefix)] = text.strip()
                break
        else:
            strange.append(f"{places.get(key, '')}{unknown_key(key, known)}")
    if strange:
        raise ConfigError("; ".join(strange))
    for key, field in known.items():
        if field.name not in chosen and field.default is dataclasses.MISSING:
            raise ConfigError(f"the setting {key!r} is required: {field.metadata['doc']}")
    return _made(settings_class, chosen | plugin)


def _made(settings_class: type[T], chosen: Mapping[str, Any]) -> T:
    """The settings and their sections from values by attribute, of which each takes its own."""
    given = {
        attribute: _made(part, chosen) for attribute, part in _sections(settings_class).items()
    }
    own = {f.name for f in dataclasses.fields(settings_class)}  # type: ignore[arg-type]
    return settings_class(**given, **{name: chosen[name] for name in chosen if name in own})
