"""Security of the source's and the sink's clients: options, a file, and what is told of them."""

from __future__ import annotations

import pickle
from pathlib import Path

import pytest
from pyspark.sql.types import BinaryType, StructField, StructType

from tidemark.errors import ConfigError
from tidemark.spark.jobs.reading import Source
from tidemark.spark.jobs.target import Target
from tidemark.spark.options import SourceOptions, parse_options
from tidemark.spark.security import as_options, security_of
from tidemark.spark.sink.options import SinkOptions, parse_sink_options
from tidemark.spark.tables import kept_in

SCRAM = {
    "security.protocol": "SASL_SSL",
    "sasl.mechanism": "SCRAM-SHA-512",
    "sasl.username": "ann",
    "sasl.password": "correct horse",
    "ssl.truststore.location": "/a/ca.pem,/b/ca.pem",
}


def read(**more: str) -> SourceOptions:
    named = {name.replace("__", "."): value for name, value in more.items()}
    return parse_options({"bootstrap.servers": "h:1", "subscribe": "t"} | named)


def write(**more: str) -> SinkOptions:
    named = {name.replace("__", "."): value for name, value in more.items()}
    return parse_sink_options({"bootstrap.servers": "h:1", "topic": "t"} | named, is_stream=False)


@pytest.mark.parametrize("parse", [read, write])
@pytest.mark.parametrize("prefix", ["", "kafka.", "KAFKA."])
def test_options_are_kafkas_with_and_without_its_prefix(parse: type, prefix: str) -> None:
    options = parse(**{prefix + name: value for name, value in SCRAM.items()})
    security = options.security
    assert security.security_protocol == "SASL_SSL"
    assert (security.sasl_username, security.sasl_password) == ("ann", "correct horse")
    assert security.ssl.ssl_truststore_location == ("/a/ca.pem", "/b/ca.pem")
    assert security_of(as_options(security)) == security, "as a job passes them on"
    assert pickle.loads(pickle.dumps(options)) == options
    for told in (repr(options), str(options), repr(parse(**SCRAM).security)):
        assert "correct horse" not in told


@pytest.mark.parametrize("parse", [read, write])
def test_without_options_a_client_connects_as_its_process_does(parse: type) -> None:
    assert parse().security is None
    assert parse(security__protocol="PLAINTEXT").security is not None


@pytest.mark.parametrize("parse", [read, write])
@pytest.mark.parametrize(
    ("given", "says"),
    [
        ({"security__protocol": "TLS"}, "is none of PLAINTEXT, SSL"),
        ({"security__protocol": "SASL_SSL"}, "needs sasl.mechanism"),
        ({"sasl__mechanism": "SCRAM-SHA-512"}, "needs security.protocol=SASL_SSL"),
        (
            {"security__protocol": "SASL_SSL", "sasl__mechanism": "SCRAM-SHA-512"},
            "needs sasl.username and sasl.password",
        ),
        ({"sasl__password": "pssst"}, "sasl.password without effect: security.protocol=SASL_SSL"),
        ({"ssl__key__password": "pssst"}, "ssl.key.password without effect: .*SSL or SASL_SSL"),
        ({"sasl__pasword": "pssst"}, "did you mean 'sasl.password'"),
        ({"kafka__sasl__jaas__config": "pssst"}, "sasl.jaas.config: give sasl.username and"),
        ({"ssl__truststore__type": "JKS"}, "certificates are PEM"),
        ({"sasl__password": "pssst", "kafka__sasl__password": "x"}, "differ: give one of them"),
        ({"commandConfig": "/no/such/file"}, "commandConfig: .*on the driver and where tasks run"),
    ],
)
def test_wrong_settings_are_told_at_once_and_without_their_values(
    parse: type, given: dict[str, str], says: str
) -> None:
    with pytest.raises(ConfigError, match=says) as raised:
        parse(**given)
    assert "pssst" not in str(raised.value)


def test_a_file_has_the_settings_that_no_plan_shows(tmp_path: Path) -> None:
    path = tmp_path / "client.properties"
    path.write_text("".join(f"{name}={value}\n" for name, value in SCRAM.items()))
    assert read(commandConfig=str(path)).security == read(**SCRAM).security
    assert read(kafka__commandconfig=str(path)).security == read(**SCRAM).security
    with pytest.raises(ConfigError, match=r"security.protocol: commandConfig has the settings"):
        read(commandConfig=str(path), security__protocol="SSL")
    path.write_text("sasl.mechanism=SCRAM-SHA-512\nsasl.password=pssst\n")
    with pytest.raises(ConfigError, match=r"commandConfig: sasl\.mechanism=") as raised:
        read(commandConfig=str(path))
    assert "pssst" not in str(raised.value)
    path.write_text("")
    assert as_options(read(commandConfig=str(path)).security) == {"security.protocol": "PLAINTEXT"}


def test_a_table_keeps_no_secret() -> None:
    schema = StructType([StructField("value", BinaryType())])
    with pytest.raises(ConfigError, match=r"kafka.sasl.password, ssl.keystore.key would be in"):
        kept_in(schema, {"kafka.sasl.password": "x", "ssl.keystore.key": "y", "subscribe": "t"})
    assert schema[0].metadata == {}
    assert kept_in(schema, {"commandConfig": "f", "sasl.username": "ann"})[0].metadata


def test_jobs_take_secrets_from_no_command_line_and_leave_none_in_a_journal() -> None:
    security = read(**SCRAM).security
    source = Source("h:1", ("t",), security=security)
    assert source.parsed().security == security
    target = Target("h:2", "t", security=security)
    assert target.source().parsed().security == security
    for told in (repr(source), repr(source.identity()), repr(target)):
        assert "correct horse" not in told
    for name in ("sasl.password", "kafka.SASL.password", "commandConfig"):
        with pytest.raises(ConfigError, match="in a file, by --command-config") as raised:
            Source("h:1", ("t",), options={name: "pssst"})
        assert "pssst" not in str(raised.value)
        with pytest.raises(ConfigError, match="--target-option"):
            Target("h:1", "t", {name: "pssst"})
