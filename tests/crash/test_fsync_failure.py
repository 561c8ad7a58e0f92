"""The kernel refuses a sync of a real process (strace injects EIO). The process reports it and
never syncs again; what it acknowledged before exists after a restart.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from commitlog.disk.os_files import OsDirectory
from tests.crash.append_work import RECORDS_PER_BATCH, open_log
from tests.crash.harness import ROOT
from tests.crash.strace import require_strace, strace_prefix
from tests.crash.test_append_crash import expected, read_all


@pytest.mark.parametrize("call", ["fdatasync", "fsync"])
@pytest.mark.parametrize("when", [2, 4])
def test_a_refused_sync_stops_the_process_and_loses_nothing_acknowledged(
    call: str, when: int, tmp_path: Path
) -> None:
    require_strace(tmp_path)
    data, output = tmp_path / "log", tmp_path / "strace.out"
    done = subprocess.run(
        [
            *strace_prefix(output, f"{call}:error=EIO:when={when}+"),
            *(sys.executable, "-m", "tests.crash.fsync_work", str(data)),
        ],
        capture_output=True,
        text=True,
        cwd=ROOT,
        timeout=120,
        check=False,
    )
    assert "INJECTED" in output.read_text()
    assert done.returncode == 3, done.stderr
    assert "nothing is written there any more" in done.stderr
    acked = done.stdout.count("acked")
    log = open_log(OsDirectory(data))
    found = [(record.offset, record.value) for record in read_all(log)]
    assert len(found) >= acked * RECORDS_PER_BATCH
    assert found == expected(len(found) // RECORDS_PER_BATCH)
