"""Where the pinned tools of scripts/install-tools are, for tests that run the real ones."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest


def tool(name: str) -> str:
    """The tool's path: from the cache of scripts/install-tools, else from PATH.

    Where there is none the test is skipped; on CI, which installs it, that is a failure.
    """
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    pinned = cache / "tidemark" / "tools" / "bin" / name
    found = str(pinned) if os.access(pinned, os.X_OK) else shutil.which(name)
    if found is None:
        message = f"no {name}: run scripts/install-tools"
        pytest.fail(message) if os.environ.get("CI") else pytest.skip(message)
    return found
