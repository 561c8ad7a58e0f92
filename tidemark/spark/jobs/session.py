"""The Spark session of a job, and `spark-submit` for a cluster's master.

With a local master the session runs within the command. For any other, the same command runs once
more beneath spark-submit, which knows how to reach each kind of master.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tidemark.errors import ConfigError, TidemarkError

_SUBMITTED = "TIDEMARK_SPARK_SUBMITTED"
_PROGRAM = f"""import os

os.environ["{_SUBMITTED}"] = "1"

from tidemark.cli.main import run

run()
"""


_FRAMES = (
    "at ",
    "... ",
    "JVM stacktrace:",
    "Traceback (",
    'File "',
    "An error occurred while calling",
)
_OF_TIDEMARK = re.compile(r"\btidemark(?:\.\w+)+: .*")


class SparkFailedError(TidemarkError):
    """Spark, or the file system of a job, refused; the message has its reason."""


@contextmanager
def in_one_line() -> Iterator[None]:
    """Within it, errors of Spark and of the JVM are SparkFailedError.

    Raises ConfigError if pyspark is missing.
    """
    pyspark_module()
    from py4j.protocol import Py4JError  # type: ignore[import-untyped]
    from pyspark.errors import PySparkException

    try:
        yield
    except (Py4JError, PySparkException) as error:
        raise SparkFailedError(message_of(str(error))) from error


def message_of(text: str) -> str:
    """The line of an error of Spark that tells most: Tidemark's own, or the first of no frame."""
    lines = [line.strip().removeprefix(": ") for line in text.splitlines()]
    own = [found[0] for found in map(_OF_TIDEMARK.search, lines) if found is not None]
    told = [line for line in lines if line and not line.startswith(_FRAMES)]
    return next(iter([*own, *told]), "Spark failed, and does not say why")


def needs_submit(master: str) -> bool:
    """Whether this process has to hand the job to spark-submit."""
    return not master.startswith("local") and os.environ.get(_SUBMITTED) != "1"


def submit(master: str, settings: Mapping[str, str], arguments: Sequence[str]) -> int:
    """Runs `tidemark ARGUMENTS` as a driver of `master`; returns the exit status.

    Raises ConfigError if pyspark is missing.
    """
    command = submit_command(master, settings)
    with tempfile.TemporaryDirectory(prefix="tidemark-job-") as directory:
        program = Path(directory) / "tidemark_job.py"
        program.write_text(_PROGRAM)
        environment = {
            "PYSPARK_PYTHON": sys.executable,
            "PYSPARK_DRIVER_PYTHON": sys.executable,
        } | os.environ
        done = subprocess.run([*command, str(program), *arguments], env=environment, check=False)
    return done.returncode


def submit_command(master: str, settings: Mapping[str, str]) -> list[str]:
    """The start of the command line.

    Raises ConfigError if pyspark is missing, and for a driver that would run elsewhere.
    """
    if settings.get("spark.submit.deployMode", "client") != "client":
        raise ConfigError(
            "spark.submit.deployMode: the driver of a job runs here, because its exit status and "
            "its result are those of the command; leave it client"
        )
    home = os.environ.get("SPARK_HOME") or str(Path(pyspark_module().__file__).parent)
    command = [str(Path(home) / "bin" / "spark-submit"), "--master", master]
    command += ["--deploy-mode", "client"]
    for key, value in settings.items():
        command += ["--conf", f"{key}={value}"]
    return command


def pyspark_module() -> Any:
    """The module. Raises ConfigError if it is not installed."""
    try:
        import pyspark
    except ModuleNotFoundError:
        raise ConfigError("jobs need PySpark: pip install 'tidemark[spark]'") from None
    return pyspark


@contextmanager
def session(name: str, master: str, settings: Mapping[str, str]) -> Iterator[Any]:
    """A session that ends with the block. One that the process already has is used, and stays.

    Spark's own log is off: what fails comes as an error.
    """
    pyspark_module()
    from pyspark.sql import SparkSession

    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    existing = SparkSession.getActiveSession()
    if existing is not None:
        yield existing
        return
    builder = SparkSession.builder.appName(name).config("spark.ui.showConsoleProgress", "false")
    builder = builder.config("spark.sql.session.timeZone", "UTC")
    if master.startswith("local"):
        os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
        builder = builder.master(master).config("spark.ui.enabled", "false")
        builder = builder.config("spark.sql.shuffle.partitions", "4")
    for key, value in settings.items():
        builder = builder.config(key, value)
    made = builder.getOrCreate()
    made.sparkContext.setLogLevel("OFF")
    try:
        yield made
    finally:
        made.stop()
