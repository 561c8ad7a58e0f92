"""`tidemark debug`: where a node stands, through its metrics listener on this host."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from tidemark.cli.output import print_line
from tidemark.errors import NetworkError

app = typer.Typer(help="Where a node stands, asked on its own host.", no_args_is_help=True)

_TIMEOUT_S = 20.0
_BUNDLED = ("metrics", "livez", "readyz", "startupz", "restartz", "debug/stacks", "debug/top")

At = Annotated[
    str, typer.Option("--at", help="The node's prometheus.listener, as host:port on this host.")
]


@app.callback()
def group() -> None:
    """Where a node stands, asked on its own host."""


@app.command("stacks")
def stacks(at: At = "127.0.0.1:9404") -> None:
    """Show the tasks and threads of a node with their places."""
    print_line(_asked(at, "debug/stacks").rstrip())


@app.command("top")
def top(at: At = "127.0.0.1:9404") -> None:
    """Show what the event loop of a node spends its time on, by samples of some seconds."""
    print_line(_asked(at, "debug/top").rstrip())


@app.command("bundle")
def bundle(
    output: Annotated[Path, typer.Argument(help="The .tar.gz to write.")], at: At = "127.0.0.1:9404"
) -> None:
    """Write metrics, probes, stacks and samples of a node into an archive, without settings."""
    import io
    import tarfile
    import time

    with tarfile.open(output, "w:gz") as archive:
        for path in _BUNDLED:
            data = _asked(at, path, probe=True).encode()
            entry = tarfile.TarInfo(f"{path.replace('/', '-')}.txt")
            entry.size, entry.mtime = len(data), int(time.time())
            archive.addfile(entry, io.BytesIO(data))
    print_line(f"wrote {output}")


def _asked(at: str, path: str, probe: bool = False) -> str:
    """The answer of a path; with `probe` also one that is not 200. Raises NetworkError."""
    import http.client

    host, _, port = at.rpartition(":")
    try:
        connection = http.client.HTTPConnection(host, int(port), timeout=_TIMEOUT_S)
        connection.request("GET", f"/{path}")
        answer = connection.getresponse()
        text = answer.read().decode()
        connection.close()
    except (OSError, ValueError, http.client.HTTPException) as error:
        raise NetworkError(
            f"no answer at {at} ({error}): --at names the node's prometheus.listener"
        ) from error
    if answer.status != 200 and not probe:
        raise NetworkError(f"{at} answers {answer.status}: {text.strip()}")
    return text
