"""The classes that Spark gets: they load where the package is missing, and say so when called."""

from __future__ import annotations

import pickle
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import pytest
from pyspark import cloudpickle

from tests.spark.fake_log import FakeLog, FakePartition, records, serving
from tidemark.errors import ConfigError
from tidemark.spark import register
from tidemark.spark.clients import CLIENTS
from tidemark.spark.portable import portable_source
from tidemark.types import TopicPartition


@pytest.fixture
def fake() -> Iterator[FakeLog]:
    log = FakePartition()
    log.append(records(0, 30))
    with serving({TopicPartition("t", 0): log}) as server:
        yield server
        CLIENTS.close()


def options_of(fake: FakeLog, **more: str) -> dict[str, str]:
    return {"bootstrap.servers": fake.bootstrap_servers, "subscribe": "t"} | more


def carried(thing: Any) -> Any:
    """As Spark carries it: pickled by cloudpickle."""
    return pickle.loads(cloudpickle.dumps(thing))


def test_source_reader_and_slices_are_carried_from_process_to_process(fake: FakeLog) -> None:
    source = carried(carried(portable_source())(options_of(fake, maxRecordsPerPartition="20")))
    reader = carried(source.reader(source.schema()))
    slices = carried(reader.partitions())
    rows = [offset for each in slices for b in reader.read(each) for offset in b["offset"]]
    assert [offset.as_py() for offset in rows] == list(range(30))
    assert list(reader.read(None)) == []


def test_wrong_options_are_refused_where_the_reader_is_made(fake: FakeLog) -> None:
    source = portable_source()(options_of(fake))
    wrong = portable_source()(options_of(fake, minPartitions="0"))
    with pytest.raises(ConfigError, match="minPartitions=0 is below 1"):
        wrong.reader(source.schema())


@pytest.mark.parametrize("call", ["thing(dict()).schema()", "thing.read(None)"])
def test_a_python_without_the_package_says_what_to_do(fake: FakeLog, call: str) -> None:
    source = portable_source()
    thing = (
        source if "schema" in call else source(options_of(fake)).reader(source_schema(source, fake))
    )
    code = (
        "import os, pickle, sys; sys.modules['tidemark'] = None\n"
        "thing = pickle.load(sys.stdin.buffer)\n"
        f"try: {call}\n"
        "except ImportError as error: print(error, os.environ['SPARK_HIDE_TRACEBACK'])"
    )
    done = subprocess.run(
        [sys.executable, "-c", code],
        input=cloudpickle.dumps(thing),
        capture_output=True,
        timeout=60,
    )
    answer = done.stdout.decode()
    assert f"{sys.executable}, has no module 'tidemark" in answer, done.stderr.decode()
    assert answer.strip().endswith(
        "PYSPARK_PYTHON (or spark.pyspark.python) to a Python that has it 1"
    )


def source_schema(source: Any, fake: FakeLog) -> Any:
    return source(options_of(fake)).schema()


def test_register_gives_the_session_the_source() -> None:
    class Registry:
        def register(self, source: Any) -> None:
            self.source = source

    class Session:
        dataSource = Registry()

    register(Session())
    assert Session.dataSource.source.name() == "tidemark"
