"""Makes the format `tidemark` known to Spark by its name.

Spark imports every installed top-level module named `pyspark_*` and registers its `DefaultSource`.
That is why this package stands beside `tidemark` instead of in it. Spark finds it by listing the
directories of `sys.path`, which works for an installed wheel and for an editable install.

    spark.read.format("tidemark")        # no spark.dataSource.register(...)

Nobody imports it but Spark. It promises to be cheap, because it is imported wherever Spark plans a
query: it loads neither gRPC nor Arrow.
"""

from tidemark.spark.portable import portable_source

DefaultSource = portable_source()

__all__ = ["DefaultSource"]
