"""The command `tidemark`: its groups, and its errors.

A failure is one line on stderr, with the name that Kafka has for an error of the cluster; `--debug`
shows the traceback. The exit status is 1, or 2 for wrong usage, or 130 for Ctrl-C. Heavy imports
happen inside the commands.
"""

from __future__ import annotations

import sys
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from tidemark.cli import (
    brokers,
    cluster,
    completion,
    configs,
    consume,
    delete_records,
    dev,
    dump_log,
    elect_leaders,
    features,
    get_offsets,
    groups,
    log_dirs,
    metadata,
    perf,
    produce,
    quorum,
    quotas,
    reassign,
    server,
    spark,
    storage,
    tier,
    topics,
    transactions,
    verify,
)
from tidemark.errors import ApiError, TidemarkError

# Modules of the extra `server`; commands that run a node, or read its files, need them.
_OF_A_NODE = {"grpc_health", "grpc_health.v1", "grpc_reflection", "immutables", "minio"}


class _Group(TyperGroup):
    """Turns Tidemark's errors into a line and an exit status; any other error is a bug and
    shows.
    """

    def invoke(self, ctx: Any) -> Any:
        try:
            return super().invoke(ctx)
        except TidemarkError as error:
            if ctx.params.get("debug"):
                raise
            kind = f" ({error.code.name})" if isinstance(error, ApiError) else ""
            typer.echo(f"tidemark: {' '.join(str(error).split())}{kind}", err=True)
            raise typer.Exit(1) from None
        except ModuleNotFoundError as error:
            if error.name not in _OF_A_NODE or ctx.params.get("debug"):
                raise
            typer.echo(
                f"tidemark: this command needs {error.name!r}, which is not installed: "
                "pip install 'tidemark[server]'",
                err=True,
            )
            raise typer.Exit(1) from None
        except BrokenPipeError:
            # The reader has closed the pipe (`| head`).
            sys.stderr.close()
            raise typer.Exit(0) from None
        except KeyboardInterrupt:
            raise typer.Exit(130) from None


app = typer.Typer(
    name="tidemark",
    cls=_Group,
    help="A partitioned, replicated log in the manner of Apache Kafka.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
)


def _version(is_asked: bool) -> None:
    if is_asked:
        from importlib.metadata import version

        typer.echo(f"tidemark {version('tidemark')}")
        raise typer.Exit


@app.callback()
def options(
    version: Annotated[
        bool,
        typer.Option("--version", callback=_version, is_eager=True, help="Show the version."),
    ] = False,
    debug: Annotated[
        bool, typer.Option("--debug", help="Show a traceback when a command fails.")
    ] = False,
) -> None:
    """A partitioned, replicated log in the manner of Apache Kafka."""


app.add_typer(storage.app, name="storage")
app.add_typer(topics.app, name="topics")
app.add_typer(quorum.app, name="quorum")
app.add_typer(log_dirs.app, name="log-dirs")
app.add_typer(metadata.app, name="metadata")
app.add_typer(cluster.app, name="cluster")
app.add_typer(brokers.app, name="brokers")
app.add_typer(configs.app, name="configs")
app.add_typer(reassign.app, name="reassign")
app.add_typer(features.app, name="features")
app.add_typer(quotas.app, name="quotas")
app.add_typer(groups.app, name="groups")
app.add_typer(transactions.app, name="transactions")
app.add_typer(perf.app, name="perf")
app.add_typer(tier.app, name="tier")
app.add_typer(spark.app, name="spark")
app.command("elect-leaders")(elect_leaders.elect_leaders)
app.command("server")(server.server)
app.command("dev")(dev.dev)
app.command("produce")(produce.produce)
app.command("consume")(consume.consume)
app.command("get-offsets")(get_offsets.get_offsets)
app.command("delete-records")(delete_records.delete_records)
app.command("dump-log")(dump_log.dump_log)
app.command("verify")(verify.verify)
app.command("completion")(completion.completion)


def run() -> None:
    """Entry point of the `tidemark` command."""
    app(prog_name="tidemark")


if __name__ == "__main__":
    run()
