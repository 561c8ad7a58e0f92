"""One segment of a log: its file, its indexes, and the state that follows from its batches.

Outsiders import `segment.Segment`, `names` (names and suffixes of a segment's files), and
`batch_table.BatchTable` where many headers are read at once. Logs also import `cutting`,
`page_cache`, `epochs.LeaderEpochCache` and `producer_state.ProducerStateManager`. The tier imports
their file formats and that of transaction indexes (`indexes.parse_transactions`), and
`producer_replay`.

    segment              appends and reads; loads, rebuilds and recovers
    reading              the read of a fetch, checked for the order of its batches
    page_cache           whether a read would wait for the disk
    cutting              the place of a truncation, found before anything is removed
    indexes              the offset, time and transaction index
    batches, batch_table scans over headers, one by one or as columns
    epochs               at which offset each leader epoch began
    producer_state       idempotent and transactional producers, and their snapshots
    producer_replay      makes lost producer snapshots again
    txn_recovery         rebuilds transaction indexes, and checks old ones

The files are those of Apache Kafka, byte by byte. A damaged index never gives a wrong answer.
Each entry is compared with its batch before use, and the indexes are rebuilt if one does not fit.
Nothing here knows of other segments' offsets, watermarks or replication.
"""
