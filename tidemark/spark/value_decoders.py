"""Decoders of JSON, Avro and Protobuf to Arrow; they pickle, and build in the worker what they use.

Both give structs of a type that is fixed by the schema, and null where a value is wrong.
"""

from __future__ import annotations

import functools
import io
import json
from collections.abc import Mapping
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.json as pa_json

from tidemark.config.value_schema import JsonKind, json_kind
from tidemark.errors import ConfigError

_PRIMITIVES = {
    "boolean": pa.bool_(),
    "int": pa.int32(),
    "long": pa.int64(),
    "float": pa.float32(),
    "double": pa.float64(),
    "bytes": pa.binary(),
    "string": pa.string(),
    "null": pa.null(),
}
_OF_JSON = {
    "string": pa.string(),
    "integer": pa.int64(),
    "number": pa.float64(),
    "boolean": pa.bool_(),
    "date-time": pa.timestamp("us", tz="UTC"),
}
_LOGICAL = {
    "date": pa.date32(),
    "timestamp-millis": pa.timestamp("us", tz="UTC"),
    "timestamp-micros": pa.timestamp("us", tz="UTC"),
    "local-timestamp-millis": pa.timestamp("us"),
    "local-timestamp-micros": pa.timestamp("us"),
}


def arrow_type_of_avro(schema: Any, known: Mapping[str, pa.DataType] | None = None) -> pa.DataType:
    """The Arrow type of an Avro schema as fastavro parses it.

    Raises ConfigError for a recursive type, and a union of more than null and one type.
    """
    named = dict(known or {})
    return _arrow_type(schema, named)


def _arrow_type(schema: Any, named: dict[str, pa.DataType]) -> pa.DataType:
    if isinstance(schema, list):
        others = [each for each in schema if each != "null"]
        if len(others) != 1:
            raise ConfigError(f"a union of null and one type has a column, and {schema} does not")
        return _arrow_type(others[0], named)
    if isinstance(schema, str):
        if schema in _PRIMITIVES:
            return _PRIMITIVES[schema]
        if schema not in named:
            raise ConfigError(f"the Avro type {schema!r} contains itself: no column can")
        return named[schema]
    kind = schema["type"]
    if schema.get("logicalType") in _LOGICAL:
        return _LOGICAL[schema["logicalType"]]
    if schema.get("logicalType") == "decimal":
        return pa.decimal128(schema["precision"], schema.get("scale", 0))
    if kind == "array":
        return pa.list_(_arrow_type(schema["items"], named))
    if kind == "map":
        return pa.map_(pa.string(), _arrow_type(schema["values"], named))
    if kind in ("enum", "fixed"):
        named[schema["name"]] = pa.string() if kind == "enum" else pa.binary()
        return named[schema["name"]]
    if kind in ("record", "error"):
        fields = [pa.field(f["name"], _arrow_type(f["type"], named)) for f in schema["fields"]]
        named[schema["name"]] = pa.struct(fields)
        return named[schema["name"]]
    return _arrow_type(kind, named)


def _plain(schema: Any) -> Any:
    """The schema without logical types that have no column: Avro then means the type beneath."""
    if isinstance(schema, list):
        return [_plain(each) for each in schema]
    if not isinstance(schema, dict):
        return schema
    is_known = schema.get("logicalType") in (*_LOGICAL, "decimal")
    return {
        key: _plain(value) if key in ("type", "items", "values", "fields") else value
        for key, value in schema.items()
        if key != "logicalType" or is_known
    }


class AvroDecoder:
    """Decodes values of one Avro record, without a header before it."""

    def __init__(self, schema: str) -> None:
        """Raises ConfigError for a schema that is none, or has no columns."""
        try:
            import fastavro
        except ModuleNotFoundError:
            raise ConfigError("Avro needs fastavro: pip install 'tidemark[typed]'") from None
        try:
            parsed = fastavro.parse_schema(_plain(json.loads(schema)))
        except (ValueError, TypeError, fastavro.schema.SchemaParseException) as error:
            raise ConfigError(f"the Avro schema is wrong: {error}") from None
        if not isinstance(parsed, dict) or parsed.get("type") != "record":
            raise ConfigError("the Avro schema of values is that of a record")
        self._schema = parsed
        self._type = arrow_type_of_avro(parsed)

    def spark_type(self) -> Any:
        from pyspark.sql.pandas.types import from_arrow_type

        return from_arrow_type(self._type)

    def decode(self, values: pa.Array) -> tuple[pa.Array, pa.Array]:
        """Structs, and the values that are wrong; both as long as `values`."""
        given = values.to_pylist()
        rows = [None if value is None else self._record(value) for value in given]
        try:
            found = pa.array(rows, self._type)
        except (pa.ArrowException, OverflowError):  # as a decimal with more digits than declared
            rows = [row if self._fits(row) else None for row in rows]
            found = pa.array(rows, self._type)
        wrong = [value if row is None else None for row, value in zip(rows, given, strict=True)]
        return found, pa.array(wrong, pa.binary())

    def _fits(self, row: dict[str, Any] | None) -> bool:
        try:
            pa.array([row], self._type)
        except (pa.ArrowException, OverflowError):
            return False
        return True

    def _record(self, value: bytes) -> dict[str, Any] | None:
        """None for a value that is wrong, or has bytes behind the record."""
        from fastavro import schemaless_reader

        stream = io.BytesIO(value)
        try:
            row = schemaless_reader(stream, self._schema, None)
        except Exception:  # fastavro raises what its parts raise: EOFError, IndexError, ValueError
            return None
        return row if stream.tell() == len(value) else None  # type: ignore[return-value]


