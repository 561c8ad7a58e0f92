"""Compares `tidemark dump-log` with the dump tool of Kafka, line by line.

    .venv/bin/python scripts/compare_with_kafka.py FOLDER...

Both dump each segment, index, producer snapshot and checkpoint below the folders, written by Kafka
or by Tidemark. Records, batches, entries, checks and remarks on gaps in offsets must agree, those
of `__transaction_state` and `__consumer_offsets` also through their decoders. Exit status 1 if
anything differs. The tool is that of `KAFKA_HOME`, or Maven gets its jars.

Two things are left out. The values of a metadata log are Kafka's or Tidemark's own: only their
framing is compared. For files that were not closed cleanly, the two tools use different words about
preallocated indexes.
"""

from __future__ import annotations

import difflib
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

from benches._peer_kafka import jars

_FILE = re.compile(r"\d{20}\.(log|index|timeindex|txnindex|snapshot)|\d{20}-\d{10}\.checkpoint")
_GAPS = re.compile(r"(?m)^Non-consecutive offsets in (.*)\n(?:  .* is followed by .*(?:\n|\Z))+")
_NOT_SHOWN = "not shown"
_SHOWN_LINES = 10
_CHECKS = ("--verify-index-only", "--index-sanity-check")
_LOGGING = re.compile(r"(?m)^SLF4J: .*\n")  # the jars come without a logger
_DECODERS = {
    "__remote_log_metadata": "--remote-log-metadata-decoder",
    "__transaction_state": "--transaction-log-decoder",
    "__consumer_offsets": "--offsets-decoder",
}

Options = tuple[str, ...]


def options_of(path: Path) -> Iterator[Options]:
    """The option sets with which a file is dumped."""
    if path.parent.name.startswith("__cluster_metadata"):
        yield ("--deep-iteration",)
    elif path.suffix == ".log":
        yield from ((), ("--deep-iteration",), ("--print-data-log",))
        topic = path.parent.name.rpartition("-")[0]
        if topic in _DECODERS:
            yield (_DECODERS[topic],)
            yield (_DECODERS[topic], "--skip-record-metadata")
    else:
        yield ()
        if path.suffix.endswith("index"):
            yield from ((check,) for check in _CHECKS)


def dumped(command: list[str], paths: list[Path], options: Options) -> dict[Path, list[str]]:
    """The lines of each file's dump, with its remarks on gaps moved to the end."""
    whole = [*command, "--files", ",".join(map(str, paths)), *options]
    environment = {**os.environ, "LC_ALL": "C.UTF-8", "KAFKA_OPTS": "-Dfile.encoding=UTF-8"}
    result = subprocess.run(whole, capture_output=True, check=False, env=environment)
    text = _LOGGING.sub("", (result.stdout + result.stderr).decode("utf-8", "replace"))
    remarks = {Path(found[1]): found[0] for found in _GAPS.finditer(text)}
    parts = re.split(r"(?m)^Dumping (.*)$", _GAPS.sub("", text))
    shown = {Path(name): part for name, part in zip(parts[1::2], parts[2::2], strict=True)}
    return {path: _lines(shown.get(path, _NOT_SHOWN), remarks.get(path, "")) for path in paths}


def _lines(part: str, remarks: str) -> list[str]:
    return [line.rstrip() for line in f"{part.strip()}\n{remarks}".split("\n")]


def kafkas_tool() -> list[str]:
    """The command of Kafka's dump tool. Raises RuntimeError if it cannot be had."""
    home = os.environ.get("KAFKA_HOME")
    if home is not None:
        return [str(Path(home) / "bin" / "kafka-dump-log.sh")]
    main = "org.apache.kafka.tools.DumpLogSegments"
    return ["java", "-Xmx512m", "-Dfile.encoding=UTF-8", "-cp", jars(), main]


def main() -> int:
    """Compares all files. Returns the exit status."""
    if len(sys.argv) < 2:
        print(__doc__)
        return 2
    kafka = kafkas_tool()
    tidemark = [str(Path(sys.executable).with_name("tidemark")), "dump-log"]
    paths: dict[Options, list[Path]] = {}
    for folder in sys.argv[1:]:
        for path in sorted(Path(folder).resolve().rglob("*")):
            if _FILE.fullmatch(path.name):
                for options in options_of(path):
                    paths.setdefault(options, []).append(path)
    differing = 0
    for options, named in paths.items():
        theirs, ours = (dumped(tool, named, options) for tool in (kafka, tidemark))
        for path in named:
            if theirs[path][0] == _NOT_SHOWN:  # Kafka's tool stopped at an earlier file
                theirs |= dumped(kafka, [path], options)
            if theirs[path] != ours[path]:
                differing += 1
                print(f"{path} {' '.join(options)}")
                lines = difflib.unified_diff(theirs[path], ours[path], "kafka", "tidemark", n=0)
                print("\n".join(line.rstrip() for line in list(lines)[:_SHOWN_LINES]))
    print(f"{sum(map(len, paths.values()))} dumps compared, {differing} differ")
    return 1 if differing else 0


if __name__ == "__main__":
    sys.exit(main())
