"""Hypothesis strategies for records: nulls, empty values, headers, times in any order."""

from __future__ import annotations

from hypothesis import strategies as st

from tidemark.records import Record

INT64 = st.integers(-(2**63), 2**63 - 1)

# Differences between times fit a varlong, as Kafka's own do.
TIMESTAMPS = st.integers(-(2**61), 2**61)
BYTES = st.none() | st.binary(max_size=200)
HEADERS = st.lists(st.tuples(st.text(max_size=8), st.none() | st.binary(max_size=20)), max_size=3)

RECORDS = st.lists(
    st.builds(Record, st.just(0), TIMESTAMPS, BYTES, BYTES, HEADERS.map(tuple)),
    min_size=1,
    max_size=30,
).map(
    lambda records: [
        Record(index, item.timestamp_ms, item.key, item.value, item.headers)
        for index, item in enumerate(records)
    ]
)

CODECS = st.sampled_from(["none", "gzip", "snappy", "lz4", "zstd"])
