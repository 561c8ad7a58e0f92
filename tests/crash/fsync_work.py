"""A process that appends and syncs until a sync fails; `test_fsync_failure` runs it under
strace.
"""

from __future__ import annotations

import sys

from commitlog.disk.os_files import OsDirectory
from tests.crash.append_work import NOW_MS, batch, open_log
from tidemark.errors import FatalError


def main(path: str) -> int:
    log = open_log(OsDirectory(path))
    for number in range(14):
        log.append_as_leader(batch(number), 1, NOW_MS)
        try:
            log.flush()
        except FatalError as error:
            sys.stderr.write(f"{error}\n")
            try:
                log.flush()
            except FatalError:
                return 3
            return 4  # a second sync succeeded falsely
        sys.stdout.write(f"acked {number}\n")
        sys.stdout.flush()
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
