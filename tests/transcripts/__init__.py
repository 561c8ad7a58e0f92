"""Transcripts of the quorum, produced by the real replica: `stories.py` generates the `*.txt`
files.

A change of behaviour changes a transcript. Read the difference; once it is understood, run `python
-m tests.transcripts.rewrite`.
"""
