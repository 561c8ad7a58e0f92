"""Voice of docstrings, as far as it can be counted: no headless clause as subject, no sentence of
more than 25 words."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Mapping

from tests.tidy.tree import docstrings

WORDS_MAX = 25

_HEADLESS = re.compile(r"(What|Whatever|Who|Whoever|Whom|Whose|Where|Wherever)\b")
_SENTENCE_END = re.compile(r"(?<=[.!?])\s+|\n\s*\n|\n\s*(?:[-*]|\d+\.)\s+")


def headless(text: str) -> Iterator[tuple[int, str]]:
    """Line and first words of each docstring that opens with a relative clause."""
    for line, docstring in docstrings(text):
        if _HEADLESS.match(docstring.strip()):
            yield line, docstring.strip().split("\n")[0][:60]


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


def long_sentences(text: str) -> Iterator[tuple[int, str]]:
    """Line of the docstring and first words of each sentence beyond the limit."""
    for line, docstring in docstrings(text):
        for sentence in _SENTENCE_END.split(_prose(docstring)):
            if sentence and len(sentence.split()) > WORDS_MAX:
                yield line, " ".join(sentence.split()[:8])


def counts(sources: Mapping[str, str]) -> dict[str, tuple[int, int]]:
    """(headless docstrings, long sentences) by room."""
    first: Counter[str] = Counter()
    second: Counter[str] = Counter()
    for name, text in sources.items():
        room = name.split("/")[0]
        first[room] += sum(1 for _ in headless(text))
        second[room] += sum(1 for _ in long_sentences(text))
    return {room: (first[room], second[room]) for room in first}
