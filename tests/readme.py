"""The fenced blocks of README.md, for the tests that run them as they are printed."""

from __future__ import annotations

import re
from pathlib import Path
from typing import NamedTuple

README = Path(__file__).resolve().parent.parent / "README.md"


class Block(NamedTuple):
    """A fenced block: the heading above it, its language, its text."""

    section: str
    language: str
    text: str


def blocks() -> list[Block]:
    """All blocks in the order of the page."""
    found = []
    section = ""
    pattern = re.compile(r"^#+ ([^\n]*)$|^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
    for heading, language, text in pattern.findall(README.read_text(encoding="utf-8")):
        if heading:
            section = heading
        else:
            found.append(Block(section, language, text))
    return found


def block(section: str, language: str) -> str:
    """The text of the only block of a language in a section."""
    (found,) = (b.text for b in blocks() if (b.section, b.language) == (section, language))
    return found
