"""Voice of docstrings and comments, as far as it can be counted.

No docstring and no comment opens with a relative clause ("What ...", "Who ..."), and no sentence of
a docstring has more than 25 words. Help texts of commands are output, not docstrings.
"""

from __future__ import annotations

import ast
import re

from tests.tidy.tree import docstrings, nodes

WORDS_MAX = 25

_HEADLESS = re.compile(r"(What|Whatever|Who|Whoever|Whom|Whose|Where|Wherever)\b")
_COMMENT = re.compile(r"(?:^\s*#:? |  # )(.*)$")
_SENTENCE_END = re.compile(r"(?<=[.!?])\s+|\n\s*\n|\n\s*(?:[-*]|\d+\.)\s+")


def _help_texts(name: str, text: str) -> frozenset[int]:
    """Lines of the docstrings that the command line prints."""
    if not name.startswith("tidemark/cli/"):
        return frozenset()
    functions = (n for n in nodes(text) if isinstance(n, ast.FunctionDef) and n.decorator_list)
    return frozenset(function.body[0].lineno for function in functions)


def _prose(docstring: str) -> str:
    """The docstring without tables and examples: blocks indented beyond the rest, or drawn."""
    lines = docstring.splitlines()
    indents = [len(line) - len(line.lstrip()) for line in lines[1:] if line.strip()]
    least = min(indents, default=0)
    kept = []
    for number, line in enumerate(lines):
        indent = len(line) - len(line.lstrip())
        drawn = number > 0 and (indent > least + 3 or re.search(r"-->|--\+| \| ", line))
        kept.append("" if drawn else line)
    return "\n".join(kept)


def problems(name: str, text: str) -> list[str]:
    """Docstrings and comments of a Python file that open with a relative clause, and sentences that
    are too long."""
    found = []
    helps = _help_texts(name, text)
    for line, docstring in docstrings(text):
        if line in helps:
            continue
        if _HEADLESS.match(docstring.strip()):
            found.append(f"{name}:{line}: opens with a relative clause: {docstring.strip()[:40]}")
        for sentence in _SENTENCE_END.split(_prose(docstring)):
            words = sentence.split()
            if len(words) > WORDS_MAX:
                found.append(f"{name}:{line}: {len(words)} words: {' '.join(words[:6])}")
    before = ""
    for number, source in enumerate(text.splitlines(), start=1):
        comment = _COMMENT.search(source)
        goes_on = source.lstrip().startswith("#") and before.lstrip().startswith("#")
        if comment and not goes_on and _HEADLESS.match(comment[1].capitalize()):
            found.append(f"{name}:{number}: opens with a relative clause: {comment[1][:40]}")
        before = source
    return found
