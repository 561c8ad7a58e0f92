"""The options of SQL tables: `CREATE TABLE ... USING tidemark OPTIONS (...)`.

Spark tells a Python data source the options of a table when it is made, and never again. A query's
source has only the options of its WITH, and so has the sink of an INSERT. Spark keeps the schema,
though, and gives its metadata to both: the options are in that of the first column. Everybody who
may see the table sees them, so none may be a secret.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from tidemark.errors import ConfigError
from tidemark.spark.options import parse_options
from tidemark.spark.security import FILE_OPTION, is_security, secrets_in

if TYPE_CHECKING:
    from pyspark.sql.types import StructType

_KEY = "tidemark.options"
_PREFIX = "option."


def plain_options(options: Mapping[str, str]) -> Mapping[str, str]:
    """The options as they were given: a table that is being made has them after `option.`."""
    if not is_table(options):
        return options
    return {
        key[len(_PREFIX) :]: value
        for key, value in options.items()
        if key.lower().startswith(_PREFIX)
    }


def is_table(options: Mapping[str, str]) -> bool:
    """Whether these are the properties of a table, and not the options of a read."""
    return any(key.lower() == "provider" for key in options)


def kept_in(schema: StructType, options: Mapping[str, str]) -> StructType:
    """The schema of a table, with its options. Raises ConfigError for a secret among them."""
    secrets = secrets_in(options)
    if secrets:
        raise ConfigError(
            f"{', '.join(secrets)} would be in the catalog for all to see: name a file of client"
            f" settings by {FILE_OPTION}, or give it in WITH of a query"
        )
    schema[0].metadata = {_KEY: dict(options)}
    return schema


def options_of(options: Mapping[str, str], schema: StructType) -> Mapping[str, str]:
    """The options of a read: those of its table, if it has one, under those of the query."""
    kept = schema[0].metadata.get(_KEY, {}) if len(schema) else {}
    return {**kept, **plain_options(options)}


def sink_options_of(options: Mapping[str, str], schema: StructType) -> Mapping[str, str]:
    """The options of a write: where it names no servers, as an INSERT does, those of its table.

    A table of one topic is written there, one of several takes the column topic. Rows that were
    read from a table have its options as well, and may be written elsewhere.
    """
    given = plain_options(options)
    kept = schema[0].metadata.get(_KEY, {}) if len(schema) else {}
    named = {key.lower().removeprefix("kafka.") for key in given}
    if not kept or "bootstrap.servers" in named:
        return given
    parsed = parse_options(kept)
    found = {key: value for key, value in kept.items() if is_security(key)}
    found["bootstrap.servers"] = parsed.bootstrap_servers
    topics = {*parsed.topics, *(tp.topic for tp in parsed.partitions)}
    if len(topics) == 1 and "topic" not in named:
        found["topic"] = topics.pop()
    return {**found, **given}
