"""Transcripts of the quorum and of both coordinators, produced by the real cores: `stories.py` and
`coordinators.py` generate the `*.txt` files.

A change of behaviour changes a transcript. Read the difference; once it is understood, run `python
-m tests.transcripts.rewrite`.
"""
