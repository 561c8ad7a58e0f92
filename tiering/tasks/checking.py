"""The check of transaction indexes of before a restart, with turns for other work of the loop."""

from __future__ import annotations

import asyncio

from commitlog.log.log import Log
from commitlog.types import TransactionsUncheckedError


async def check_transactions(log: Log, start_offset: int, end_offset: int) -> None:
    """Checks the indexes that name the aborted transactions of [start, end).

    Raises StorageError.
    """
    while True:
        try:
            log.aborted_transactions(start_offset, end_offset, paced=True)
            return
        except TransactionsUncheckedError:
            await asyncio.sleep(0)
