"""Values decoded by the schema in their topic's settings: batches, streams and tables."""

from __future__ import annotations

import base64
import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from tests.spark.test_values import AVRO, avro, descriptors, protobuf
from tests.test_value_schema import FLIGHT
from tidemark.cli.local_cluster import LocalCluster
from tidemark.client import Admin, NewTopic, Producer
from tidemark.errors import ConfigError
from tidemark.spark.options import SourceOptions
from tidemark.spark.topic_values import ValueSettings, settings_of_topics

JSON = ValueSettings("json", json.dumps(FLIGHT))
GOOD = b'{"carrier":"UA","at":"2013-07-04T10:00:00Z","delays":[1,2.5],"plane":{"seats":8}}'


def asked(topics: Mapping[str, Mapping[str, str]], **options: str) -> ValueSettings:
    given = {"bootstrap.servers": "h:1", "values": "typed", "columns": "value"} | options

    def describe(_: SourceOptions, names: list[str]) -> Mapping[str, Mapping[str, str]]:
        return {name: topics[name] for name in names}

    return settings_of_topics(given, describe)


def test_topics_of_one_schema_are_read_together() -> None:
    settings = {"value.format": "json", "value.schema": JSON.schema}
    topics = {
        "a": settings,
        "b": dict(settings),
        "c": {"value.format": ""},
        "d": settings | {"value.schema": "{}"},
    }
    assert asked(topics, subscribe="a,b") == JSON
    assert asked(topics, assign='{"a":[0]}') == JSON
    for options, says in (
        ({"subscribe": "a,c"}, "c has no value.format: `tidemark configs alter"),
        ({"subscribe": "a,d"}, "a, d have different schemas"),
        ({"subscribePattern": "a.*"}, "name them in subscribe"),
    ):
        with pytest.raises(ConfigError, match=says):
            asked(topics, **options)


@pytest.fixture(scope="module")
def servers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A topic of each format, with good values, a wrong one, and one that is null."""
    schemas = {
        "json": {"value.format": "json", "value.schema": JSON.schema},
        "avro": {"value.format": "avro", "value.schema": json.dumps(AVRO)},
        "protobuf": {
            "value.format": "protobuf",
            "value.schema": base64.b64encode(descriptors()).decode(),
            "value.schema.message": "air.Flight",
        },
    }
    good = {"json": GOOD, "avro": avro(), "protobuf": protobuf(carrier="UA", delay=5)}
    place = tmp_path_factory.mktemp("typed")
    with LocalCluster(place, controllers=1, brokers=1) as cluster:
        cluster.wait_ready(60)
        with Admin(cluster.bootstrap_servers) as admin:
            topics = [NewTopic(name, 1, 1, configs=each) for name, each in schemas.items()]
            admin.create_topics([*topics, NewTopic("plain", 1, 1)])
        with Producer(cluster.bootstrap_servers) as producer:
            for name, value in good.items():
                for each in (value, b"\xff wrong", None):
                    producer.send(name, each)
            producer.flush()
        yield cluster.bootstrap_servers


def reader(spark: Any, servers: str, topic: str, **more: str) -> Any:
    given = {"bootstrap.servers": servers, "subscribe": topic, "values": "typed"} | more
    return spark.read.format("tidemark").options(**given)


@pytest.mark.spark
def test_a_batch_has_structs_of_each_format(spark: Any, servers: str) -> None:
    for topic, carrier in (("json", "UA"), ("avro", "UA"), ("protobuf", "UA")):
        rows = reader(spark, servers, topic).load()
        assert rows.columns[1] == "value" and rows.columns[-1] == "_corrupt"
        found = rows.orderBy("offset").selectExpr("value.carrier", "string(_corrupt)", "topic")
        assert [(row[0], row[1] is None, row[2]) for row in found.collect()] == [
            (carrier, True, topic),
            (None, False, topic),
            (None, True, topic),
        ]
    few = reader(spark, servers, "json", columns="value,offset").load()
    (row,) = few.where("offset = 0").collect()
    assert row.value.asDict(recursive=True) | {"at": None} == {
        "carrier": "UA",
        "at": None,
        "day": None,
        "delays": [1.0, 2.5],
        "plane": {"seats": 8},
    }
    assert few.columns == ["value", "offset", "_corrupt"]
    assert reader(spark, servers, "json", columns="offset").load().columns == ["offset"]
    with pytest.raises(Exception, match="values=typed takes the type of value from the topic"):
        reader(spark, servers, "json").schema("value binary").load().count()
    with pytest.raises(Exception, match=r"plain has no value\.format"):
        reader(spark, servers, "plain").load()


@pytest.mark.spark
def test_a_table_and_a_stream_have_structs(spark: Any, servers: str, tmp_path: Path) -> None:
    given = f"OPTIONS ('bootstrap.servers' '{servers}', subscribe 'json', values 'typed')"
    spark.sql(f"CREATE TABLE typed_flights USING tidemark {given}")
    try:
        query = "SELECT value.plane.seats FROM typed_flights WHERE value IS NOT NULL"
        assert [row[0] for row in spark.sql(query).collect()] == [8]
        with pytest.raises(Exception, match="value is of type struct"):
            spark.sql("INSERT INTO typed_flights SELECT * FROM typed_flights")
    finally:
        spark.sql("DROP TABLE typed_flights")
    source = spark.readStream.format("tidemark").option("bootstrap.servers", servers)
    rows = source.option("subscribe", "json").option("values", "typed").load()
    writing = rows.selectExpr("value.carrier", "_corrupt").writeStream.format("parquet")
    writing = writing.option("checkpointLocation", str(tmp_path / "checkpoint"))
    query = writing.option("path", str(tmp_path / "out")).trigger(availableNow=True).start()
    query.awaitTermination()
    found = spark.read.parquet(str(tmp_path / "out"))
    assert found.where("carrier = 'UA'").count() == 1
    assert found.where("_corrupt IS NOT NULL").count() == 1
