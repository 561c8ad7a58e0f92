"""The stamp that decides whether a cached kernel is compiled again."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tidemark.records.kernels import append, jit, walk


def test_a_kernel_is_stamped_with_the_constants_and_the_helpers_that_go_into_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    function = append.check.py_func
    stamp = jit._stamps_of_inputs(function)
    assert jit._stamps_of_inputs(function) == stamp
    with monkeypatch.context() as changed:
        changed.setattr(append, "RECORD_COUNT_AT", 58)
        assert jit._stamps_of_inputs(function) != stamp
    with monkeypatch.context() as changed:
        changed.setattr(walk, "FAULT_OFFSET", -40)
        assert jit._stamps_of_inputs(function) != stamp, "a constant of a kernel that it calls"
    assert jit._stamps_of_inputs(function) == stamp


MISSES = """
import json, sys
from tidemark.records.arrow import warm_up
warm_up()
kernels = {
    f"{name}.{key}": sum(value.stats.cache_misses.values())
    for name, module in list(sys.modules.items())
    if name.startswith("tidemark.records")
    for key, value in vars(module).items()
    if hasattr(getattr(value, "_cache", None), "_cache_file")
}
print(json.dumps(kernels))
"""


def misses(**environ: str) -> dict[str, int]:
    """Runs a process of its own; returns how often it compiled each kernel."""
    env = {key: value for key, value in os.environ.items() if not key.startswith("NUMBA_")}
    done = subprocess.run(
        [sys.executable, "-c", MISSES], env=env | environ, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    found: dict[str, int] = json.loads(done.stdout)
    return found


def test_a_process_with_a_cache_of_its_own_compiles_nothing_that_was_installed(
    tmp_path: Path,
) -> None:
    misses()  # beside the files, as at installation
    found = misses(NUMBA_CACHE_DIR=str(tmp_path))
    assert len(found) > 5
    assert not any(found.values()), found
    assert not any(misses(NUMBA_CACHE_DIR=str(tmp_path)).values())
