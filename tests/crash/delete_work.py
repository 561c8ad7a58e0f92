"""Work for the crash tests of whole segments that leave a log: retention, purge, truncations, and
an opening that finds what they left.
"""

from __future__ import annotations

from commitlog.disk.files import Directory
from commitlog.log.expiration import delete_expired
from tests.crash.harness import Ack
from tests.crash.move_work import NOW_MS, batch
from tests.crash.move_work import open_all as open_both


def delete_and_cut(directory: Directory, ack: Ack) -> None:
    """Deletes, purges and cuts segments below and above a noted recovery point."""
    manager, log = open_both(directory)
    for number in range(40):
        log.append_as_leader(batch(number), 1, NOW_MS)
    log.update_high_watermark(30)
    manager.checkpoint_recovery_points()
    manager.checkpoint_high_watermarks()
    ack("noted")
    log.increment_log_start_offset(log.segments[2].base_offset)
    delete_expired(log, NOW_MS)
    log.deleted_files.purge(NOW_MS)
    ack("purged")
    log.truncate_to(log.segments[-3].base_offset + 1, NOW_MS)
    for number in range(log.log_end_offset, 50):
        log.append_as_leader(batch(number), 2, NOW_MS)
    manager.checkpoint_recovery_points()
    log.increment_log_start_offset(log.segments[2].base_offset)
    delete_expired(log, NOW_MS)
    manager.close(False)
    ack("closed")
    manager, log = open_both(directory)  # removes what was deleted
    ack("opened")
    log.truncate_fully_and_start_at(100, NOW_MS)
    ack("restarted")
    manager.close(True)
