"""The log on disk: segments, indexes, epochs, producer state, recovery, retention; files as Apache
Kafka writes them.

`Log` is one partition's log, `LogManager` all logs of a node's log directories, `Directory` the
file system they live in. DESIGN.md shows the room's face.
"""

from commitlog.files import Directory, DirectoryLock, DiskUsage, File, OsDirectory
from commitlog.log import Log
from commitlog.log_manager import LogManager
from commitlog.segment import Segment
from commitlog.types import (
    AppendInfo,
    AppendOrigin,
    DeletedSegment,
    FetchResult,
    TimestampOffset,
    UnexpectedAppendOffsetError,
)

__all__ = [
    "AppendInfo",
    "AppendOrigin",
    "DeletedSegment",
    "Directory",
    "DirectoryLock",
    "DiskUsage",
    "FetchResult",
    "File",
    "Log",
    "LogManager",
    "OsDirectory",
    "Segment",
    "TimestampOffset",
    "UnexpectedAppendOffsetError",
]
