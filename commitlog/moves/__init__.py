"""Moves of logs between the log directories of their node (KIP-113, KIP-858).

A move copies a log into a future log while the log is in use, and then swaps the two on the event
loop.

    directory_moves   begins, swaps and cancels moves; what a start makes of them
    future_log        the copy, its pieces, and the lineage that ranks two copies of a log

Outsiders import `directory_moves.DirectoryMoves`, which they reach as `LogManager.moves`. Those
that do the copying import `future_log.FutureLog`, `CopyPiece` and `SourceError` too.
`DirectoryMoves` is given the logs of the node by protocol and does not import their manager.

The room promises that at each moment one log of a partition is the current one. A crash at any
point leaves that log complete. A copy takes its place only when it is complete and durable.
"""
