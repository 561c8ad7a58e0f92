"""Typed values by a topic's own settings: value.format and value.schema, with values=typed.

The driver asks for the settings when the columns are asked for. They are kept in the metadata of
the column `value`, which Spark gives to readers, and keeps with a table. So all tasks of a query
decode alike, and a table decodes by the schema that it was made with.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from tidemark.config.value_schema import descriptors_of
from tidemark.errors import ConfigError
from tidemark.spark.options import SourceOptions, parse_options
from tidemark.spark.security import is_security
from tidemark.spark.values import CORRUPT
from tidemark.types import ConfigResourceType

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.types import StructType

_KEY = "tidemark.values"
_OF_PLACE = ("bootstrap.servers", "kafka.bootstrap.servers", "subscribe", "assign")
Describe = Callable[[SourceOptions, list[str]], Mapping[str, Mapping[str, str]]]


@dataclass(frozen=True, slots=True)
class ValueSettings:
    """The settings of a topic's values, as they were when it was asked."""

    format: str
    schema: str
    message: str = ""

    def decoder(self) -> Any:
        """Raises ConfigError for a schema without columns, and for a package that is missing."""
        from tidemark.spark.value_decoders import AvroDecoder, JsonDecoder, ProtobufDecoder

        if self.format == "json":
            return JsonDecoder(self.schema)
        if self.format == "avro":
            return AvroDecoder(self.schema)
        return ProtobufDecoder(descriptors_of(self.schema), self.message)


def settings_of_topics(options: Mapping[str, str], describe: Describe) -> ValueSettings:
    """The settings that all topics of a read have. Raises ConfigError if there are none."""
    wanted = {
        key: value
        for key, value in options.items()
        if key.lower() in _OF_PLACE or is_security(key) or key.lower() == "lookuptimeoutms"
    }
    if not any(key.lower() in ("subscribe", "assign") for key in wanted):
        raise ConfigError("values=typed asks topics for their schema: name them in subscribe")
    parsed = parse_options(wanted)
    topics = sorted({*parsed.topics, *(tp.topic for tp in parsed.partitions)})
    found = {topic: _of(each) for topic, each in describe(parsed, topics).items()}
    without = [topic for topic, each in found.items() if not each.format]
    if without:
        raise ConfigError(
            f"values=typed, and {', '.join(without)} has no value.format: `tidemark configs alter"
            " --topic NAME --set value.format=json --set value.schema=...` sets it"
        )
    if len(set(found.values())) != 1:
        raise ConfigError(f"values=typed: {', '.join(topics)} have different schemas; read one")
    return found[topics[0]]


def _of(entries: Mapping[str, str]) -> ValueSettings:
    names = ("value.format", "value.schema", "value.schema.message")
    return ValueSettings(*(entries.get(name, "") for name in names))


def described(options: SourceOptions, topics: list[str]) -> dict[str, dict[str, str]]:
    """The settings of topics. Raises the client's errors."""
    from tidemark.client import Admin, ConfigResource

    resources = [ConfigResource(ConfigResourceType.TOPIC, topic) for topic in topics]
    with Admin(
        options.bootstrap_servers,
        security=options.security,
        default_api_timeout_ms=options.lookup_timeout_ms,
    ) as admin:
        found = admin.describe_configs(resources, include_synonyms=False)
    return {
        resource.name: {name: entry.value for name, entry in entries.items()}
        for resource, entries in found.items()
    }


def typed_schema(schema: StructType, settings: ValueSettings) -> StructType:
    """The columns with `value` as a struct, and those that are wrong in a column behind all.

    Raises ConfigError as `ValueSettings.decoder`.
    """
    from pyspark.sql.types import BinaryType, StructField, StructType

    kept = {_KEY: asdict(settings)}
    kind = _nullable(settings.decoder().spark_type())
    value = StructField("value", kind, metadata=kept)
    fields = [value if field.name == "value" else field for field in schema.fields]
    return StructType([*fields, StructField(CORRUPT, BinaryType())])


def _nullable(kind: Any) -> Any:
    """The type with fields that may be null: a wrong value has none of them."""
    from pyspark.sql.types import ArrayType, MapType, StructField, StructType

    if isinstance(kind, StructType):
        return StructType([StructField(each.name, _nullable(each.dataType)) for each in kind])
    if isinstance(kind, ArrayType):
        return ArrayType(_nullable(kind.elementType))
    if isinstance(kind, MapType):
        return MapType(kind.keyType, _nullable(kind.valueType))
    return kind


def plain_schema(schema: StructType) -> tuple[StructType, ValueSettings | None]:
    """The columns of the source behind those of `typed_schema`, and the settings; None: bytes."""
    from pyspark.sql.types import BinaryType, StructField, StructType

    kept = next((f.metadata[_KEY] for f in schema.fields if _KEY in (f.metadata or {})), None)
    if kept is None:
        return schema, None
    fields = [
        StructField("value", BinaryType()) if field.name == "value" else field
        for field in schema.fields
        if field.name != CORRUPT
    ]
    return StructType(fields), ValueSettings(**kept)


def decoded(batch: pa.RecordBatch, decoder: Any, schema: pa.Schema) -> pa.RecordBatch:
    """The batch with `value` decoded, exactly of `schema`."""
    import pyarrow as pa

    columns = dict(zip(batch.schema.names, batch.columns, strict=True))
    columns["value"], columns[CORRUPT] = decoder.decode(columns["value"])
    arrays = [columns[field.name].cast(field.type) for field in schema]
    return pa.RecordBatch.from_arrays(arrays, schema=schema)
