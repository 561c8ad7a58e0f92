"""Programs that must do the same whatever PYTHONHASHSEED is: sets of strings have another order."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path


def outputs(code: str, *hash_seeds: str) -> set[str]:
    """Runs a program once for each hash seed (two by default); returns what the runs printed."""
    return {
        subprocess.run(
            [sys.executable, "-c", code],
            env=os.environ | {"PYTHONHASHSEED": hash_seed},
            cwd=Path(__file__).parents[1],
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        for hash_seed in hash_seeds or ("1", "4242")
    }
