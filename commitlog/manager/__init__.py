"""All logs of a node: which it has and where, their opening, creation and deletion, and the passes
over them.

Outsiders import `manager.LogManager`, the face of the room. They also import the types that meet
them there: `changes.ChangeReader` and `retention_schedule.RetentionSchedule` for background work,
and `registry.LogListener` for those notified of cuts, moves and removals. `new_logs` is for the one
who has logs made in a thread.

    manager              puts the parts below together
    registry             which logs are open, lost or failed, and where
    new_logs             makes planned logs, many at a time; saves which logs there are
    placement            where a new log is made, which of two logs stays; pure
    ownership            whether a log that names another topic is a stray; pure
    opening              opens and recovers the logs of a start, in threads
    full_disk            waits for space while logs are opened
    offset_checkpoints   recovery points, log starts and high watermarks per directory
    deleting             removes what was deleted after its delay
    changes              which logs changed since a pass last ran
    flush_passes, retention_schedule   which of them a pass works on

The room promises that a node has at most one log of a partition. It never recreates one while its
records may be in a directory that is offline. A disk that fails affects the logs of its directory
only. An idle log costs a pass nothing.
"""
