"""The paths of the pinned tools of scripts/install-tools, for tests that run the real ones."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest


def found_tool(name: str) -> str | None:
    """The tool's path: from the cache of scripts/install-tools, else from PATH; None: nowhere."""
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    pinned = cache / "tidemark" / "tools" / "bin" / name
    return str(pinned) if os.access(pinned, os.X_OK) else shutil.which(name)


def tool(name: str) -> str:
    """The path as of `found_tool`.

    Without the tool the test is skipped; on CI, which installs it, it fails.
    """
    found = found_tool(name)
    if found is None:
        message = f"no {name}: run scripts/install-tools"
        pytest.fail(message) if os.environ.get("CI") else pytest.skip(message)
    return found
