"""Kills a child process with SIGKILL at a named point of its work on files.

A point names an operation, the end of the file's name, and the number of the occurrence.
`append:.log:3` dies before the third append to a `*.log`, `append:.log:3+` right after it, and
`append:.log:3~` after half of its bytes. Operations are create, append, pwrite, truncate, fsync,
rename (the new name counts), remove, and fsync_dir (suffix empty). `points_of` runs the work once
without dying and returns every point it passes, so that a test can try them all.

The work is a function `module:name`, called as `work(directory, ack, **arguments)` with a
`CrashingDirectory`. What it passes to `ack` was acknowledged before the kill. One helper process
forks a child per job, so that a job costs milliseconds and no interpreter's start.
"""

from __future__ import annotations

import importlib
import json
import os
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from commitlog.disk.files import Directory, DirectoryLock, DiskUsage, File, write_atomic
from commitlog.disk.memory_files import MemoryDirectory
from commitlog.disk.os_files import OsDirectory
from commitlog.log.opening import open_log
from tidemark.config import TopicConfig
from tidemark.records import Record, encode_batch
from tidemark.types import TopicPartition

ROOT = Path(__file__).resolve().parents[2]
Ack = Callable[[str], None]


class CrashPlan:
    """Counts the operations, and ends the process at the chosen one."""

    def __init__(self, crash_at: str | None, passed: list[str] | None = None) -> None:
        self._passed = passed
        self._counts: Counter[tuple[str, str]] = Counter()
        self._target: tuple[str, str, int] | None = None
        self._mode = ""
        if crash_at:
            operation, suffix, nth = crash_at.split(":")
            self._mode = nth.lstrip("0123456789")
            self._target = (operation, suffix, int(nth.removesuffix(self._mode)))

    def before(self, operation: str, name: str) -> str:
        """Passes a point; returns "+" or "~" if the process must die after all or half of it."""
        suffix = "" if operation == "fsync_dir" else _suffix(name)
        self._counts[operation, suffix] += 1
        nth = self._counts[operation, suffix]
        if self._passed is not None:
            self._passed.append(f"{operation}:{suffix}:{nth}")
        if self._target != (operation, suffix, nth):
            return ""
        if not self._mode:
            die()
        return self._mode


def die() -> None:
    """Ends the process at once, without Python's cleanup."""
    os.kill(os.getpid(), signal.SIGKILL)


def _suffix(name: str) -> str:
    base = name.rsplit("/", 1)[-1]
    return base[base.rindex(".") :] if "." in base else base


