"""Chromium without a window: the document of a page, or its picture, once its requests are done."""

from __future__ import annotations

import html
import re
import subprocess
from pathlib import Path

from tests.tools import tool

_TIMEOUT_S = 120
_BUDGET_MS = 20_000
"""Of virtual time, which stands still while a request is under way."""


class Browser:
    """A profile of its own; each page is one run of the browser."""

    def __init__(self, profile: Path) -> None:
        self._command = [
            tool("chromium"),
            "--headless",
            "--no-sandbox",  # root has none
            "--disable-gpu",
            "--disable-background-networking",
            "--disable-component-update",
            "--hide-scrollbars",
            "--window-size=1280,900",
            f"--user-data-dir={profile}",
            f"--virtual-time-budget={_BUDGET_MS}",
        ]

    def _run(self, *arguments: str) -> str:
        done = subprocess.run(
            [*self._command, *arguments], capture_output=True, text=True, timeout=_TIMEOUT_S
        )
        assert done.returncode == 0, done.stderr
        return done.stdout

    def document(self, url: str) -> str:
        """The page's HTML after its scripts ran."""
        return self._run("--dump-dom", url)

    def picture(self, url: str, path: Path, *, dark: bool = False) -> bytes:
        """A PNG of the page, in a light or a dark theme."""
        scheme = f"--blink-settings=preferredColorScheme={int(not dark)}"
        self._run(scheme, f"--screenshot={path}", url)
        return path.read_bytes()


def text_of(document: str) -> str:
    """The texts of a document, without markup."""
    return html.unescape(re.sub(r"<[^>]+>", " ", document))
