"""`tidemark server`: one node in the foreground."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from tidemark.cli.output import Json, print_json

_PR_SET_PDEATHSIG = 1


def server(
    config: Annotated[Path, typer.Option("--config", "-c", help="The node's server.properties.")],
    log_level: Annotated[
        str, typer.Option("--log-level", help="debug, info, warning or error.")
    ] = "info",
    die_with_parent: Annotated[
        bool, typer.Option("--die-with-parent", hidden=True, help="SIGKILL when the parent ends.")
    ] = False,
    as_json: Json = False,
) -> None:
    """Run a node (controller, broker or both) until SIGTERM or Ctrl-C."""
    import logging

    from tidemark import logs
    from tidemark.config import load_server_config
    from tidemark.errors import ConfigError

    if die_with_parent:
        _die_with_parent()
    level = logging.getLevelNamesMapping().get(log_level.upper())
    if level is None:
        raise ConfigError(f"--log-level {log_level!r} is none of debug, info, warning, error")
    settings = load_server_config(config)
    logs.setup(level, settings.observation.log_format, settings.node_id)
    if as_json:
        print_json({"node_id": settings.node_id, "listeners": list(settings.listeners)})
    from node.runtime.process import tune_process

    tune_process()
    from node.server import run

    status = run(settings)
    if status:
        raise typer.Exit(status)


def _die_with_parent() -> None:
    """Makes the kernel end this process with its parent (Linux's PR_SET_PDEATHSIG).

    A cluster started for a test leaves nothing behind, even if the test is killed.
    """
    import ctypes
    import os
    import signal
    import sys

    if sys.platform != "linux":
        return
    ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() == 1:  # the parent ended before the call
        raise typer.Exit(1)
