"""How kernels are compiled: by numba, once per machine, kept on disk where that is possible.

A kernel has one explicit signature, so that it is compiled (or loaded from the cache) when its
module is imported and never again because an argument came from `bytes` instead of `bytearray`. The
cache lies where numba puts it: NUMBA_CACHE_DIR, else `__pycache__` beside the file, else the user's
cache directory. Where none can be written, a kernel is compiled in memory: slower to start, never
an error.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import numba
from numba import types

F = TypeVar("F", bound=Callable[..., Any])

INT64 = types.int64
UINT8 = types.uint8


def readable(dtype: Any) -> Any:
    """A contiguous array that a kernel only reads: what `bytes` and Arrow buffers give."""
    return types.Array(dtype, 1, "C", readonly=True)


def writable(dtype: Any) -> Any:
    """A contiguous array that a kernel fills."""
    return types.Array(dtype, 1, "C")


def kernel(signature: Any) -> Callable[[F], F]:
    """Compiles a function for one signature, without the interpreter lock while it runs."""

    def decorate(function: F) -> F:
        options: dict[str, Any] = {"nogil": True, "error_model": "numpy"}
        try:
            compiled: F = numba.njit([signature], cache=True, **options)(function)
        except (OSError, RuntimeError):  # no place for the cache, or the disk refuses it
            compiled = numba.njit([signature], **options)(function)
        return compiled

    return decorate


def helper(function: F) -> F:
    """A function that kernels call; compiled into them."""
    compiled: F = numba.njit(nogil=True, error_model="numpy", inline="never")(function)
    return compiled


def inlined(function: F) -> F:
    """A small helper that becomes part of each kernel's loop: no call, no array taken apart."""
    compiled: F = numba.njit(nogil=True, error_model="numpy", forceinline=True)(function)
    return compiled
