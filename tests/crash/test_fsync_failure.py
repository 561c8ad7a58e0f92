"""The kernel refuses a sync (strace injects EIO): a real process says so, never syncs again, and
what it had acknowledged before is there after a restart."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from commitlog.files import OsDirectory
from tests.crash.append_work import RECORDS_PER_BATCH, open_log
from tests.crash.harness import ROOT
from tests.crash.test_append_crash import expected, read_all


def _strace(path: Path, inject: str, *command: str) -> subprocess.CompletedProcess[str]:
    flags = ["-f", "-qq", "-o", str(path / "strace.out"), "-e", "trace=fdatasync,fsync"]
    return subprocess.run(
        ["strace", *flags, "-e", f"inject={inject}", *command],
        capture_output=True,
        text=True,
        cwd=ROOT,
        timeout=120,
        check=False,
    )


@pytest.mark.parametrize("call", ["fdatasync", "fsync"])
@pytest.mark.parametrize("when", [2, 4])
def test_a_refused_sync_stops_the_process_and_loses_nothing_acknowledged(
    call: str, when: int, tmp_path: Path
) -> None:
    if shutil.which("strace") is None:
        pytest.skip("strace is not installed")
    if _strace(tmp_path, "fsync:error=EIO:when=1", "true").returncode != 0:
        pytest.skip("strace may not trace here (ptrace is not permitted)")
    data = tmp_path / "log"
    done = _strace(
        tmp_path,
        f"{call}:error=EIO:when={when}+",
        *(sys.executable, "-m", "tests.crash.fsync_work", str(data)),
    )
    assert "INJECTED" in (tmp_path / "strace.out").read_text()
    assert done.returncode == 3, done.stderr
    assert "nothing is written there any more" in done.stderr
    acked = done.stdout.count("acked")
    log = open_log(OsDirectory(data))
    found = [(record.offset, record.value) for record in read_all(log)]
    assert len(found) >= acked * RECORDS_PER_BATCH
    assert found == expected(len(found) // RECORDS_PER_BATCH)
