"""The settings of a topic's values: what is refused when they are set."""

from __future__ import annotations

import base64
import json

import pytest

from tests.spark.test_values import AVRO, descriptors
from tidemark.config import TopicConfig, validate_topic_configs
from tidemark.config.value_schema import SCHEMA_CHARS_MAX, json_kind
from tidemark.errors import InvalidConfigError

FLIGHT = {
    "type": "object",
    "properties": {
        "carrier": {"type": ["string", "null"], "description": "two letters"},
        "at": {"type": "string", "format": "date-time"},
        "day": {"type": "string", "format": "date"},
        "delays": {"type": "array", "items": {"type": "number"}},
        "plane": {"type": "object", "properties": {"seats": {"type": "integer"}}},
    },
}
PROTO = base64.b64encode(descriptors()).decode()


def configs(**given: str) -> dict[str, str]:
    names = {"schema": "value.schema", "message": "value.schema.message", "kind": "value.format"}
    return {names[name]: value for name, value in given.items()}


@pytest.mark.parametrize(
    "given",
    [
        {"kind": "json", "schema": json.dumps(FLIGHT)},
        {"kind": "avro", "schema": json.dumps(AVRO)},
        {"kind": "protobuf", "schema": PROTO, "message": "air.Flight"},
        {},
    ],
)
def test_a_schema_of_each_format_is_taken(given: dict[str, str]) -> None:
    values = validate_topic_configs(configs(**given))
    assert TopicConfig(**values).value_format == given.get("kind", "")  # type: ignore[arg-type]


def test_the_kinds_of_a_json_schema() -> None:
    assert json_kind(json.dumps(FLIGHT)) == {
        "carrier": "string",
        "at": "date-time",
        "day": "string",
        "delays": ["number"],
        "plane": {"seats": "integer"},
    }


def _nested(depth: int) -> str:
    return '{"type":"object","properties":{"a":' * depth + '{"type":"string"}' + "}}" * depth


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ({"kind": "xml", "schema": "{}"}, "is none of , json, avro, protobuf"),
        ({"kind": "json"}, "belong together"),
        ({"schema": "{}"}, "belong together"),
        ({"kind": "json", "schema": "a int"}, "value.schema is no JSON"),
        ({"kind": "json", "schema": '{"type":"string"}'}, "a value is an object"),
        ({"kind": "json", "schema": '{"type":"object"}'}, "the schema has no column"),
        ({"kind": "json", "schema": "[]"}, "the schema is not an object"),
        (
            {"kind": "json", "schema": '{"type":"object","properties":{"a":{"$ref":"x"}}}'},
            ".a has no column",
        ),
        (
            {
                "kind": "json",
                "schema": '{"type":"object","properties":{"a":{"type":["string","integer"]}}}',
            },
            ".a has no column",
        ),
        (
            {"kind": "json", "schema": '{"type":"object","properties":{"a":{"type":"array"}}}'},
            r".a\[\] is not an object",
        ),
        ({"kind": "json", "schema": _nested(40)}, "nested more than 32 deep"),
        ({"kind": "json", "schema": "[" * 60_000}, "value.schema is no JSON"),
        ({"kind": "json", "schema": " " * 7 + "x" * SCHEMA_CHARS_MAX + "x"}, "65536 are allowed"),
        ({"kind": "avro", "schema": '"int"'}, "an Avro value is"),
        ({"kind": "avro", "schema": '{"type":"record","name":"R","fields":[1]}'}, "an Avro value"),
        ({"kind": "protobuf", "schema": PROTO}, "value.schema.message names the message"),
        ({"kind": "protobuf", "schema": PROTO, "message": "air.Plane"}, "no message 'air.Plane'"),
        ({"kind": "protobuf", "schema": "%%", "message": "a.B"}, "in base64"),
        ({"kind": "protobuf", "schema": "//8=", "message": "a.B"}, "no FileDescriptorSet"),
        ({"kind": "json", "schema": json.dumps(FLIGHT), "message": "a.B"}, "and of no other"),
    ],
)
def test_a_schema_without_columns_is_refused(given: dict[str, str], says: str) -> None:
    with pytest.raises(InvalidConfigError, match=says):
        validate_topic_configs(configs(**given))
