"""An executor that runs work at once, for code that uses threads on virtual time."""

from __future__ import annotations

from concurrent.futures import Executor, Future
from typing import Any


class Inline(Executor):
    """Runs each call in the caller's thread, before `submit` returns."""

    def submit(self, fn: Any, /, *args: Any, **kwargs: Any) -> Future[Any]:
        done: Future[Any] = Future()
        try:
            done.set_result(fn(*args, **kwargs))
        except BaseException as error:
            done.set_exception(error)
        return done
