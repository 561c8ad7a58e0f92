"""Compilation of kernels by numba, once per machine, kept on disk if possible.

A kernel has one explicit signature. It is compiled (or loaded from the cache) when its module is
imported, and never again because an argument came from `bytes` instead of `bytearray`. The cache is
where numba puts it: NUMBA_CACHE_DIR, else `__pycache__` beside the file, else the user's cache
directory. If none can be written, a kernel is compiled in memory: slower to start, never an error.
A cache elsewhere begins as a copy of the one beside the file, which installation makes. By itself
numba takes nothing from a directory that it can not write to, as in a container.

numba reuses a cached kernel while the kernel's own file is unchanged. Here the files of its helpers
and the values of its constants must be unchanged too.
"""

from __future__ import annotations

import contextlib
import glob
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import numba
from numba import types

from tidemark.records.kernels import processor

F = TypeVar("F", bound=Callable[..., Any])

INT64 = types.int64
UINT8 = types.uint8

processor.choose()

compiled_here: list[str] = []
"""Names of the kernels that this process compiled, since no cache had them."""


def readable(dtype: Any) -> Any:
    """Returns the type of a contiguous array that a kernel only reads: `bytes` and Arrow
    buffers.
    """
    return types.Array(dtype, 1, "C", readonly=True)


def writable(dtype: Any) -> Any:
    """Returns the type of a contiguous array that a kernel fills."""
    return types.Array(dtype, 1, "C")


def kernel(signature: Any) -> Callable[[F], F]:
    """Compiles a function for one signature, without the interpreter lock while it runs."""

    def decorate(function: F) -> F:
        try:
            return _compiled(function, signature, cache=True)
        except (OSError, RuntimeError):  # the cache has no place, or the disk refuses it
            return _compiled(function, signature, cache=False)

    return decorate


def _compiled(function: F, signature: Any, cache: bool) -> F:
    compiled: Any = numba.njit(cache=cache, nogil=True, error_model="numpy")(function)
    file = getattr(getattr(compiled, "_cache", None), "_cache_file", None)
    if file is not None:
        file._source_stamp = (file._source_stamp, _stamps_of_inputs(function))
        with contextlib.suppress(OSError):
            _take_over(Path(function.__code__.co_filename).parent / "__pycache__", file)
    compiled.compile(signature)
    compiled.disable_compile()
    if not cache or any(compiled.stats.cache_misses.values()):
        compiled_here.append(function.__name__)
    dispatcher: F = compiled
    return dispatcher


def _take_over(installed: Path, file: Any) -> None:
    """Copies a kernel's files from where they were installed, unless the cache has some."""
    cache, index = Path(file._cache_path), str(file._index_name)
    if cache == installed or (cache / index).exists():
        return
    cache.mkdir(parents=True, exist_ok=True)
    # In this order the index, which names the others, comes last.
    for found in sorted(installed.glob(f"{glob.escape(index.removesuffix('nbi'))}*nb[ci]")):
        partial = cache / f"{found.name}.{os.getpid()}"
        shutil.copyfile(found, partial)
        partial.replace(cache / found.name)


def _stamps_of_inputs(function: Any) -> tuple[tuple[Any, ...], ...]:
    """Returns time and size of the files of all helpers that go into a kernel, and the constants in
    them. A constant may come from a file without helpers.
    """
    seen, waiting, constants = {function}, [function], set()
    while waiting:
        called = waiting.pop()
        for name in called.__code__.co_names:
            known = called.__globals__.get(name)
            if isinstance(known, int):
                constants.add((called.__module__, name, known))
            inner = getattr(known, "py_func", None) or getattr(known, "_defn", None)
            if inner is not None and inner not in seen:
                seen.add(inner)
                waiting.append(inner)
    stats = [Path(file).stat() for file in sorted({each.__code__.co_filename for each in seen})]
    return (*((stat.st_mtime, stat.st_size) for stat in stats), *sorted(constants))


def helper(function: F) -> F:
    """Makes a function callable by kernels; it is compiled into them."""
    compiled: F = numba.njit(nogil=True, error_model="numpy", inline="never")(function)
    return compiled


def inlined(function: F) -> F:
    """Makes a small function part of each kernel's loop: no call, no array taken apart."""
    compiled: F = numba.njit(nogil=True, error_model="numpy", forceinline=True)(function)
    return compiled
