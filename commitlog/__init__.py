"""The log on disk: one partition's log, all logs of a node, and their upkeep.

    types      arguments and results of a log's calls; the lowest module
    disk/      the file system, and the small text files of a log directory
    segment/   one segment: file, indexes, epochs, producers
    log/       one partition's log: appends, reads, truncation, recovery, retention
    moves/     moves of logs between log directories (KIP-113)
    manager/   all logs of a node: opening, creation, deletion, checkpoints
    cleaner/   compaction
    dump/      prints files in readable form
    verify/    checks files against each other

Each room imports only from rooms above it in this list. The face of a room, the docstring of its
package, names the modules for outsiders.

All files are those of Apache Kafka, byte by byte. A record below the recovery point survives a
crash. A disk that fails takes its log directory offline, not the process, unless that needs the
directory. Event loops, sockets and replication belong to `node` and `quorum`. The time in ms is an
argument.
"""
