"""Replicas that move between the log directories of their node (KIP-113, KIP-858).

`directory_moves.DirectoryMoves` is the face, a part of `LogManager`; `future_log.FutureLog` is the
copy that catches up and then takes the current log's place.
"""
