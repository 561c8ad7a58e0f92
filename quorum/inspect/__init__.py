"""A read-only view of a metadata log, a checkpoint, or a live cluster; for `tidemark metadata`.

`source.load` reads an image from a checkpoint file, a log directory, or the active controller of a
cluster. It reads up to an offset if one is given. `tree` presents an image as a tree of paths with
JSON leaves, finds nodes by globs, and lists the differences of two trees.

Outsiders may import `source.load` and everything public in `tree`.

Nothing is ever written: no file is opened for writing, no lock is taken, and a controller sees only
a reader that is no replica. Nothing is printed either; the command line passes a callback that
shows the progress of reading a checkpoint.
"""
