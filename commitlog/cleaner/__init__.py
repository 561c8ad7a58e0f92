"""Compaction of the logs of a node (Kafka's LogCleaner; KIP-534 for the delete horizon).

Outsiders import `manager.LogCleaner`, the face of the room. `cleaning` loads the compiled kernels;
it is imported only when there is work, or by `node/upkeep/cleaning.py` in a thread.

    manager        which log is next, what is under way, how far each log is clean
    choice         which log, how far, in which groups of segments; pure
    states         states of cleanings against truncation, deletion and retention; pure
    cleaning       one cleaning of one log, up to the swap
    offset_map     last offset of each key of a log's dirty part
    filter, transactions   what stays of a batch; outcome of transactions
    reading, io    buffers, rate, and the sign to stop

The room promises that the last record of each key stays, a tombstone until its delete horizon. No
offset, epoch or sequence of a record changes. The files of the log are not touched before a
finished, durable group replaces them. A damaged batch ends the cleaning: damage is never signed
with a new CRC.
"""
