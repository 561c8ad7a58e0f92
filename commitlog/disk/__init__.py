"""The file system as a log sees it, and the small text files of a log directory.

Outsiders import `files` (the protocols `Directory` and `File`, and their errors) and one of the two
implementations, `os_files` and `memory_files`. They also import `checkpoints` for the text files,
and `log_directory` for an entry of log.dirs. Names in it are of `names` and `homes`, bounds of
`open_files` and `reserve`, times of fsyncs of `sync_times`.

    files                protocols, errors, atomic replacement
    os_files             the operating system; the only module that calls it
    memory_files         a disk in memory that loses unsynced data on `crash()`
    log_directory        an entry of log.dirs, online or offline
    reserve              room for the metadata log on a full disk
    checkpoints          Kafka's text files
    names                names of directories in a log directory
    open_files           the bound on open descriptors
    homes, threads       partitions by log directory, per-log work on a few threads
    sync_times           how long fsyncs take

Bytes are durable after `File.fsync`, names after `Directory.fsync`. A failed fsync is never
retried. After its first disk error a log directory is not touched again.
"""