def _arrow_type_of_json(kind: JsonKind) -> pa.DataType:
    if isinstance(kind, dict):
        return pa.struct([(name, _arrow_type_of_json(each)) for name, each in kind.items()])
    if isinstance(kind, list):
        return pa.list_(_arrow_type_of_json(kind[0]))
    return _OF_JSON[kind]


class JsonDecoder:
    """Decodes JSON objects by columns, with the types of a JSON Schema."""

    def __init__(self, schema: str) -> None:
        """Raises InvalidConfigError for a schema without columns."""
        self._type = _arrow_type_of_json(json_kind(schema))

    def spark_type(self) -> Any:
        from pyspark.sql.pandas.types import from_arrow_type

        return from_arrow_type(self._type)

    def decode(self, values: pa.Array) -> tuple[pa.Array, pa.Array]:
        """Structs, and the values that are wrong; both as long as `values`."""
        given = values.cast(pa.binary())
        there = given.is_valid()
        structs = pa.concat_arrays([pa.nulls(0, self._type), *self._halved(given.filter(there))])
        place = pc.subtract(pc.cumulative_sum(there.cast(pa.int64())), 1)
        structs = structs.take(pc.if_else(there, place, pa.scalar(None, pa.int64())))
        return structs, pc.if_else(structs.is_null(), given, pa.scalar(None, pa.binary()))

    def _halved(self, values: pa.Array) -> list[pa.Array]:
        """Decodes all at once; where one is wrong, each half by itself."""
        if not len(values):
            return []
        try:
            return [self._structs(values)]
        except pa.ArrowInvalid:
            middle = len(values) // 2
            if not middle:
                return [pa.nulls(1, self._type)]
            return [*self._halved(values[:middle]), *self._halved(values[middle:])]

    def _structs(self, values: pa.Array) -> pa.Array:
        """Raises ArrowInvalid if one is wrong.

        Each value is within an object of its own. So none of them can begin in a value and end in
        another, and a value that has two objects makes a row too many.
        """
        values.cast(pa.string())  # checks UTF-8
        lines = pc.binary_join_element_wise(b'{"v":', values, b"}\n", b"")
        text = b"".join(lines.to_pylist())
        rows = pa_json.read_json(
            pa.BufferReader(text),
            read_options=pa_json.ReadOptions(use_threads=False, block_size=len(text) + 1),
            parse_options=pa_json.ParseOptions(
                explicit_schema=pa.schema([("v", self._type)]), unexpected_field_behavior="ignore"
            ),
        )
        if rows.num_rows != len(values):
            raise pa.ArrowInvalid("a value has more than one object")
        return rows["v"].combine_chunks()


class ProtobufDecoder:
    """Decodes values of one Protobuf message."""

    def __init__(self, descriptors: bytes, message: str) -> None:
        """Raises ConfigError for a wrong FileDescriptorSet, and an unknown message."""
        self._descriptors, self._message = bytes(descriptors), message
        self._type = pa.struct(list(_handler(self._descriptors, message).schema()))

    def spark_type(self) -> Any:
        from pyspark.sql.pandas.types import from_arrow_type

        return from_arrow_type(self._type)

    def decode(self, values: pa.Array) -> tuple[pa.Array, pa.Array]:
        """Structs, and the values that are wrong; both as long as `values`."""
        handler = _handler(self._descriptors, self._message)
        parts = self._halved(handler, values)
        return pa.concat_arrays([p[0] for p in parts]), pa.concat_arrays([p[1] for p in parts])

    def _halved(self, handler: Any, values: pa.Array) -> list[tuple[pa.Array, pa.Array]]:
        """Decodes all at once; where one is wrong, each half by itself."""
        try:
            columns = handler.array_to_record_batch(values.cast(pa.binary()))
        except ValueError:
            middle = len(values) // 2
            if not middle:
                return [(pa.nulls(1, self._type), values.cast(pa.binary()))]
            return [
                *self._halved(handler, values[:middle]),
                *self._halved(handler, values[middle:]),
            ]
        structs = pa.StructArray.from_arrays(
            columns.columns, fields=list(self._type), mask=values.is_null()
        )
        return [(structs, pa.nulls(len(values), pa.binary()))]


@functools.cache
def _handler(descriptors: bytes, message: str) -> Any:
    try:
        import ptars
    except ModuleNotFoundError:
        raise ConfigError("Protobuf needs ptars: pip install 'tidemark[typed]'") from None
    from google.protobuf.descriptor_pb2 import FileDescriptorSet
    from google.protobuf.descriptor_pool import DescriptorPool
    from google.protobuf.message import DecodeError

    pool = DescriptorPool()
    try:
        for each in FileDescriptorSet.FromString(descriptors).file:
            pool.Add(each)
        found = pool.FindMessageTypeByName(message)
    except (DecodeError, TypeError) as error:
        raise ConfigError(f"the schema is no FileDescriptorSet with all imports: {error}") from None
    except KeyError:
        raise ConfigError(f"the FileDescriptorSet has no message {message!r}") from None
    return ptars.HandlerPool([found.file]).get_for_message(found)
