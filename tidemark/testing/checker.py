"""Judges a history by all rules, and prints the verdicts.

    python -m tidemark.testing.checker history.jsonl

The exit status is 1 if a promise is broken, 2 if the file is no history.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TextIO

from tidemark.testing.facts import Facts
from tidemark.testing.history import Entry, FaultNoted, HistoryError, read_history, to_line
from tidemark.testing.rules import RULES, Verdict

_SHOWN_FINDINGS = 5
_SHOWN_CHARACTERS = 400


def judge(entries: Sequence[Entry]) -> list[Verdict]:
    """The verdict of each rule on a history."""
    facts = Facts(entries)
    verdicts = []
    for name, rule in RULES.items():
        promise = (rule.__doc__ or "").strip().split("\n\n")[0]
        verdict = Verdict(name, " ".join(promise.split()))
        rule(facts, verdict)
        verdicts.append(verdict)
    return verdicts


def broken(verdicts: Sequence[Verdict]) -> list[str]:
    """Names of the rules that the history breaks."""
    return [verdict.rule for verdict in verdicts if verdict.findings]


def report(entries: Sequence[Entry], verdicts: Sequence[Verdict]) -> str:
    """The verdicts as text: one line each, and each finding with the lines that show it."""
    return "\n".join(_report(entries, verdicts))


def _report(entries: Sequence[Entry], verdicts: Sequence[Verdict]) -> Iterator[str]:
    for verdict in verdicts:
        state = "BROKEN" if verdict.findings else "kept" if verdict.examined else "not examined"
        yield f"{state:12} {verdict.rule:20} {verdict.examined:8} examined: {verdict.promise}"
    for verdict in verdicts:
        for message, lines in verdict.findings[:_SHOWN_FINDINGS]:
            yield f"\n{verdict.rule}: {message}"
            for line in lines:
                yield f"  {line:6}: {to_line(entries[line - 1])[:_SHOWN_CHARACTERS]}"
            if lines and (fault := _fault_before(entries, lines[-1])):
                yield f"  the last fault before: {fault}"
        hidden = len(verdict.findings) - _SHOWN_FINDINGS
        if hidden > 0:
            yield f"\n{verdict.rule}: {hidden} more"


def _fault_before(entries: Sequence[Entry], line: int) -> str:
    for number in range(line, 0, -1):
        entry = entries[number - 1]
        if isinstance(entry, FaultNoted):
            return f"{number}: {entry.what}"
    return ""


def main(arguments: Sequence[str] | None = None, out: TextIO | None = None) -> int:
    """Checks a file; returns the exit status."""
    out = out or sys.stdout
    parser = argparse.ArgumentParser(
        prog="python -m tidemark.testing.checker",
        description="Checks the promises of a cluster over a history of its clients.",
    )
    parser.add_argument("file", type=Path, help="a history, as JSON lines")
    parsed = parser.parse_args(arguments)
    try:
        with parsed.file.open(encoding="utf-8") as lines:
            entries = read_history(lines)
    except (OSError, UnicodeDecodeError, HistoryError) as error:
        sys.stderr.write(f"{parsed.file}: {error}\n")
        return 2
    verdicts = judge(entries)
    out.write(report(entries, verdicts) + "\n")
    return 1 if broken(verdicts) else 0


if __name__ == "__main__":
    raise SystemExit(main())
