"""The ground of a node: time, tasks, health, its directories, and settings of the process.

`clock.Clock` gives wall time and monotonic time; tests pass their own. `tasks` starts background
tasks whose failure is never unnoticed. `health.Health` is gRPC's standard health service and
reflection. `loop_lag` measures the event loop and names its long turns. `storage` formats, checks
and locks the directories of a node. `process` tunes the C library and gRPC before they are first
used.

Outsiders may import `storage` (the commands `tidemark storage`) and `process` (the command line,
before it imports gRPC). All rooms of node may import all of it.

A task started with `tasks.spawn` that fails stops the process with its error. A directory that
belongs to another node or cluster is never written to, and a start never formats one.
"""
