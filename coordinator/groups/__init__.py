"""Consumer groups (KIP-848) and their offsets: the state of a partition of `__consumer_offsets`.

Outsiders import `shard` and its settings, `heartbeat`, `members` and `commits` for the requests of
members, and `description` for answers.

    shard           all groups of a partition: replay, requests, deadlines
    group           one group, and what its records change
    members         a member, and its way to the target assignment
    heartbeat       join, stay, leave
    subscription    the topics that a group subscribes to
    assignors       uniform and range
    offsets         committed offsets, and those of open transactions
    commits         commit, fetch, delete and expire offsets

All of it is pure. A decision returns records and an answer, and state changes only by replaying
records. So the state after a crash is that of the log. Sessions are not in the log: after a change
of the coordinator each member has a whole session timeout.
"""
