"""One partition's log: appends, reads, look-ups, truncation, flushes, retention and recovery.

Outsiders import `log.Log` and `opening.open_log`, which makes one. They also import
`expiration.delete_expired`, `from_tier.rebuild_from_remote`, `flushing.PendingFlush`, the errors of
`claims`, the protocols of `events` and the file name of `continuity`.

    opening, loader      open a log; recover it after an unclean stop
    continuity           holes between segments, and leader epochs that contradict the lineage
    claims               what files and checkpoints must agree on at an opening; pure
    log                  appends, reads, watermarks, truncation
    segments             the list of segments, and the names of their files
    flushing             the recovery point, and flushes in three steps
    validation, producer_checks, rewriting   the checks of an append, and the bytes to write
    lookup               look-ups by timestamp, and aborted transactions
    retention, expiration, deleted_files   which segments expire, and their deletion
    swap                 how cleaned segments replace old ones
    from_tier, restart   a follower that starts from remote storage, whole or not at all
    events, jitter       reports to the owner; when a segment rolls early

An append is written whole or not at all. Records below the recovery point survive a crash. The room
starts no thread and reads no clock: the time in ms is an argument.
"""
