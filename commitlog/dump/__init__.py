"""Contents of the files of a log, as Kafka's DumpLogSegments shows them.

Outsiders import this package: `dump_file` yields plain dictionaries, `format_entry` returns Kafka's
line for one. `tidemark dump-log` imports `format.control_fields` and `kafka_metadata` too, for what
it prints of records.

    contents       segments, checkpoints of the metadata, producer snapshots
    index          offset, time and transaction indexes, compared with their segment
    text_files     offset and epoch checkpoints, properties, JSON
    format         the line of text for each entry
    kafka_metadata records of Kafka's own metadata log

The room promises to write nothing, and to be tolerant of damage. Bytes that cannot be read become
an entry with their position and the reason. The rest of the file is shown as far as it can be read.
"""

from commitlog.dump.contents import DumpOptions, Entry, dump_file, text_of
from commitlog.dump.format import format_entry

__all__ = ["DumpOptions", "Entry", "dump_file", "format_entry", "text_of"]
