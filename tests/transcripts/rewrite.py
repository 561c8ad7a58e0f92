"""`python -m tests.transcripts.rewrite`: makes the current behaviour the expected one. Read the
difference first.
"""

from __future__ import annotations

import logging
from pathlib import Path

from tests.transcripts.stories import STORIES

FOLDER = Path(__file__).parent


def expected(name: str) -> str:
    path = FOLDER / f"{name}.txt"
    return path.read_text(encoding="utf-8") if path.exists() else ""


def main() -> None:
    logging.disable(logging.CRITICAL)
    for name, story in STORIES.items():
        text = f"{story.__doc__}\n\n{story()}"
        changed = text != expected(name)
        (FOLDER / f"{name}.txt").write_text(text, encoding="utf-8")
        print(f"{'rewrote' if changed else 'same   '} {name}.txt")


if __name__ == "__main__":
    main()
