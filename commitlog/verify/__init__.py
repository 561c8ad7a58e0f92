"""Read-only checks of a log's files, of all kinds, against their checksums and each other.

Outsiders import this package. `verify_directory` yields a `Finding` for each contradiction.
`check_batches` goes over one segment, a chunk at a time; `verify_index` goes over one index.

    findings       what is wrong, and where
    batches        one segment: framing, CRC, rising offsets and leader epochs
    indexes        an index against its segment
    logs           one log: segments that join, indexes, epochs, snapshots, the topic id
    directories    a log directory: its checkpoints against the ends of its logs

The room promises to write nothing, and to pass over files that a running node removes meanwhile.
After a clean stop every contradiction is damage. Without one, the part of a log that recovery
checks at the next start gives notes, and damage is what a second look finds, too.
"""

from commitlog.verify.batches import BatchRun, check_batches
from commitlog.verify.directories import bytes_of, verify_directory
from commitlog.verify.findings import Finding
from commitlog.verify.indexes import verify_index

__all__ = [
    "BatchRun",
    "Finding",
    "bytes_of",
    "check_batches",
    "verify_directory",
    "verify_index",
]
