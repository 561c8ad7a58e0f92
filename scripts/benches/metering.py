"""CPU that the counts of one request cost a node.

A node counts each request as below, and once more for each partition of the answer. To be read
beside `CPU per request` of scripts/bench produce_raw, of which it may be 2 % at most.
"""

from __future__ import annotations

import time
from types import SimpleNamespace
from typing import Any

from tidemark.wire.metering import RequestMeters

REQUESTS = 100_000
RUNS = 9


def run() -> list[dict[str, Any]]:
    """One row: the fastest of several runs, which other load affects little."""
    spent_us = min(_spent_s() for _ in range(RUNS)) / REQUESTS * 1e6
    name = "counts of a produce to one partition"
    return [{"name": name, "value": spent_us, "unit": "us", "ceiling": None, "ratio": None}]


def _spent_s() -> float:
    meter = RequestMeters().produce
    answers = [SimpleNamespace(error_code=0)]
    began_s = time.process_time()
    for _ in range(REQUESTS):
        meter.end(meter.begin(None))
        meter.fail_each(answers)
    return time.process_time() - began_s
