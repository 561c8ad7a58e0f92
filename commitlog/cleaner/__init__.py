"""Compaction: which logs and ranges are cleaned, the map of their keys, what stays of a batch, and
how cleaned segments take the place of the old ones.

`manager.LogCleaner` is the face: a pool of cleaner threads over a `LogManager`.
"""
