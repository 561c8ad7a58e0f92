"""Runs scripts/benches/*.py and prints each figure beside its ceiling, as a table or as JSON.

A bench is a module with `run() -> list[dict]`. A row has name, value, unit, ceiling and ratio:
value over ceiling, both measured in the same run, or None without a ceiling. A bench that fails
does not stop the others, but changes the exit status. Run it by `scripts/bench`.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import sys
import time
import traceback
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

BENCHES = Path(__file__).parent / "benches"
COLUMNS = ("name", "value", "unit", "ceiling", "ratio")


def bench_files() -> dict[str, Path]:
    """The benches by name."""
    return {p.stem: p for p in sorted(BENCHES.glob("*.py")) if not p.stem.startswith("_")}


def peer_files(peer: str) -> dict[str, Path]:
    """The benches beside another system by name."""
    prefix = f"_peer_{peer}"
    found = {p.stem.removeprefix(prefix).strip("_"): p for p in BENCHES.glob(f"{prefix}*.py")}
    return {name or "clients": path for name, path in sorted(found.items())}


def run_bench(name: str, path: Path) -> list[dict[str, Any]]:
    """Loads and runs one bench. Raises its errors, and ValueError for a row without a column."""
    spec = importlib.util.spec_from_file_location(f"benches.{name}", path)
    if spec is None or spec.loader is None:
        raise ImportError(f"{path} can not be loaded")
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    rows: list[dict[str, Any]] = module.run()
    for row in rows:
        missing = [column for column in COLUMNS if column not in row]
        if missing:
            raise ValueError(f"{path.name}: a row lacks {', '.join(missing)}: {row}")
    return rows


def shown(value: object) -> str:
    """A cell: thousands separated, three digits for small numbers, a dash for None."""
    if value is None:
        return "-"
    if isinstance(value, int | float):
        return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.3g}"
    return str(value)


def table_of(rows: list[dict[str, Any]]) -> Table:
    """The figures as a table; the ratio as a percentage."""
    table = Table()
    for column in COLUMNS:
        table.add_column(column, justify="left" if column in ("name", "unit") else "right")
    for row in rows:
        ratio = "-" if row["ratio"] is None else f"{100 * row['ratio']:.0f} %"
        table.add_row(*(shown(row[column]) for column in COLUMNS[:-1]), ratio)
    return table


def main() -> int:
    """Returns the exit status: 0 if every chosen bench ran, 1 if one failed, 2 for an unknown
    name.
    """
    parser = argparse.ArgumentParser(prog="scripts/bench", description=__doc__)
    parser.add_argument("names", nargs="*", metavar="NAME", help="benches to run; none: all")
    parser.add_argument("--json", action="store_true", help="print rows as JSON")
    parser.add_argument("--peer", choices=["kafka"], help="compare clients with it, or `spark`")
    parser.add_argument("--list", action="store_true", help="print the names of all benches")
    arguments = parser.parse_args()
    files = bench_files()
    if arguments.list:
        print("\n".join(files))
        return 0
    if arguments.peer is not None:
        files = peer_files(arguments.peer)
        arguments.names = arguments.names or ["clients"]
    unknown = [name for name in arguments.names if name not in files]
    if unknown:
        print(f"no bench {', '.join(unknown)}; there are {', '.join(files)}", file=sys.stderr)
        return 2
    # The root first: a bench may have the name of the package it measures.
    sys.path[:0] = [str(BENCHES.parents[1]), str(BENCHES)]
    progress = Console(stderr=True, highlight=False)
    rows: list[dict[str, Any]] = []
    failed: list[str] = []
    for name in arguments.names or files:
        began = time.monotonic()
        progress.print(f"bench {name} ...")
        try:
            rows += run_bench(name, files[name])
        except Exception:
            failed.append(name)
            progress.print("".join(traceback.format_exc().splitlines(keepends=True)[-12:]))
        else:
            progress.print(f"bench {name}: {time.monotonic() - began:.1f} s")
    if arguments.json:
        print(json.dumps({"rows": rows, "failed": failed}, indent=2))
    elif rows:
        Console(highlight=False).print(table_of(rows))
    if failed:
        progress.print(f"failed: {', '.join(failed)}")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
