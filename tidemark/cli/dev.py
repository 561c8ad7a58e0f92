"""`tidemark dev`: a local cluster to play with, which ends with Ctrl-C."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from tidemark.cli.output import Json, print_json, print_line, settings_of

_FIRST_BROKER_PORT = 9092
_FIRST_CONTROLLER_PORT = 9192
_CONSOLE_PORT = 9088
_LOOK_S = 0.5
_READY_S = 300.0  # each broker of the first start in an installation compiles the record kernels


def dev(
    controllers: Annotated[int, typer.Option(help="How many controllers.", min=1)] = 1,
    brokers: Annotated[int, typer.Option(help="How many brokers.", min=1)] = 1,
    racks: Annotated[str, typer.Option(help="Racks, round the brokers.")] = "a,b,c",
    data_dir: Annotated[
        Path | None, typer.Option(help="Kept if given; else a temporary directory.")
    ] = None,
    tier_dir: Annotated[
        Path | None, typer.Option(help="A directory as the remote tier; none: no tiering.")
    ] = None,
    config: Annotated[
        list[str] | None, typer.Option(help="key=value, a setting of every node; repeatable.")
    ] = None,
    restart: Annotated[
        bool, typer.Option(help="Start a node again that ended, three times a minute at most.")
    ] = True,
    console: Annotated[
        bool, typer.Option("--console", help="Serve the web console by the first broker.")
    ] = False,
    as_json: Json = False,
) -> None:
    """Run a local cluster; the first broker answers on port 9092 if that is free."""
    import contextlib
    import tempfile
    import time

    from tidemark.cli.dev_watch import Watch
    from tidemark.cli.local_cluster import LocalCluster

    overrides = {"replica.selector.class": "RackAwareReplicaSelector"} if racks else {}
    overrides |= settings_of(config or [])
    if tier_dir is not None:
        overrides = tier_settings(tier_dir) | overrides
    listener = f"127.0.0.1:{choose_console_port()}" if console else None
    with contextlib.ExitStack() as stack:
        if data_dir is None:
            data_dir = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="tidemark-")))
        cluster = LocalCluster(
            data_dir,
            controllers=controllers,
            brokers=brokers,
            racks=tuple(rack for rack in racks.split(",") if rack),
            overrides=overrides,
            node_overrides={controllers + 1: {"console.listener": listener}} if listener else None,
            ports=choose_ports(controllers, brokers),
            cluster_id=existing_cluster_id(data_dir),
        )
        _interrupt_on_signals()
        with cluster:
            cluster.wait_ready(_READY_S)
            servers = (cluster.bootstrap_servers, cluster.controller_servers)
            _say(servers, data_dir, listener and f"http://{listener}", as_json)
            again = cluster.restart if restart else None
            watch = Watch(cluster.nodes, _tell, again, time.monotonic)
            with contextlib.suppress(SystemExit):
                while True:
                    time.sleep(_LOOK_S)
                    watch.look()


def _tell(text: str) -> None:
    typer.echo(text, err=True)


def _interrupt_on_signals() -> None:
    """Makes SIGTERM end the cluster as Ctrl-C does, also while it starts.

    Not by KeyboardInterrupt: one that is raised amid an import can end the process by SIGINT,
    although it is caught. One start of eight that was interrupted ended so.
    """
    import signal

    def interrupt(*_: object) -> None:
        raise SystemExit(130)

    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, interrupt)


def tier_settings(directory: Path) -> dict[str, str]:
    """A plain directory as the remote tier of every broker."""
    return {
        "remote.log.storage.system.enable": "true",
        "remote.log.storage.manager.class.name": "directory",
        "rsm.config.dir": str(directory.resolve()),
    }


def choose_ports(controllers: int, brokers: int) -> list[int]:
    """Ports of the controllers, then of the brokers: from 9192 and 9092 on if they are free."""
    from tidemark.cli.local_cluster import free_ports, is_free

    wanted = [_FIRST_CONTROLLER_PORT + number for number in range(controllers)]
    wanted += [_FIRST_BROKER_PORT + number for number in range(brokers)]
    return wanted if all(map(is_free, wanted)) else free_ports(controllers + brokers)


def choose_console_port() -> int:
    """9088 if it is free."""
    from tidemark.cli.local_cluster import free_ports, is_free

    return _CONSOLE_PORT if is_free(_CONSOLE_PORT) else free_ports(1)[0]


def existing_cluster_id(data_dir: Path) -> str | None:
    """The cluster id of data from an earlier run; a node may join no other cluster."""
    from tidemark.config.properties import parse_properties

    for path in sorted(data_dir.glob("*/meta.properties")):
        return parse_properties(path.read_text(encoding="utf-8"), source=str(path))["cluster.id"]
    return None


def _say(servers: tuple[str, str], data_dir: Path, console: str | None, as_json: bool) -> None:
    import sys

    bootstrap, controllers = servers
    if as_json:
        print_json(
            {
                "bootstrap_servers": bootstrap,
                "controller_servers": controllers,
                "data_dir": str(data_dir),
                "output_dir": str(data_dir / "output"),
                "console": console,
            }
        )
    else:
        first = bootstrap.split(",")[0]
        print_line(f"brokers:     {bootstrap}")
        print_line(f"controllers: {controllers}")
        print_line(f"data:        {data_dir}")
        print_line(f"output:      {data_dir / 'output'}, a file of each node")
        if console is not None:
            print_line(f"console:     {console}")
        print_line("try, in another terminal:")
        print_line(f"  tidemark topics create events --partitions 3 --bootstrap-server {first}")
        print_line(f"  echo hello | tidemark produce events --bootstrap-server {first}")
        print_line(f"  tidemark consume events --from-beginning --bootstrap-server {first}")
        print_line("Ctrl-C stops the cluster")
    sys.stdout.flush()
