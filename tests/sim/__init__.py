"""The seeded simulator of the metadata quorum: the real replica over the real log, on virtual time
and faulty disks.

`python -m tests.sim --seeds 200 [--start N]` runs seeds and prints a summary; a failing seed prints
the command that repeats it. The same seed gives the same trace for any PYTHONHASHSEED.
"""
