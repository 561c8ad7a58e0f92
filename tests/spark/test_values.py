"""Typed values: what each format makes a struct, and what a wrong record."""

from __future__ import annotations

import datetime
import io
import json
import uuid
from decimal import Decimal
from typing import Any

import fastavro
import pyarrow as pa
import pytest
from google.protobuf.descriptor_pb2 import FieldDescriptorProto, FileDescriptorSet
from google.protobuf.descriptor_pool import DescriptorPool
from google.protobuf.message_factory import GetMessageClass

from tidemark.errors import ConfigError
from tidemark.spark import typed
from tidemark.spark.value_decoders import AvroDecoder, JsonDecoder, ProtobufDecoder

AVRO: dict[str, Any] = {
    "type": "record",
    "name": "Flight",
    "fields": [
        {"name": "carrier", "type": ["null", "string"]},
        {"name": "at", "type": {"type": "long", "logicalType": "timestamp-millis"}},
        {"name": "day", "type": {"type": "int", "logicalType": "date"}},
        {
            "name": "price",
            "type": {"type": "bytes", "logicalType": "decimal", "precision": 4, "scale": 2},
        },
        {"name": "id", "type": {"type": "string", "logicalType": "uuid"}},
        {"name": "state", "type": {"type": "enum", "name": "State", "symbols": ["LATE", "GONE"]}},
        {"name": "before", "type": ["null", "State"]},
        {"name": "delays", "type": {"type": "array", "items": "double"}},
        {"name": "seats", "type": {"type": "map", "values": "int"}},
    ],
}
FLIGHT = {
    "carrier": "UA",
    "at": 1_000,
    "day": datetime.date(2013, 7, 4),
    "price": Decimal("12.34"),
    "id": str(uuid.UUID(int=7)),
    "state": "GONE",
    "before": "LATE",
    "delays": [1.5, -2.0],
    "seats": {"first": 8},
}


def avro(**changes: Any) -> bytes:
    wide = json.loads(json.dumps(AVRO))
    wide["fields"][3]["type"]["precision"] = 12
    stream = io.BytesIO()
    fastavro.schemaless_writer(stream, fastavro.parse_schema(wide), FLIGHT | changes)
    return stream.getvalue()


def descriptors() -> bytes:
    found = FileDescriptorSet()
    file = found.file.add(name="flights.proto", package="air", syntax="proto3")
    message = file.message_type.add(name="Flight")
    for number, (name, kind, label) in enumerate(
        (
            ("carrier", FieldDescriptorProto.TYPE_STRING, 1),
            ("delay", FieldDescriptorProto.TYPE_INT64, 1),
            ("stops", FieldDescriptorProto.TYPE_STRING, 3),
        ),
        start=1,
    ):
        message.field.add(name=name, number=number, type=kind, label=label)
    return found.SerializeToString()


def protobuf(**fields: Any) -> bytes:
    pool = DescriptorPool()
    for file in FileDescriptorSet.FromString(descriptors()).file:
        pool.Add(file)
    made = GetMessageClass(pool.FindMessageTypeByName("air.Flight"))(**fields)
    return bytes(made.SerializeToString())


def test_avro_records_become_structs_and_each_wrong_one_is_beside_them() -> None:
    decoder = AvroDecoder(json.dumps(AVRO))
    good, nameless = avro(), avro(carrier=None, before=None)
    wrong = [good[:-1], b"", good + b"\x00", b"\xff" * 12, avro(price=Decimal("12345.67"))]
    found, corrupt = decoder.decode(pa.array([good, None, *wrong, nameless], pa.binary()))
    utc = datetime.UTC
    expected = FLIGHT | {
        "at": datetime.datetime(1970, 1, 1, 0, 0, 1, tzinfo=utc),
        "seats": [("first", 8)],
    }
    nothing = [None] * len(wrong)
    assert found.to_pylist() == [
        expected,
        None,
        *nothing,
        expected | {"carrier": None, "before": None},
    ]
    assert corrupt.to_pylist() == [None, None, *wrong, None]
    assert decoder.spark_type().simpleString() == (
        "struct<carrier:string,at:timestamp,day:date,price:decimal(4,2),id:string,state:string,"
        "before:string,delays:array<double>,seats:map<string,int>>"
    )


def test_json_objects_become_structs_and_each_wrong_one_is_beside_them() -> None:
    """No value reaches into the next one, however it is cut."""
    schema = {"type": "object", "properties": {"a": {"type": "integer"}, "b": {"type": "string"}}}
    decoder = JsonDecoder(json.dumps(schema))
    wrong = [
        *(b'{"a":"no"}', b"", b"null", b"[1]", b"5", b'{"a":1', b'"b":"x"}', b'{"b":"\xff"}'),
        *(b'{"a":1}{"a":2}', b'{"a":1}}{"v":{"a":2}', b'{"a":1,', b'"b":"x"}', b'{"a":1,"a":2}'),
        *(b'{"a":1.5}', b'{"a":99999999999999999999}', b'{"b":5}'),
    ]
    good = {b'{"a":1,"b":"x"}': (1, "x"), b'{"c":[9]}': (None, None), b'{"a":\n2 }': (2, None)}
    found, corrupt = decoder.decode(pa.array([*good, None, *wrong, *good, None], pa.binary()))
    rows = [{"a": a, "b": b} for a, b in good.values()]
    nothing = [None] * len(wrong)
    assert found.to_pylist() == [*rows, None, *nothing, *rows, None]
    assert corrupt.to_pylist() == [None] * 4 + wrong + [None] * 4
    found, corrupt = decoder.decode(pa.array([b"", None], pa.binary()))
    assert (found.to_pylist(), corrupt.to_pylist()) == ([None, None], [b"", None])
    assert [len(each) for each in decoder.decode(pa.array([], pa.binary()))] == [0, 0]


