"""The source within a Python worker of Spark: errors that a person reads, and memory that is kept.

Spark sends the driver what `traceback` formats: 30 lines of its own frames, and the message last.
It leaves the frames out if SPARK_HIDE_TRACEBACK is set when the error leaves the worker, which ends
then. Errors of the source say what to do, and frames add nothing; all others keep theirs.
"""

from __future__ import annotations

import ctypes
import functools
import logging
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager

from tidemark.errors import TidemarkError

logger = logging.getLogger(__name__)


@contextmanager
def in_one_line() -> Iterator[None]:
    """Within it, errors of Tidemark reach the driver as one line: class and message."""
    try:
        yield
    except TidemarkError as error:
        logger.debug("told to Spark", exc_info=error)
        if _is_worker():
            os.environ["SPARK_HIDE_TRACEBACK"] = "1"
        error.__cause__, error.__suppress_context__ = None, True
        raise


def _is_worker() -> bool:
    """Whether PySpark runs this process, and not a program with a session."""
    spec = getattr(sys.modules["__main__"], "__spec__", None)
    return spec is not None and spec.name.startswith("pyspark.")


# glibc's mallopt. Fetching and decoding allocate and free buffers of megabytes. If each is returned
# to the kernel, a tenth to a half of the CPU time goes into page faults.
_M_TRIM_THRESHOLD, _M_TOP_PAD, _M_MMAP_THRESHOLD = -1, -2, -3
_TRIM_THRESHOLD_BYTES = 64 << 20
_TOP_PAD_BYTES = 16 << 20
_MMAP_THRESHOLD_BYTES = 32 << 20  # glibc takes no more


@functools.cache
def keep_memory() -> None:
    """Has a worker of Spark use freed buffers again. Does nothing in a program, or without glibc.

    The memory that is kept is bounded: 64 MiB behind the last buffer in use of each of malloc's
    arenas.
    """
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None) if _is_worker() else None
    if mallopt is not None:
        mallopt(_M_TRIM_THRESHOLD, _TRIM_THRESHOLD_BYTES)
        mallopt(_M_TOP_PAD, _TOP_PAD_BYTES)
        mallopt(_M_MMAP_THRESHOLD, _MMAP_THRESHOLD_BYTES)
