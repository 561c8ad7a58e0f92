"""Checkers of the tree's style, references and shape; `tests/test_tidy.py` runs them all."""