def test_protobuf_messages_become_structs_and_each_wrong_one_is_beside_them() -> None:
    decoder = ProtobufDecoder(descriptors(), "air.Flight")
    good = protobuf(carrier="UA", delay=-3, stops=["JFK", "SFO"])
    given = [good, b"", None, good[:-1], b"\xff" * 9, b"\x0a\x02\xff\xfe", good, None]
    found, corrupt = decoder.decode(pa.array(given, pa.binary()))
    row = {"carrier": "UA", "delay": -3, "stops": ["JFK", "SFO"]}
    empty = {"carrier": "", "delay": 0, "stops": []}
    assert found.to_pylist() == [row, empty, None, None, None, None, row, None]
    assert corrupt.to_pylist() == [None, None, None, *given[3:6], None, None]
    assert decoder.spark_type().simpleString() == (
        "struct<carrier:string,delay:bigint,stops:array<string>>"
    )


@pytest.mark.parametrize(
    ("schema", "says"),
    [
        ("nonsense", "the Avro schema is wrong"),
        ('"int"', "is that of a record"),
        ('{"type":"record","name":"R","fields":[{"name":"r","type":["null","R"]}]}', "itself"),
        ('{"type":"record","name":"R","fields":[{"name":"r","type":["int","string"]}]}', "union"),
    ],
)
def test_avro_schemas_without_columns_are_refused(schema: str, says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        AvroDecoder(schema)


def test_wrong_protobuf_schemas_are_refused() -> None:
    with pytest.raises(ConfigError, match=r"no message 'air\.Plane'"):
        ProtobufDecoder(descriptors(), "air.Plane")
    with pytest.raises(ConfigError, match="no FileDescriptorSet"):
        ProtobufDecoder(b"\xff\xff", "air.Flight")


@pytest.mark.spark
def test_typed_rows_have_structs_of_all_formats_in_spark(spark: Any) -> None:
    """JSON that Spark would half accept is wrong as a whole: a field's type, or bytes not UTF-8."""
    wrong = [b'{"a":"no","b":"x"}', b"", b"null", b"[1]", b'{"a":1', b'{"b":"\xff"}', b"5"]
    given = [b'{"a":1,"b":"x"}', b'{"c":9}', None, *wrong]
    columns = "value binary, offset int"
    rows = spark.createDataFrame([(value, at) for at, value in enumerate(given)], columns)
    found = typed(rows, "json", "a int, b string")
    assert found.schema.simpleString() == (
        "struct<value:struct<a:int,b:string>,offset:int,_corrupt:binary>"
    )
    answer = {row.offset: (row.value, row._corrupt) for row in found.collect()}
    assert [answer[at] for at in range(3)] == [((1, "x"), None), ((None, None), None), (None, None)]
    assert [answer[at + 3] for at in range(len(wrong))] == [(None, value) for value in wrong]
    assert found.select("value.b").where("b = 'x'").count() == 1

    rows = spark.createDataFrame([(avro(), 0), (b"", 1)], columns)
    found = typed(rows, "avro", json.dumps(AVRO)).orderBy("offset")
    texts = found.selectExpr(
        "value.carrier", "string(value.at)", "value.seats['first']", "hex(_corrupt)"
    )
    assert [tuple(row) for row in texts.collect()] == [
        ("UA", "1970-01-01 00:00:01", 8, None),
        (None, None, None, ""),
    ]
    rows = spark.createDataFrame([(protobuf(delay=5), 0), (b"\x0a", 1)], columns)
    found = typed(rows, "protobuf", descriptors(), message="air.Flight").orderBy("offset")
    texts = found.selectExpr("offset", "value.delay", "value.stops", "hex(_corrupt)")
    assert [tuple(row) for row in texts.collect()] == [(0, 5, [], None), (1, None, None, "0A")]


def test_typed_says_what_it_does_not_take() -> None:
    class Rows:
        columns = ("value", "offset")

    for given, says in (
        (("xml", "a int"), "none of json, avro, protobuf"),
        (("protobuf", b""), "needs the name of a message"),
    ):
        with pytest.raises(ConfigError, match=says):
            typed(Rows(), *given)
    Rows.columns = ("value", "_corrupt")
    with pytest.raises(ConfigError, match="needs a column value, and none _corrupt"):
        typed(Rows(), "avro", "")
