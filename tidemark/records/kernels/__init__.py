"""The compiled loops over record batches: numba, at memory speed, without the interpreter lock.

A kernel is a function of numba with one explicit signature. Importing its module compiles it, or
loads it from numba's cache, which takes part of a second; so importers do that late (`jit`).
Kernels read foreign bytes and check every bound. A fault is a negative number, never an exception.

Outsiders may import these modules:
- `batches`: the walk over the batches of a buffer, and their index entries.
- `append`, `walk`, `find`: one batch's checks before an append, and the search by timestamp.
- `clean`, `compact`: the passes of a cleaning, over batches and over the records of one.
- `codec`: the loops between Arrow buffers and records.
- `crc`: CRC-32C.

`words` and `jit` are of use only here. A cached kernel is compiled again when its file, a file of
its helpers or a constant in it changes.
"""
