"""Stories of the quorum, told by the real replica: `*.txt` is what `stories.py` makes of it.

A change of behaviour changes a transcript. Read the difference; when it is understood:
`python -m tests.transcripts.rewrite`.
"""
