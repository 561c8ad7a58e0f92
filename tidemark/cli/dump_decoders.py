"""Decoders of the keys and values that `tidemark dump-log` prints: those of the internal topics,
and functions of the user's own.

A decoder is imported when it is used.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from tidemark.errors import ConfigError, CorruptMessageError


def decoders_of(*, cluster: bool, tier: bool, transactions: bool, offsets: bool) -> dict[str, Any]:
    """The decoders of a kind of records, as options of a dump; none if keys and values are text."""
    if cluster + tier + transactions + offsets > 1:
        raise ConfigError("a file holds records of one kind: give one of the decoders")
    if cluster:
        return {"decode_value": _cluster_metadata}
    if tier:
        from tiering.metadata.codec import decode, format_metadata

        return {"decode_value": lambda value: format_metadata(decode(value))}
    if transactions:
        from coordinator.records.text import decoder
        from coordinator.records.transactions import TRANSACTION_RECORDS

        return {"decode_record": decoder(TRANSACTION_RECORDS)}
    if offsets:
        from coordinator.records.groups import GROUP_RECORDS
        from coordinator.records.text import decoder

        return {"decode_record": decoder(GROUP_RECORDS)}
    return {}


def remote_log_metadata_formatter(
    properties: Sequence[str],
) -> tuple[dict[str, Any], Callable[[Path, dict[str, Any]], dict[str, Any]]]:
    """The options of a dump that shows tier metadata in KIP-405's format. The function adds
    partition and offset to an entry of a file."""
    from tiering.metadata.codec import decode
    from tiering.metadata.formatter import RemoteLogMetadataFormatter

    pairs = [given.partition("=") for given in properties]
    formatter = RemoteLogMetadataFormatter.configured({key: value for key, _, value in pairs})

    def place(path: Path, entry: dict[str, Any]) -> dict[str, Any]:
        number = path.resolve().parent.name.rpartition("-")[2]
        if "payload" not in entry:
            return entry
        begin = formatter.place(int(number) if number.isdigit() else -1, int(entry["offset"]))
        return {**entry, "payload": begin + str(entry["payload"])}

    return {"decode_value": lambda value: formatter.text(decode(value))}, place


def decoders_named(key: str, value: str) -> dict[str, Any]:
    """The functions of --key-decoder-class and --value-decoder-class, as options of a dump."""
    named = (("decode_key", key), ("decode_value", value))
    return {option: _decoder(name) for option, name in named if name}


def _decoder(name: str) -> Callable[[bytes], str]:
    """The function that `module:function` names; its errors are printed in place of the text."""
    from importlib import import_module

    module, colon, function = name.partition(":")
    try:
        decode = getattr(import_module(module), function) if colon else None
    except (ImportError, AttributeError, ValueError) as error:
        raise ConfigError(f"there is no decoder {name!r}: {error}") from error
    if not callable(decode):
        raise ConfigError(f"{name!r} is not MODULE:FUNCTION, like mypackage.codecs:decode_order")

    def text(data: bytes) -> str:
        try:
            return str(decode(data))
        except Exception as error:  # foreign code may raise anything; the dump continues
            raise CorruptMessageError(f"{name}: {type(error).__name__}: {error}") from error

    return text


def _cluster_metadata(value: bytes) -> str:
    from google.protobuf.json_format import MessageToJson
    from google.protobuf.message import DecodeError

    from commitlog.dump.kafka_metadata import is_kafkas, metadata_text
    from tidemark.v1.metadata_pb2 import MetadataRecord

    if is_kafkas(value):
        return metadata_text(value)
    try:
        return MessageToJson(MetadataRecord.FromString(value), indent=None)
    except DecodeError as error:
        raise CorruptMessageError(f"the value is no metadata record: {error}") from error
