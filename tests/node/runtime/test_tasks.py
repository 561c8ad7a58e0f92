"""A task that fails is told: by one sentence if the error says what to do, else with its place."""

from __future__ import annotations

import asyncio

import pytest

from commitlog.disk.files import DiskError
from node.runtime.tasks import spawn
from tests import virtual_time
from tidemark.errors import FatalError


@pytest.mark.parametrize(
    ("error", "has_traceback"),
    [(FatalError("free space"), False), (DiskError("it is full", 28), False), (KeyError(1), True)],
    ids=str,
)
def test_an_error_with_advice_is_logged_without_tracebacks(
    error: Exception, has_traceback: bool, caplog: pytest.LogCaptureFixture
) -> None:
    fatal: list[FatalError] = []

    async def work() -> None:
        raise error from ValueError("its cause")

    async def main() -> None:
        task = spawn("work", work(), fatal.append)
        await asyncio.wait((task,))
        await asyncio.sleep(0)

    virtual_time.run(main())
    (record,) = [r for r in caplog.records if r.name == "node.runtime.tasks"]
    assert str(error) in record.message
    assert bool(record.exc_info) == has_traceback
    assert len(fatal) == 1