class CrashingFile:
    """A file whose operations are points."""

    def __init__(self, inner: File, name: str, plan: CrashPlan) -> None:
        self._inner = inner
        self._name = name
        self._plan = plan

    @property
    def name(self) -> str:
        return self._inner.name

    @property
    def size(self) -> int:
        return self._inner.size

    def append(self, *buffers: bytes | memoryview) -> int:
        mode = self._plan.before("append", self._name)
        if mode == "~":
            joined = b"".join(buffers)
            self._inner.append(joined[: len(joined) // 2])
            die()
        position = self._inner.append(*buffers)
        if mode:
            die()
        return position

    def pread(self, size: int, position: int) -> bytes:
        return self._inner.pread(size, position)

    def pread_into(self, buffer: memoryview, position: int) -> int:
        return self._inner.pread_into(buffer, position)

    def is_cached(self, size: int, position: int) -> bool:
        return self._inner.is_cached(size, position)

    def pwrite(self, data: bytes | memoryview, position: int) -> None:
        mode = self._plan.before("pwrite", self._name)
        self._inner.pwrite(data[: len(data) // 2] if mode == "~" else data, position)
        if mode:
            die()

    def truncate(self, size: int) -> None:
        if size < self._inner.size:
            mode = self._plan.before("truncate", self._name)
            self._inner.truncate(size)
            if mode:
                die()

    def fsync(self) -> None:
        mode = self._plan.before("fsync", self._name)
        self._inner.fsync()
        if mode:
            die()

    def close(self) -> None:
        self._inner.close()


class CrashingDirectory:
    """An OsDirectory whose operations are points; subdirectories share its plan."""

    def __init__(self, inner: Directory, plan: CrashPlan) -> None:
        self._inner = inner
        self._plan = plan

    @property
    def path(self) -> str:
        return self._inner.path

    def open(self, name: str, *, create: bool = False) -> File:
        mode = ""
        if create and not self._inner.exists(name):
            mode = self._plan.before("create", name)
        file = self._inner.open(name, create=create)
        if mode:
            die()
        return CrashingFile(file, name, self._plan)

    def open_read_only(self, name: str) -> File:
        return self._inner.open_read_only(name)

    def exists(self, name: str) -> bool:
        return self._inner.exists(name)

    def is_directory(self, name: str) -> bool:
        return self._inner.is_directory(name)

    def size_of(self, name: str) -> int:
        return self._inner.size_of(name)

    def modified_ms(self, name: str) -> int:
        return self._inner.modified_ms(name)

    def list(self) -> list[str]:
        return self._inner.list()

    def subdirectory(self, name: str, *, create: bool = True) -> Directory:
        return CrashingDirectory(self._inner.subdirectory(name, create=create), self._plan)

    def remove(self, name: str) -> None:
        if self._inner.exists(name):
            mode = self._plan.before("remove", name)
            self._inner.remove(name)
            if mode:
                die()

    def remove_tree(self, name: str) -> None:
        mode = self._plan.before("remove", name)
        self._inner.remove_tree(name)
        if mode:
            die()

    def rename(self, old: str, new: str) -> None:
        mode = self._plan.before("rename", new)
        self._inner.rename(old, new)
        if mode:
            die()

    def write_atomic(self, name: str, data: bytes) -> None:
        write_atomic(self, name, data)

    def read(self, name: str) -> bytes:
        return self._inner.read(name)

    def fsync(self) -> None:
        mode = self._plan.before("fsync_dir", "")
        self._inner.fsync()
        if mode:
            die()

    def lock(self, name: str = ".lock") -> DirectoryLock:
        return self._inner.lock(name)

    def usage(self) -> DiskUsage:
        return self._inner.usage()


@dataclass(frozen=True, slots=True)
class Job:
    """One run of the work in a directory of its own."""

    path: Path
    crash_at: str | None = None
    arguments: dict[str, Any] | None = None


@dataclass(frozen=True, slots=True)
class JobResult:
    """Acknowledgements of the child, and whether it was killed."""

    job: Job
    acks: list[str]
    killed: bool
    points: list[str]


def run_jobs(work: str, jobs: Iterable[Job]) -> list[JobResult]:
    """Runs `module:function` once per job, each in a child of its own.

    Raises RuntimeError if a child ends otherwise than by itself or by its SIGKILL.
    """
    jobs = list(jobs)
    lines = "".join(
        json.dumps([str(job.path), job.crash_at, job.arguments or {}]) + "\n" for job in jobs
    )
    done = subprocess.run(
        [sys.executable, "-m", "tests.crash.harness", work],
        input=lines,
        capture_output=True,
        text=True,
        cwd=ROOT,
        timeout=240,
        check=False,
    )
    if done.returncode:
        raise RuntimeError(f"the crash helper failed:\n{done.stderr}")
    results = []
    for job, line in zip(jobs, done.stdout.splitlines(), strict=True):
        killed, points = json.loads(line)
        acks = _ack_path(job.path).read_text().splitlines()
        results.append(JobResult(job, acks, killed, points))
    return results


def points_of(work: str, job: Job) -> list[str]:
    """Returns every point that the work passes if nothing kills it, in order."""
    (result,) = run_jobs(work, [job])
    assert not result.killed
    return result.points


def _ack_path(path: Path) -> Path:
    return path.with_name(path.name + ".acks")


def _child(work: Callable[..., None], path: Path, crash_at: str | None, arguments: Any) -> None:
    acks = os.open(_ack_path(path), os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    points: list[str] = []
    plan = CrashPlan(crash_at, points)
    directory = CrashingDirectory(OsDirectory(path), plan)
    work(directory, lambda text: os.write(acks, f"{text}\n".encode()), **arguments)
    path.with_name(path.name + ".points").write_text("\n".join(points))


def _load() -> None:
    """Loads what logs import on first use, before the children are forked."""
    partition = TopicPartition("warm", 0)
    log = open_log(MemoryDirectory(), partition, TopicConfig(), now_ms=1)
    log.append_as_leader(encode_batch([Record(0, 1, b"key", b"value")]), 1, 1)


def _serve(name: str) -> None:
    """Runs the helper process: one forked child per line of standard input."""
    module, _, function = name.partition(":")
    work = getattr(importlib.import_module(module), function)
    _load()
    for line in sys.stdin:
        path, crash_at, arguments = json.loads(line)
        child = os.fork()
        if child == 0:
            try:
                _child(work, Path(path), crash_at, arguments)
                os._exit(0)
            except BaseException:
                import traceback

                traceback.print_exc()
                sys.stderr.flush()
                os._exit(1)
        _, status = os.waitpid(child, 0)
        killed = os.WIFSIGNALED(status) and os.WTERMSIG(status) == signal.SIGKILL
        if not killed and status != 0:
            sys.exit(f"the child for {line.strip()} ended with status {status}")
        points = Path(path + ".points")
        passed = points.read_text().splitlines() if points.exists() else []
        _ack_path(Path(path)).touch()
        print(json.dumps([killed, passed]), flush=True)


if __name__ == "__main__":
    _serve(sys.argv[1])
