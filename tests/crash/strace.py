"""strace as a disk that fails: it refuses chosen system calls of a process, on chosen files only if
given.

The test is skipped if there is no strace, or if the kernel permits no tracing. With CI set a
missing strace is a failure: scripts/install-tools installs it.
"""

from __future__ import annotations

import subprocess
from collections.abc import Sequence
from pathlib import Path

import pytest

from tests.tools import tool


def strace_prefix(output: Path, inject: str, files: Sequence[Path] = ()) -> list[str]:
    """Returns the command in front of the traced one.

    `inject` is a value of strace's `-e inject=`, e.g. `fsync,fdatasync:error=EIO:when=3+`; calls
    are counted by thread. Refused calls are written to `output`, marked INJECTED.
    """
    calls = inject.partition(":")[0]
    chosen = [part for file in files for part in ("-P", str(file))]
    return [
        *(tool("strace"), "-f", "-qq", "--seccomp-bpf", "-o", str(output)),
        *(*chosen, "-e", f"trace={calls}", "-e", f"inject={inject}"),
    ]


def require_strace(path: Path) -> None:
    """Skips the test where tracing is not permitted."""
    command = [*strace_prefix(path / "strace.probe", "fsync:error=EIO:when=1"), "true"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        pytest.skip(f"strace may not trace here: {done.stderr.strip()}")
