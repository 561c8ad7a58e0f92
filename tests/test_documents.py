"""The Python in the documents that needs no cluster, run as printed."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[1]
DOCUMENTS = ("tests/README.md",)


def blocks_of(document: str) -> list[str]:
    text = (ROOT / document).read_text(encoding="utf-8")
    return re.findall(r"```python\n(.*?)```", text, re.DOTALL)


@pytest.mark.parametrize("document", DOCUMENTS)
def test_the_python_of_a_document_runs_as_printed(document: str) -> None:
    blocks = blocks_of(document)
    assert blocks
    for block in blocks:
        exec(compile(block, document, "exec"), {})


def test_the_test_in_the_readme_passes() -> None:
    (block,) = [text for text in blocks_of("README.md") if "def test_" in text]
    names: dict[str, Any] = {}
    exec(compile(block, "README.md", "exec"), names)
    tests = [value for name, value in names.items() if name.startswith("test_")]
    assert tests
    for test in tests:
        test()
