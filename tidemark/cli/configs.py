"""`tidemark configs`: settings of topics, of brokers, and the default of all brokers (KIP-339)."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from tidemark.cli.output import Json, json_of, print_json, print_line, print_table
from tidemark.cli.session import Session, with_session
from tidemark.errors import ConfigError

if TYPE_CHECKING:
    from tidemark.client.models import AlterConfigOp, ConfigEntry, ConfigResource

app = typer.Typer(help="Settings of topics and brokers.", no_args_is_help=True)

# Sources of values set on the resource itself at run time, by the resource type's name. All others
# come from other resources, files and built-in defaults.
_OWN = {
    "topic": ("TOPIC_CONFIG",),
    "broker_logger": ("DYNAMIC_BROKER_LOGGER_CONFIG",),
    "broker": ("DYNAMIC_BROKER_CONFIG", "DYNAMIC_DEFAULT_BROKER_CONFIG"),
}

TopicNames = Annotated[list[str] | None, typer.Option("--topic", help="A topic; repeatable.")]
BrokerIds = Annotated[list[int] | None, typer.Option("--broker", help="A broker; repeatable.")]
BrokerDefault = Annotated[
    bool, typer.Option("--broker-defaults", help="The default of all brokers.")
]


Loggers = Annotated[
    list[int] | None,
    typer.Option("--broker-logger", help="The log levels of a node by its id; repeatable."),
]


@app.command("check")
def check(
    config: Annotated[
        list[Path], typer.Option("--config", "-c", help="A server.properties; repeatable.")
    ],
    as_json: Json = False,
) -> None:
    """Check settings of nodes as their start would, without a cluster; the first that is wrong is
    told with its line.
    """
    from tidemark.config import load_server_config

    nodes = [load_server_config(file).node_id for file in config]
    if as_json:
        print_json({"valid": [str(file) for file in config]})
    else:
        for file, node in zip(config, nodes, strict=True):
            print_line(f"{file}: the settings of node {node} are valid")


@app.command("describe")
@with_session
def describe(
    session: Session,
    names: Annotated[list[str] | None, typer.Argument(metavar="[SETTING]...")] = None,
    topic: TopicNames = None,
    broker: BrokerIds = None,
    broker_defaults: BrokerDefault = False,
    broker_logger: Loggers = None,
    all_: Annotated[
        bool,
        typer.Option("--all", help="Settings nobody changed as well, with where they are from."),
    ] = False,
    documentation: Annotated[
        bool, typer.Option("--documentation", help="What each setting means.")
    ] = False,
) -> None:
    """Show settings: what was set for a resource, or (--all, or named ones) what is in effect."""

    resources = resources_of(topic, broker, broker_defaults, broker_logger)
    everything = all_ or bool(names)
    with session.admin() as admin:
        found = admin.describe_configs(
            resources, names or (), include_synonyms=True, include_documentation=documentation
        )
    shown = {
        resource: [
            entry
            for _, entry in sorted(entries.items())
            if everything or entry.source in _OWN[resource.kind]
        ]
        for resource, entries in found.items()
    }
    if session.as_json:
        print_json([{**_title(resource), "configs": json_of(e)} for resource, e in shown.items()])
        return
    for resource, entries in shown.items():
        print_line(f"{title_of(resource)}:" + ("" if entries else " nothing is set"))
        if entries:
            print_table(*_table(entries, documentation))


@app.command("alter")
@with_session
def alter(
    session: Session,
    topic: TopicNames = None,
    broker: BrokerIds = None,
    broker_defaults: BrokerDefault = False,
    broker_logger: Loggers = None,
    set_: Annotated[list[str] | None, typer.Option("--set", help="key=value; repeatable.")] = None,
    delete: Annotated[
        list[str] | None, typer.Option(help="A key: back to the default; repeatable.")
    ] = None,
    append: Annotated[
        list[str] | None, typer.Option(help="key=item,item added to a list; repeatable.")
    ] = None,
    subtract: Annotated[
        list[str] | None, typer.Option(help="key=item,item taken out of a list; repeatable.")
    ] = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Only check whether it would be accepted.")
    ] = False,
) -> None:
    """Change settings one by one; those of a resource change together or not at all."""

    resources = resources_of(topic, broker, broker_defaults, broker_logger)
    ops = operations_of(set_ or (), delete or (), append or (), subtract or ())
    with session.admin() as admin:
        admin.incremental_alter_configs(dict.fromkeys(resources, ops), validate_only=dry_run)
    if session.as_json:
        print_json({"dry_run": dry_run, "altered": [_title(resource) for resource in resources]})
        return
    verb = "would alter" if dry_run else "altered"
    for resource in resources:
        print_line(f"{verb} {title_of(resource)}: {', '.join(map(_text, ops))}")


def resources_of(
    topics: list[str] | None,
    brokers: list[int] | None,
    broker_defaults: bool,
    loggers: list[int] | None = None,
) -> list[ConfigResource]:
    """The resources that the options name. Raises ConfigError for none."""
    from tidemark.client.models import ConfigResource

    found = [ConfigResource.topic(name) for name in topics or ()]
    found += [ConfigResource.broker(broker_id) for broker_id in brokers or ()]
    found += [ConfigResource.broker_logger(node_id) for node_id in loggers or ()]
    if broker_defaults:
        found.append(ConfigResource.broker(None))
    if not found:
        raise ConfigError(
            "say whose settings: --topic NAME, --broker ID, --broker-defaults or --broker-logger ID"
        )
    return list(dict.fromkeys(found))


def operations_of(
    sets: list[str] | tuple[str, ...],
    deletes: list[str] | tuple[str, ...],
    appends: list[str] | tuple[str, ...],
    subtracts: list[str] | tuple[str, ...],
) -> list[AlterConfigOp]:
    """The changes that the options name. Raises ConfigError for none, or a key named twice."""
    from tidemark.client.models import AlterConfigOp

    ops: list[AlterConfigOp] = []
    for option, texts in (("set", sets), ("append", appends), ("subtract", subtracts)):
        for text in texts:
            key, equals, value = text.partition("=")
            if not equals or not key.strip():
                raise ConfigError(f"--{option} {text!r} is not key=value")
            ops.append(AlterConfigOp(key.strip(), value.strip(), option.upper()))
    for key in deletes:
        if "=" in key:
            raise ConfigError(f"--delete {key!r} is not a key alone")
        ops.append(AlterConfigOp(key.strip(), None, "DELETE"))
    if not ops:
        raise ConfigError("say what to change: --set, --delete, --append or --subtract")
    keys = [op.name for op in ops]
    twice = sorted({key for key in keys if keys.count(key) > 1})
    if twice:
        raise ConfigError(f"{', '.join(twice)}: named more than once")
    return ops


def title_of(resource: ConfigResource) -> str:
    """`topic flights`, `broker 4`, or `all brokers`."""
    from tidemark.client.models import ConfigResourceType

    if resource.type is ConfigResourceType.TOPIC:
        return f"topic {resource.name}"
    if resource.type is ConfigResourceType.BROKER_LOGGER:
        return f"loggers of node {resource.name}"
    return f"broker {resource.name}" if resource.name else "all brokers"


def _title(resource: ConfigResource) -> dict[str, str]:
    return {"type": resource.kind, "name": resource.name}


def _text(op: AlterConfigOp) -> str:
    sign = {"SET": "=", "APPEND": "+=", "SUBTRACT": "-="}
    return f"{op.name} removed" if op.op == "DELETE" else f"{op.name}{sign[op.op]}{op.value}"


def _table(
    entries: list[ConfigEntry], documentation: bool
) -> tuple[list[str], list[list[str | None]]]:
    columns = ["SETTING", "VALUE", "FROM", "READ ONLY", "OTHERWISE"]
    rows: list[list[str | None]] = []
    for entry in entries:
        others = [f"{s.value} ({_source(s.source)})" for s in entry.synonyms[1:]]
        row: list[str | None] = [entry.name, entry.value, _source(entry.source)]
        row += ["yes" if entry.read_only else "no", "; ".join(others) or "-"]
        rows.append(row + [entry.documentation] * documentation)
    return columns + ["MEANING"] * documentation, rows


def _source(source: str) -> str:
    """`TOPIC_CONFIG` as `topic`, `DYNAMIC_DEFAULT_BROKER_CONFIG` as `dynamic default broker`."""
    return source.removesuffix("_CONFIG").replace("_", " ").lower()
