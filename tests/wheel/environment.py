"""Fresh environments for the wheel, in which the checkout is not importable.

An environment holds the wheel, installed by pip, and links to the distributions that a set of
requirements brings, directly or indirectly. The links lead into the environment that runs the
tests, so nothing is downloaded. A module that no declared requirement brings is missing, as it is
for a user.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import sys
import venv
from collections.abc import Iterable, Iterator
from importlib.metadata import Distribution, distribution
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).resolve().parents[2]
PYTHON = f"python{sys.version_info.major}.{sys.version_info.minor}"


class Environment:
    """A virtual environment in `directory`, and a directory in which its programs run."""

    def __init__(self, directory: Path, wheel: Path, distributions: Iterable[Distribution]) -> None:
        self.directory = directory
        self.python = directory / "bin" / "python"
        self.packages = directory / "lib" / PYTHON / "site-packages"
        self.run_directory = directory / "run"
        venv.create(directory, symlinks=True)
        self.run_directory.mkdir()
        for name in ("node", "quorum", "snapshot"):  # foreign modules, in the current directory
            (self.run_directory / f"{name}.py").write_text("raise ImportError(__file__)\n")
        _pip("--python", str(self.python), "install", "--no-deps", "--no-index", str(wheel))
        for each in distributions:
            _link(each, self.packages)
        _take_kernels_along(self.packages)

    def run(
        self, *command: str, stdin: str = "", timeout_s: float = 240
    ) -> subprocess.CompletedProcess[str]:
        """Runs a program of this environment to its end."""
        return subprocess.run(
            [str(self.directory / "bin" / command[0]), *command[1:]],
            input=stdin,
            env=self.variables,
            cwd=self.run_directory,
            capture_output=True,
            text=True,
            timeout=timeout_s,
        )

    def output(self, *command: str, stdin: str = "") -> str:
        """Standard output of a program that must succeed."""
        done = self.run(*command, stdin=stdin)
        assert done.returncode == 0, (command, done.stdout, done.stderr)
        return done.stdout

    @contextlib.contextmanager
    def first_line(self, *command: str) -> Iterator[str]:
        """Starts a program and yields the first line of its output; ends it with Ctrl-C."""
        with subprocess.Popen(
            [str(self.directory / "bin" / command[0]), *command[1:]],
            env=self.variables,
            cwd=self.run_directory,
            stdout=subprocess.PIPE,
            text=True,
        ) as process:
            assert process.stdout is not None
            try:
                yield process.stdout.readline()
            finally:
                process.send_signal(signal.SIGINT)
                process.wait(30)

    @property
    def variables(self) -> dict[str, str]:
        """The variables of an activated environment, without any of Python's own."""
        kept = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
        kept["PATH"] = f"{self.directory / 'bin'}{os.pathsep}{kept['PATH']}"
        return kept | {"PYSPARK_PYTHON": str(self.python), "SPARK_LOCAL_IP": "127.0.0.1"}


def build_wheel(directory: Path) -> Path:
    """Builds the wheel from the files that the Dockerfile's first stage copies: both need the
    same.
    """
    source = directory / "source"
    source.mkdir()
    _, build_stage, *_ = (ROOT / "Dockerfile").read_text(encoding="utf-8").split("\nFROM ")
    for line in build_stage.splitlines():
        if line.startswith("COPY "):
            *names, target = line.split()[1:]
            for name in names:
                _copy(ROOT / name, source / target / ("" if target == name else name))
    _pip("wheel", "--no-deps", "--no-build-isolation", "--wheel-dir", str(directory), str(source))
    (wheel,) = directory.glob("*.whl")
    return wheel


def _copy(origin: Path, target: Path) -> None:
    if origin.is_dir():
        shutil.copytree(origin, target, ignore=shutil.ignore_patterns("__pycache__"))
    else:
        shutil.copy2(origin, target)


def needed(*requirements: str) -> dict[str, Distribution]:
    """Installed distributions that these requirements bring, by normalised name; without
    tidemark.
    """
    found: dict[str, Distribution] = {}
    waiting = [(Requirement(text), frozenset[str]()) for text in requirements]
    seen = set()
    while waiting:
        requirement, under = waiting.pop()
        contexts: list[dict[str, str]] = [{"extra": extra} for extra in (under or {""})]
        if requirement.marker and not any(map(requirement.marker.evaluate, contexts)):
            continue
        name = canonicalize_name(requirement.name)
        asked = frozenset(requirement.extras)
        if (name, asked) in seen:
            continue
        seen.add((name, asked))
        owner = distribution(requirement.name)
        if name != "tidemark":
            found[name] = owner
        waiting += [(Requirement(text), asked) for text in owner.requires or ()]
    return found


def _link(owner: Distribution, packages: Path) -> None:
    """Links the top-level entries of an installed distribution."""
    for name in sorted({file.parts[0] for file in owner.files or ()} - {"..", "__pycache__"}):
        origin, link = Path(str(owner.locate_file(name))), packages / name
        if origin.suffix == ".pth" or link.is_symlink():  # namespaces are shared: google, grpc
            continue
        link.symlink_to(origin)


def _take_kernels_along(packages: Path) -> None:
    """Copies compiled kernels, with the times by which numba recognises their sources.

    Compiling them takes 20 s of a core; tests of the kernels cover it.
    """
    for source in sorted((ROOT / "tidemark" / "records").rglob("*.py")):
        shutil.copystat(source, packages / source.relative_to(ROOT))
    for compiled in sorted((ROOT / "tidemark" / "records").rglob("*.nb[ic]")):
        target = packages / compiled.relative_to(ROOT)
        target.parent.mkdir(exist_ok=True)
        shutil.copy2(compiled, target)


def _pip(*arguments: str) -> None:
    options = ["--quiet", "--disable-pip-version-check", "--no-input"]
    done = subprocess.run(
        [sys.executable, "-m", "pip", *options, *arguments],
        cwd=ROOT.anchor,
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stdout + done.stderr
