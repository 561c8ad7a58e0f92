"""The processor that kernels are compiled for: that of the machine, or an old one for all machines.

An image is built on one machine and runs on others, where numba would find no kernel for the
processor and compile all of them. `python -m tidemark.records.kernels.processor` is a step of the
image's build. It compiles for any processor since 2008 (x86-64) or 2014 (ARMv8), and leaves a mark
beside the kernels. A machine whose processor has those features takes these kernels. NUMBA_CPU_NAME
in the environment overrides the mark.
"""

from __future__ import annotations

import platform
from collections.abc import Mapping
from importlib import import_module
from pathlib import Path

from llvmlite import binding  # type: ignore[import-untyped, unused-ignore]
from numba import config

_SSE = "+cx16,+popcnt,+sse3,+ssse3,+sse4.1,+sse4.2,+crc32"
_BASELINES = {
    **dict.fromkeys(("x86_64", "amd64"), ("x86-64", _SSE)),
    **dict.fromkeys(("aarch64", "arm64"), ("generic", "+crc,+neon")),
}
_MARK = Path(__file__).parent / "__pycache__" / "compiled-for"


def choose(mark: Path = _MARK) -> None:
    """Sets numba's processor to that in the mark, if this machine has its features."""
    if config.CPU_NAME or not mark.exists():
        return
    name, wanted = mark.read_text().split()
    host = binding.get_host_cpu_features()
    if all(map(host.get, _names(wanted))):
        config.CPU_NAME, config.CPU_FEATURES = name, wanted


def features() -> Mapping[str, bool]:
    """Returns the features of the processor that kernels are compiled for."""
    if config.CPU_NAME or config.CPU_FEATURES:
        return dict.fromkeys(_names(config.CPU_FEATURES or ""), True)
    found: Mapping[str, bool] = binding.get_host_cpu_features()
    return found


def _names(text: str) -> list[str]:
    return [each[1:] for each in text.split(",") if each.startswith("+")]


def _install() -> None:
    """Marks this installation, and compiles the kernels into it. On an unknown architecture they
    are those of the machine.
    """
    baseline = _BASELINES.get(platform.machine().lower())
    if baseline is not None:
        _MARK.parent.mkdir(exist_ok=True)
        _MARK.write_text(" ".join(baseline))
    choose()
    for file in sorted(Path(__file__).parent.glob("*.py")):
        if file.stem not in ("__init__", "processor"):
            import_module(f"tidemark.records.kernels.{file.stem}")


if __name__ == "__main__":
    _install()
