"""Typed values: a column of structs in place of bytes, and a column for what could not be decoded.

`typed` works on a data frame, of a batch or of a stream, and on any that has a binary column
`value`. Spark's own `from_json` decodes JSON within the JVM. Spark's decoders of Avro and Protobuf
are not part of PySpark, so these two run in Python workers. ptars decodes Protobuf by columns.
fastavro decodes Avro record by record, because the decoder by columns (pyruhvro) lacks types.

A value is decoded whole or not at all: one wrong field makes `value` null, and `_corrupt` has the
bytes.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from tidemark.errors import ConfigError

if TYPE_CHECKING:
    import pyarrow as pa

CORRUPT = "_corrupt"
FORMATS = ("json", "avro", "protobuf")


def typed(rows: Any, format: str, schema: Any, *, message: str | None = None) -> Any:
    """The rows with `value` decoded to a struct, and a column `_corrupt` at their end.

    The schema of json is a StructType, or DDL as "carrier string, delay int". That of avro is the
    JSON of a record's schema. That of protobuf is the bytes of a FileDescriptorSet with all its
    imports, and `message` is the message's full name.

    A record without a value has null in both columns. As with `from_json`, what follows a JSON
    object is ignored. Raises ConfigError for a wrong format or schema, and if the package that
    decodes it is missing.
    """
    if format not in FORMATS:
        raise ConfigError(f"the format {format!r} is none of {', '.join(FORMATS)}")
    if (message is not None) != (format == "protobuf"):
        raise ConfigError("protobuf needs the name of a message, and no other format has one")
    if format == "json":
        return _from_json(rows, schema)
    if "value" not in rows.columns or CORRUPT in rows.columns:
        raise ConfigError(f"typed needs a column value, and none {CORRUPT}: {rows.columns}")
    from tidemark.spark.value_decoders import AvroDecoder, ProtobufDecoder

    if format == "avro":
        return _in_workers(rows, AvroDecoder(schema))
    return _in_workers(rows, ProtobufDecoder(schema, message or ""))


def _from_json(rows: Any, schema: Any) -> Any:
    from pyspark.sql import functions as f

    text = f.col("value").cast("string")
    options = {"mode": "PERMISSIVE", "columnNameOfCorruptRecord": CORRUPT}
    parsed = f.from_json(text, _with_corrupt(schema), options)
    wrong = f.col("value").isNotNull() & (
        parsed.isNull() | parsed[CORRUPT].isNotNull() | ~f.is_valid_utf8(text)
    )
    return rows.withColumns(
        {
            "value": f.when(~wrong, parsed.dropFields(CORRUPT)),
            CORRUPT: f.when(wrong, f.col("value")),
        }
    )


def _with_corrupt(schema: Any) -> Any:
    """The schema and a field for the text of a wrong record.

    Text stays text: where a pipeline is defined, Spark refuses to parse it yet.
    """
    from pyspark.sql.types import StringType, StructType

    wrong = ConfigError(f"the schema of JSON is a struct of fields, none of them {CORRUPT}")
    if isinstance(schema, StructType) and schema.fields and CORRUPT not in schema.fieldNames():
        return StructType([*schema.fields]).add(CORRUPT, StringType())
    if not isinstance(schema, str) or not schema.strip() or re.search(rf"\b{CORRUPT}\b", schema):
        raise wrong
    fields = re.sub(r"^\s*struct\s*<(.*)>\s*$", r"\1", schema, flags=re.DOTALL | re.IGNORECASE)
    return f"{fields}, {CORRUPT} string"


def _in_workers(rows: Any, decoder: Any) -> Any:
    """The same by a decoder with a Spark schema and `decode(values) -> (structs, corrupt)`."""
    from pyspark.sql.types import BinaryType, StructField, StructType

    fields = [
        StructField("value", decoder.spark_type()) if field.name == "value" else field
        for field in rows.schema.fields
    ]

    def decode(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        import pyarrow as pa

        for batch in batches:
            columns = dict(zip(batch.schema.names, batch.columns, strict=True))
            columns["value"], columns[CORRUPT] = decoder.decode(columns["value"])
            yield pa.RecordBatch.from_arrays(list(columns.values()), names=list(columns))

    return rows.mapInArrow(decode, StructType([*fields, StructField(CORRUPT, BinaryType())]))
