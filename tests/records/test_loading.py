"""The cost of imports, and kernels without a place for their cache."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]


def run(code: str, **environment: str) -> str:
    done = subprocess.run(
        [sys.executable, "-c", code],
        env={**os.environ, **environment},
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


HEAVY = "print([m for m in ('numba', 'pyarrow', 'numpy', 'grpc', 'pyspark') if m in sys.modules])"


def test_importing_tidemark_loads_nothing_heavy() -> None:
    assert run(f"import sys, tidemark; {HEAVY}") == "[]"


def test_headers_and_plain_records_need_neither_arrow_nor_numba() -> None:
    code = """
import sys
from tidemark.records import Record, decode_batch, encode_batch, validate_batches
data = encode_batch([Record(0, 1, b"k", b"v")])
validate_batches(data, 1000)
assert decode_batch(data)[0].value == b"v"
"""
    assert run(code + HEAVY) == "[]"


def test_a_few_arrow_records_do_not_load_numba() -> None:
    code = """
import sys
import pyarrow as pa
from tidemark.records import decode_arrow, encode_arrow
data = encode_arrow(None, pa.array([b"v"]), pa.array([1]))
assert decode_arrow(data).column("value").to_pylist() == [b"v"]
print('numba' in sys.modules)
"""
    assert run(code) == "False"


MODULE = """
from numba import types
from tidemark.records.kernels.jit import kernel

@kernel(types.int64(types.int64))
def double(value):
    return 2 * value
"""


def test_kernels_are_cached_on_disk(tmp_path: Path) -> None:
    (tmp_path / "small_kernel.py").write_text(MODULE)
    cache = tmp_path / "cache"
    code = "import small_kernel; print(small_kernel.double(21))"
    path = f"{tmp_path}{os.pathsep}{ROOT}"
    assert run(code, NUMBA_CACHE_DIR=str(cache), PYTHONPATH=path) == "42"
    first = {path: path.stat().st_mtime_ns for path in cache.rglob("*.nbc")}
    assert len(first) == 1
    assert run(code, NUMBA_CACHE_DIR=str(cache), PYTHONPATH=path) == "42"
    assert {path: path.stat().st_mtime_ns for path in cache.rglob("*.nbc")} == first


HELPERS = """
from tidemark.records.kernels.jit import inlined

@inlined
def twice(value):
    return {factor} * value
"""

BETWEEN = """
from tidemark.records.kernels.jit import helper
from innermost_kernel import twice

@helper
def through(value):
    return twice(value)
"""

OUTERMOST = """
from numba import types
from tidemark.records.kernels.jit import kernel
from between_kernel import through

@kernel(types.int64(types.int64))
def double(value):
    return through(value)
"""


def test_a_kernel_is_compiled_anew_when_a_helper_s_file_changes(tmp_path: Path) -> None:
    path = f"{tmp_path}{os.pathsep}{ROOT}"
    (tmp_path / "between_kernel.py").write_text(BETWEEN)
    (tmp_path / "outermost_kernel.py").write_text(OUTERMOST)
    for factor in (2, 10):
        (tmp_path / "innermost_kernel.py").write_text(HELPERS.format(factor=factor))
        code = "import outermost_kernel; print(outermost_kernel.double(21))"
        cache = str(tmp_path / "cache")
        assert run(code, NUMBA_CACHE_DIR=cache, PYTHONPATH=path) == str(21 * factor)


def test_kernels_work_where_nothing_can_be_cached(tmp_path: Path) -> None:
    (tmp_path / "small_kernel.py").write_text(MODULE)
    code = """
import numba.core.caching as caching
def nowhere(cls, *_):
    return None
for locator in caching.CacheImpl._locator_classes:
    locator.from_function = classmethod(nowhere)
import small_kernel
print(small_kernel.double(21))
"""
    assert run(code, PYTHONPATH=f"{tmp_path}{os.pathsep}{ROOT}") == "42"


def test_a_cache_that_can_not_be_written_is_no_error(tmp_path: Path) -> None:
    (tmp_path / "small_kernel.py").write_text(MODULE)
    code = """
import numba.core.caching as caching
def full(self, *_):
    raise OSError(28, "No space left on device")
caching.IndexDataCacheFile.save = full
import small_kernel
print(small_kernel.double(21))
"""
    path = f"{tmp_path}{os.pathsep}{ROOT}"
    assert run(code, NUMBA_CACHE_DIR=str(tmp_path / "c"), PYTHONPATH=path) == "42"
