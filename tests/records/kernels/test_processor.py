"""The processor that an installation's kernels are compiled for."""

from __future__ import annotations

from pathlib import Path

import pytest
from llvmlite import binding  # type: ignore[import-untyped, unused-ignore]
from numba import config

from tidemark.records.kernels import processor


@pytest.fixture(autouse=True)
def own_processor(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(config, "CPU_NAME", None)
    monkeypatch.setattr(config, "CPU_FEATURES", None)
    host = {"sse4.2": True, "popcnt": True, "avx512f": False}
    monkeypatch.setattr(binding, "get_host_cpu_features", lambda: host)


def marked(tmp_path: Path, text: str) -> Path:
    mark = tmp_path / "compiled-for"
    mark.write_text(text)
    return mark


def test_a_machine_with_the_features_takes_the_installed_kernels(tmp_path: Path) -> None:
    processor.choose(marked(tmp_path, "x86-64 +popcnt,+sse4.2"))
    assert (config.CPU_NAME, config.CPU_FEATURES) == ("x86-64", "+popcnt,+sse4.2")
    assert processor.features() == {"popcnt": True, "sse4.2": True}, "not those of the machine"


def test_a_machine_that_lacks_one_compiles_for_itself(tmp_path: Path) -> None:
    processor.choose(marked(tmp_path, "x86-64 +sse4.2,+avx512f"))
    assert config.CPU_NAME is None
    assert processor.features()["popcnt"]


def test_an_installation_without_a_mark_compiles_for_its_machine(tmp_path: Path) -> None:
    processor.choose(tmp_path / "compiled-for")
    assert config.CPU_NAME is None


def test_the_environment_overrides_the_mark(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(config, "CPU_NAME", "skylake")
    processor.choose(marked(tmp_path, "x86-64 +sse4.2"))
    assert config.CPU_NAME == "skylake"


@pytest.mark.parametrize("name, wanted", sorted(set(processor._BASELINES.values())))
def test_a_baseline_has_the_instruction_of_the_checksum(name: str, wanted: str) -> None:
    features = processor._names(wanted)
    assert "sse4.2" in features if name == "x86-64" else "crc" in features
