"""The data source as Spark gets it: classes that pickle whole, so that any Python can load them.

Spark pickles a source where it is registered, and a reader where it is planned. A class of an
importable module pickles as its name. A worker whose Python lacks the package fails then at loading
it, with a traceback that names neither the Python nor the remedy. These classes load `source` when
they are called, and say what is missing where.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from tidemark.spark.sink.portable import stream_writer_class, writer_class


def register(spark: Any) -> None:
    """Registers the format `tidemark` with a session.

    Where Spark finds `pyspark_tidemark` installed, it knows the format without that, and Spark 4.0
    refuses it a second time.
    """
    from pyspark.errors import AnalysisException

    try:
        spark.dataSource.register(portable_source())
    except AnalysisException as error:
        if "DATA_SOURCE_ALREADY_EXISTS" not in str(error):
            raise


def portable_source() -> type[Any]:
    """The class of the source. Its methods and those of its readers name nothing of this module."""
    from pyspark.sql.datasource import DataSource

    load = _loader()
    reader_class, stream_reader_class = _reader_class(load), _stream_reader_class(load)
    pushing_class = _pushing_class(load, reader_class)
    batch_writer, stream_writer = writer_class(load), stream_writer_class(load)

    class PortableSource(DataSource):  # type: ignore[misc]
        @classmethod
        def name(cls) -> str:
            return "tidemark"

        def schema(self) -> Any:
            return load(self.options).schema()

        def reader(self, schema: Any) -> Any:
            options = dict(self.options)
            takes_filters = load(options).reader(schema).takes_filters  # refuses wrong options
            return (pushing_class if takes_filters else reader_class)(options, schema)

        def streamReader(self, schema: Any) -> Any:
            options = dict(self.options)
            load(options).streamReader(schema)
            return stream_reader_class(options, schema)

        def writer(self, schema: Any, overwrite: bool) -> Any:
            return batch_writer(dict(self.options), schema, overwrite)

        def streamWriter(self, schema: Any, overwrite: bool) -> Any:
            return stream_writer(dict(self.options), schema, overwrite)

    return PortableSource


def _loader() -> Callable[[Any], Any]:
    def load(options: Any) -> Any:
        """The source itself. Raises ImportError that says what to do."""
        import os
        import socket
        import sys

        try:
            from tidemark.spark.source import TidemarkDataSource
        except ModuleNotFoundError as error:
            os.environ["SPARK_HIDE_TRACEBACK"] = "1"  # of this worker, which ends now
            raise ImportError(
                f"the Python that Spark runs on {socket.gethostname()}, {sys.executable}, has no "
                f"module {error.name!r}: install tidemark there, or set PYSPARK_PYTHON (or "
                "spark.pyspark.python) to a Python that has it"
            ) from None
        return TidemarkDataSource(options)

    return load


def _reader_class(load: Callable[[Any], Any]) -> type[Any]:
    import pickle

    from pyspark.sql.datasource import DataSourceReader, InputPartition

    class PortableReader(DataSourceReader):  # type: ignore[misc]
        def __init__(self, options: Any, schema: Any) -> None:
            self.options, self.schema, self.restrictions = options, schema, ()

        def partitions(self) -> list[InputPartition]:
            reader = load(self.options).reader(self.schema)
            reader.restrictions = self.restrictions
            return [InputPartition(pickle.dumps(each)) for each in reader.partitions()]

        def read(self, partition: Any) -> Iterator[Any]:
            reader = load(self.options).reader(self.schema)
            value = getattr(partition, "value", None)
            return iter(reader.read(None if value is None else pickle.loads(value)))

    return PortableReader


def _pushing_class(load: Callable[[Any], Any], reader_class: type[Any]) -> type[Any]:
    class PushingReader(reader_class):  # type: ignore[misc]
        def pushFilters(self, filters: Any) -> list[Any]:
            reader = load(self.options).reader(self.schema)
            left: list[Any] = reader.take(filters)
            self.restrictions = reader.restrictions
            return left

    return PushingReader


def _stream_reader_class(load: Callable[[Any], Any]) -> type[Any]:
    import pickle

    from pyspark.sql.datasource import DataSourceStreamReader, InputPartition

    bases: tuple[type[Any], ...] = (DataSourceStreamReader,)
    try:  # Spark 4.2; before it, AvailableNow is one batch
        from pyspark.sql.streaming.datasource import SupportsTriggerAvailableNow
    except ImportError:
        pass
    else:
        bases += (SupportsTriggerAvailableNow,)

    class PortableStreamReader(*bases):  # type: ignore[misc]
        def __init__(self, options: Any, schema: Any) -> None:
            self.options, self.schema, self.made = options, schema, None

        def inner(self) -> Any:
            if self.made is None:
                self.made = load(self.options).streamReader(self.schema)
            return self.made

        def initialOffset(self) -> Any:
            return self.inner().initialOffset()

        def getDefaultReadLimit(self) -> Any:
            return self.inner().getDefaultReadLimit()

        def latestOffset(self, start: Any = None, limit: Any = None) -> Any:
            return self.inner().latestOffset(start, limit)

        def reportLatestOffset(self) -> Any:
            return self.inner().reportLatestOffset()

        def prepareForTriggerAvailableNow(self) -> None:
            self.inner().prepareForTriggerAvailableNow()

        def partitions(self, start: Any, end: Any) -> list[InputPartition]:
            found = self.inner().partitions(start, end)
            return [InputPartition(pickle.dumps(each)) for each in found]

        def read(self, partition: Any) -> Iterator[Any]:
            value = getattr(partition, "value", None)
            return iter(self.inner().read(None if value is None else pickle.loads(value)))

        def commit(self, end: Any) -> None:
            self.inner().commit(end)

        def stop(self) -> None:
            if self.made is not None:
                self.made.stop()

    return PortableStreamReader
