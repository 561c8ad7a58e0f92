"""Direct reads in a real Spark session: plans pickle, and tasks read the store."""

from __future__ import annotations

from typing import Any

import pytest

from tests.spark.direct.store import tiered

pytestmark = pytest.mark.spark


def test_tasks_read_the_store_and_no_broker(spark: Any) -> None:
    with tiered() as fake:
        limits = '{"t":{"0":150,"1":0}}'
        reader = spark.read.format("tidemark").option("bootstrap.servers", fake.bootstrap_servers)
        reader = reader.options(subscribe="t", direct="true", endingOffsets=limits)
        rows = reader.option("maxRecordsPerPartition", "40").load()
        assert sorted(row["offset"] for row in rows.select("offset").collect()) == [*range(150)]
        assert fake.served == 0 and fake.store.ranges
