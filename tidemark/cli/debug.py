"""`tidemark debug`: where a node stands, through its metrics listener on this host."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from tidemark.cli.output import print_line, reason_of
from tidemark.cli.session import Session, with_session
from tidemark.errors import NetworkError, TidemarkError

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
@with_session
def bundle(
    session: Session,
    output: Annotated[Path, typer.Argument(help="The .tar.gz to write.")],
    at: At = "127.0.0.1:9404",
) -> None:
    """Write the state of cluster and nodes, their settings without secrets, and their logs' ends.

    Metrics, probes and stacks are of the node at --at alone. manifest.json in the archive names
    what could not be had.
    """
    import time
    from functools import partial

    import tidemark
    from tidemark.cli.bundle import Bundle, add_cluster

    made, now_s = Bundle(), int(time.time())
    for path in _BUNDLED:
        name = f"{path.replace('/', '-')}.txt"
        made.add(name, partial(_asked, at, path, probe=True))
        if name in made.missing:
            break  # so do the others, each after its time limit
    try:
        with session.admin() as admin:
            add_cluster(made, admin)
    except TidemarkError as error:
        made.missing["cluster.json"] = reason_of(error)
    facts = {
        "created_s": now_s,
        "version": tidemark.__version__,
        "bootstrap_server": session.bootstrap,
        "at": at,
    }
    made.write(output, facts, now_s)
    lines = [f"missing: {name}: {reason}" for name, reason in sorted(made.missing.items())]
    value = {"file": str(output), "files": sorted(made.files), "missing": made.missing}
    session.tell(value, [*lines, f"wrote {output}, {len(made.files)} files"])


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
