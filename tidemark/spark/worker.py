"""The source within a Python worker of Spark: errors that a person reads.

Spark sends the driver what `traceback` formats: 30 lines of its own frames, and the message last.
It leaves the frames out if SPARK_HIDE_TRACEBACK is set when the error leaves the worker, which ends
then. Errors of the source say what to do, and frames add nothing; all others keep theirs.
"""

from __future__ import annotations

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
