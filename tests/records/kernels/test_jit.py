"""The stamp that decides whether a cached kernel is compiled again."""

from __future__ import annotations

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
