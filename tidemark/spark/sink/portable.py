"""The writers as Spark gets them: classes that pickle whole. See `tidemark.spark.portable`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any


def writer_class(load: Callable[[Any], Any]) -> type[Any]:
    """The class of batch writers, whose methods `load` the source's own."""
    from pyspark.sql.datasource import DataSourceArrowWriter

    class PortableWriter(DataSourceArrowWriter):  # type: ignore[misc]
        def __init__(self, options: Any, schema: Any, overwrite: bool) -> None:
            self.options, self.schema, self.overwrite = options, schema, overwrite
            found = load(options).writer(schema, overwrite)
            found.check()
            self.run = found.run

        def inner(self) -> Any:
            found = load(self.options).writer(self.schema, self.overwrite)
            found.run = self.run
            return found

        def write(self, iterator: Any) -> Any:
            return self.inner().write(iterator)

        def commit(self, messages: Any) -> None:
            self.inner().commit(messages)

        def abort(self, messages: Any) -> None:
            self.inner().abort(messages)

    return PortableWriter


def stream_writer_class(load: Callable[[Any], Any]) -> type[Any]:
    """The class of stream writers."""
    from pyspark.sql import datasource

    base: type[Any] = getattr(
        datasource, "DataSourceStreamArrowWriter", datasource.DataSourceStreamWriter
    )

    class PortableStreamWriter(base):  # type: ignore[misc]
        def __init__(self, options: Any, schema: Any, overwrite: bool) -> None:
            self.options, self.schema, self.overwrite = options, schema, overwrite
            found = load(options).streamWriter(schema, overwrite)
            found.check()
            self.run = found.run

        def inner(self) -> Any:
            found = load(self.options).streamWriter(self.schema, self.overwrite)
            found.run = self.run
            return found

        def write(self, iterator: Any) -> Any:
            return self.inner().write(iterator)

        def commit(self, messages: Any, batchId: int) -> None:
            self.inner().commit(messages, batchId)

        def abort(self, messages: Any, batchId: int) -> None:
            self.inner().abort(messages, batchId)

    return PortableStreamWriter
