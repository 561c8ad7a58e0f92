"""A late event loop is measured, and the log names the place of a long turn."""

from __future__ import annotations

import asyncio
import logging
import sys
import threading

import pytest

from node.runtime.loop_lag import LoopLag, LoopWatch, Stalls, places


def test_the_histogram_counts_each_delay_in_all_buckets_from_its_own_on() -> None:
    lag = LoopLag()
    for late_ms in (0.0, 1.0, 1.5, 49, 51, 99_000):
        lag.note(late_ms)
    found = lag.metrics()
    assert found["event-loop-lag-ms-le-1"] == 2
    assert found["event-loop-lag-ms-le-2"] == 3
    assert found["event-loop-lag-ms-le-50"] == 4
    assert found["event-loop-lag-ms-le-5000"] == 5
    assert (found["event-loop-lag-count"], found["event-loop-lag-ms-max"]) == (6, 99_000)


def test_each_place_is_logged_once_a_minute() -> None:
    stalls = Stalls()
    assert stalls.tell(0.25, ["a.py:1 f", "b.py:2 g"], 100.0) == (
        "the event loop stands for 250 ms at a.py:1 f < b.py:2 g"
    )
    assert stalls.tell(0.25, ["a.py:1 f"], 159.9) is None
    assert stalls.tell(0.25, ["c.py:3 h"], 159.9) is not None
    assert stalls.tell(0.25, ["a.py:1 f"], 160.0) is not None


def test_a_stack_begins_at_its_innermost_place() -> None:
    found = places(sys._getframe())
    assert found[0].startswith("node/runtime/test_loop_lag.py:")
    assert found[0].endswith(" test_a_stack_begins_at_its_innermost_place")
    assert len(found) <= 15


def test_the_thread_names_the_function_that_holds_the_loop(
    caplog: pytest.LogCaptureFixture,
) -> None:
    told = threading.Event()

    class Told(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            told.set()

    def holds_the_loop() -> None:
        told.wait(30)

    async def main() -> float:
        watch = LoopWatch(stall_ms=20)
        watch.start()
        try:
            await asyncio.sleep(0)
            holds_the_loop()
            await asyncio.sleep(0.01)  # behind the timer, which is overdue
        finally:
            watch.stop()
        return watch.lag.metrics()["event-loop-lag-ms-max"]

    handler = Told()
    logging.getLogger("node.runtime.loop_lag").addHandler(handler)
    try:
        longest_ms = asyncio.run(main())
    finally:
        logging.getLogger("node.runtime.loop_lag").removeHandler(handler)
    assert told.is_set()
    assert "holds_the_loop" in caplog.text
    assert longest_ms >= 20
    assert not any(thread.name == "loop-watch" for thread in threading.enumerate())
