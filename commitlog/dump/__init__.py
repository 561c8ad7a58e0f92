"""What is in the files of a log, as Kafka's DumpLogSegments shows it: read-only, and tolerant of
damage.
"""

from commitlog.dump.contents import DumpOptions, Entry, dump_file, text_of
from commitlog.dump.format import format_entry

__all__ = ["DumpOptions", "Entry", "dump_file", "format_entry", "text_of"]
