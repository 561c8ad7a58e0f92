"""A secured cluster as processes: certificates between nodes, logins and ACLs for users.

One cluster for all stories: node 1 is controller and broker, node 2 a broker. Nodes meet by mTLS.
USERS takes SCRAM logins and JWTs over TLS, CERTS takes certificates of users.
"""

from __future__ import annotations

import base64
import json
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import grpc
import jwt
import pytest
import trustme
from cryptography.hazmat.primitives.asymmetric import ec

from tidemark.cli.local_cluster import free_ports
from tidemark.client import Admin, Consumer, Producer
from tidemark.client.models import NewTopic
from tidemark.errors import (
    ApiError,
    ClusterAuthorizationFailedError,
    NetworkError,
    SaslAuthenticationError,
    TopicAuthorizationFailedError,
)
from tidemark.security import acls
from tidemark.security.acls import AclBinding
from tidemark.types import TopicPartition
from tidemark.v1 import log_pb2, log_pb2_grpc, raft_pb2, raft_pb2_grpc

COMMAND = (sys.executable, "-m", "tidemark.cli.main")
BRIEF = {"request_timeout_ms": 10_000, "default_api_timeout_ms": 15_000}
SECONDS = 60


class Secured:
    """The cluster, its authority, and the settings of its users."""

    def __init__(self, directory: Path, *settings: str) -> None:
        """`settings` are further lines of the nodes' files."""
        self.directory, self._more = directory, settings
        self._authority = trustme.CA()
        self.ca = directory / "ca.pem"
        self._authority.cert_pem.write_to_path(str(self.ca))
        self.ports = free_ports(7)
        self._key = ec.generate_private_key(ec.SECP256R1())
        self._processes: dict[int, subprocess.Popen[bytes]] = {}
        self._write_jwks()
        for node_id in (1, 2):
            self.certificate(f"node-{node_id}", "127.0.0.1")

    def certificate(self, name: str, host: str = "nobody.example") -> Path:
        path = self.directory / f"{name}.pem"
        issued = self._authority.issue_cert(host, common_name=name)
        issued.private_key_and_cert_chain_pem.write_to_path(str(path))
        return path

    def _write_jwks(self) -> None:
        numbers = self._key.public_key().public_numbers()
        x, y = (
            base64.urlsafe_b64encode(n.to_bytes(32, "big")).rstrip(b"=").decode()
            for n in (numbers.x, numbers.y)
        )
        key = {"kty": "EC", "crv": "P-256", "kid": "k1", "use": "sig", "x": x, "y": y}
        (self.directory / "jwks.json").write_text(json.dumps({"keys": [key]}), encoding="utf-8")

    def token(self, user: str, **claims: Any) -> str:
        content = {"sub": user, "exp": int(time.time()) + 600, "aud": "tidemark", **claims}
        return jwt.encode(content, self._key, algorithm="ES256", headers={"kid": "k1"})

    def _settings(self, node_id: int) -> str:
        controller, *own = self.ports[0], *self.ports[3 * node_id - 2 : 3 * node_id + 1]
        names = dict(zip(("INTERNAL", "USERS", "CERTS"), own, strict=True))
        listeners = [f"{name}://127.0.0.1:{port}" for name, port in names.items()]
        if node_id == 1:
            listeners.append(f"CONTROLLER://127.0.0.1:{controller}")
        lines = [
            f"process.roles={'controller,broker' if node_id == 1 else 'broker'}",
            f"node.id={node_id}",
            f"listeners={','.join(listeners)}",
            "controller.listener.names=CONTROLLER",
            "inter.broker.listener.name=INTERNAL",
            "listener.security.protocol.map=CONTROLLER:SSL,INTERNAL:SSL,USERS:SASL_SSL,CERTS:SSL",
            f"controller.quorum.voters=1@127.0.0.1:{controller}",
            f"log.dirs={self.directory}/logs-{node_id}",
            f"ssl.keystore.location={self.directory}/node-{node_id}.pem",
            f"ssl.truststore.location={self.ca}",
            *(
                f"listener.name.{name}.ssl.client.auth=required"
                for name in ("controller", "internal", "certs")
            ),
            "listener.name.users.sasl.enabled.mechanisms=SCRAM-SHA-512,OAUTHBEARER",
            "listener.name.users.sasl.oauthbearer.jwks.endpoint.url="
            f"file://{self.directory}/jwks.json",
            "listener.name.users.sasl.oauthbearer.expected.audience=tidemark",
            r"ssl.principal.mapping.rules=RULE:^CN=([^,]+),.*$/$1/",
            "authorizer.class.name=StandardAuthorizer",
            "super.users=User:admin;User:node-1;User:node-2",
            "offsets.topic.replication.factor=2",
            "offsets.topic.num.partitions=1",
            "broker.heartbeat.interval.ms=200",
            *self._more,
        ]
        return "\n".join(lines) + "\n"

    def run(self, *arguments: str, config: Path | None = None, text: str = "") -> str:
        options = () if config is None else ("--command-config", str(config))
        done = subprocess.run(
            (*COMMAND, *options, *arguments),
            input=text,
            capture_output=True,
            text=True,
            timeout=SECONDS,
            check=False,
        )
        return done.stdout if done.returncode == 0 else f"failed: {done.stderr}"

    def start(self, node_id: int) -> None:
        path = self.directory / f"node-{node_id}.properties"
        if not path.exists():
            path.write_text(self._settings(node_id), encoding="utf-8")
            identity = ("--cluster-id", "q1Sh-9_ISia_zwGINzRvyQ")
            assert "formatted" in self.run("storage", "format", "--config", str(path), *identity)
        with (self.directory / f"node-{node_id}.log").open("ab") as output:
            self._processes[node_id] = subprocess.Popen(
                (*COMMAND, "server", "--config", str(path)), stdout=output, stderr=output
            )

    def kill(self, node_id: int) -> None:
        self._processes[node_id].kill()
        self._processes.pop(node_id).wait(SECONDS)

    def stop(self) -> None:
        for process in self._processes.values():
            process.terminate()
        for process in self._processes.values():
            process.wait(SECONDS)

    def at(self, listener: str) -> str:
        place = ("INTERNAL", "USERS", "CERTS").index(listener)
        return ",".join(f"127.0.0.1:{self.ports[3 * n - 2 + place]}" for n in (1, 2))

    @property
    def controller(self) -> str:
        return f"127.0.0.1:{self.ports[0]}"

    @property
    def processes(self) -> list[subprocess.Popen[bytes]]:
        return list(self._processes.values())

    def by_certificate(self, user: str) -> dict[str, str]:
        return {
            "security.protocol": "SSL",
            "ssl.keystore.location": str(self.certificate(user)),
            "ssl.truststore.location": str(self.ca),
        }

    def by_password(self, user: str, password: str) -> dict[str, str]:
        return self._sasl("SCRAM-SHA-512") | {"sasl.username": user, "sasl.password": password}

    def by_token(self, token: str) -> dict[str, str]:
        return self._sasl("OAUTHBEARER") | {"sasl.oauthbearer.token": token}

    def _sasl(self, mechanism: str) -> dict[str, str]:
        return {
            "security.protocol": "SASL_SSL",
            "sasl.mechanism": mechanism,
            "ssl.truststore.location": str(self.ca),
        }

    def admin(self, security: Mapping[str, str], listener: str = "USERS") -> Admin:
        return Admin(self.at(listener), security=security, **BRIEF)

    def logs(self) -> str:
        return "".join(p.read_text(errors="replace") for p in self.directory.glob("node-*.log"))


@pytest.fixture(scope="module")
def secured(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Secured]:
    cluster = Secured(tmp_path_factory.mktemp("secured"))
    try:
        cluster.start(1)
        cluster.start(2)
        with cluster.admin(cluster.by_certificate("admin"), "CERTS") as admin:
            until(lambda: len(admin.describe_cluster().brokers) == 2)
            topics = [NewTopic(name, 2, 2) for name in ("flights", "secret", "flights-2")]
            until(lambda: bool(admin.create_topics(topics)))
            admin.security.set_scram_password("ann", "correct horse")
            admin.security.create_acls(
                [
                    allow(acls.TOPIC, "flights", operation, "User:ann", pattern=acls.PREFIXED)
                    for operation in (acls.READ, acls.WRITE)
                ]
                + [allow(acls.GROUP, "g", acls.READ, "User:ann")]
            )
            until(lambda: len(admin.security.describe_acls()) == 3)
        yield cluster
    finally:
        cluster.stop()


def allow(
    kind: int, name: str, operation: int, principal: str, pattern: int = acls.LITERAL
) -> AclBinding:
    return AclBinding(kind, name, pattern, principal, "*", operation, acls.ALLOW)


def until(is_so: Callable[[], bool]) -> None:
    """Waits for what a running cluster does in its own time."""
    deadline = time.monotonic() + SECONDS
    while True:
        try:
            if is_so():
                return
        except ApiError:
            if time.monotonic() > deadline:
                raise
        assert time.monotonic() < deadline
        time.sleep(0.1)


def poll_to_the_error(consumer: Consumer) -> None:
    deadline = time.monotonic() + SECONDS
    while time.monotonic() < deadline:
        consumer.poll(1_000)


def test_a_user_reads_and_writes_what_the_acls_allow_and_nothing_else(secured: Secured) -> None:
    ann = secured.by_password("ann", "correct horse")
    with Producer(secured.at("USERS"), security=ann) as producer:
        done = [producer.send("flights", b"%d" % n, partition=n % 2) for n in range(100)]
        assert {d.result(SECONDS).topic for d in done} == {"flights"}
        with pytest.raises(TopicAuthorizationFailedError):
            producer.send("secret", b"x", partition=0).result(SECONDS)
    with Consumer(secured.at("USERS"), security=ann, auto_offset_reset="earliest") as consumer:
        consumer.assign([TopicPartition("flights", p) for p in (0, 1)])
        values: set[bytes] = set()
        until(
            lambda: (
                values.update(r.value or b"" for r in consumer.poll(1_000)) or len(values) == 100
            )
        )
    with secured.admin(ann) as admin:
        assert sorted(t.name for t in admin.list_topics()) == ["flights", "flights-2"]
        with pytest.raises(TopicAuthorizationFailedError):
            admin.create_topics([NewTopic("mine", 1, 1)])
        with pytest.raises(TopicAuthorizationFailedError):
            admin.delete_topics(["flights"])
        with pytest.raises(ClusterAuthorizationFailedError):
            admin.security.create_acls([allow(acls.TOPIC, "secret", acls.READ, "User:ann")])
        with pytest.raises(ClusterAuthorizationFailedError):
            admin.describe_quorum()


def test_an_acl_that_is_removed_ends_what_it_allowed(secured: Secured) -> None:
    entry = allow(acls.TOPIC, "secret", acls.READ, "User:eve")
    eve = secured.by_token(secured.token("eve"))
    with secured.admin(secured.by_certificate("admin"), "CERTS") as admin:
        with Producer(secured.at("CERTS"), security=secured.by_certificate("admin")) as producer:
            producer.send("secret", b"1", partition=0).result(SECONDS)
        admin.security.create_acls([entry])
        with Consumer(secured.at("USERS"), security=eve, auto_offset_reset="earliest") as consumer:
            consumer.assign([TopicPartition("secret", 0)])
            until(lambda: bool(list(consumer.poll(1_000))))
            assert admin.security.delete_acls([acls.AclFilter(principal="User:eve")]) == [entry]
            with pytest.raises(TopicAuthorizationFailedError):
                poll_to_the_error(consumer)


def test_wrong_passwords_and_tokens_are_turned_away(secured: Secured) -> None:
    past = int(time.time()) - 3600
    wrong = (
        secured.by_password("ann", "wrong"),
        secured.by_password("nobody", "correct horse"),
        secured.by_token(secured.token("ann", exp=past)),
        secured.by_token(secured.token("ann", aud="another")),
        secured.by_token(secured.token("ann")[:-4] + "AAAA"),
        secured.by_token("scram.e30=.00"),
    )
    for security in wrong:
        with secured.admin(security) as admin, pytest.raises(SaslAuthenticationError):
            admin.list_topics()
    with secured.admin({}) as admin, pytest.raises((NetworkError, ApiError)):
        admin.list_topics()


def test_services_of_nodes_answer_nodes_alone(secured: Secured) -> None:
    roots = secured.ca.read_bytes()
    text = secured.certificate("mallory").read_bytes()
    credentials = grpc.ssl_channel_credentials(roots, text, text)
    internal = secured.at("INTERNAL").split(",")[0]
    with grpc.secure_channel(internal, credentials) as channel:
        replication = log_pb2_grpc.ReplicationStub(channel)
        with pytest.raises(grpc.RpcError, match="PERMISSION_DENIED"):
            replication.Fetch(log_pb2.ReplicaFetchRequest(replica_id=2), timeout=SECONDS)
    with grpc.secure_channel(f"127.0.0.1:{secured.ports[0]}", credentials) as channel:
        raft = raft_pb2_grpc.RaftStub(channel)
        with pytest.raises(grpc.RpcError, match="PERMISSION_DENIED"):
            raft.Vote(raft_pb2.VoteRequest(), timeout=SECONDS)
    certs = secured.at("CERTS").split(",")[0]
    with grpc.secure_channel(certs, credentials) as channel:
        replication = log_pb2_grpc.ReplicationStub(channel)
        with pytest.raises(grpc.RpcError, match="UNIMPLEMENTED"):
            replication.Fetch(log_pb2.ReplicaFetchRequest(), timeout=SECONDS)


def test_a_broker_that_is_killed_comes_back_and_its_users_log_in_anew(secured: Secured) -> None:
    ann = secured.by_password("ann", "correct horse")
    with Producer(secured.at("USERS"), security=ann) as producer:
        producer.send("flights-2", b"before", partition=0).result(SECONDS)
        secured.kill(2)
        secured.start(2)
        done = [producer.send("flights-2", b"%d" % n, partition=n % 2) for n in range(20)]
        assert {d.result(SECONDS).topic for d in done} == {"flights-2"}


def test_the_command_line_is_secured_by_a_file_and_tells_no_secret(secured: Secured) -> None:
    config = secured.directory / "admin.properties"
    settings = secured.by_certificate("admin")
    config.write_text("".join(f"{k}={v}\n" for k, v in settings.items()), encoding="utf-8")
    at = ("--bootstrap-server", secured.at("CERTS"))
    assert "can log in" in secured.run(
        "users", "set-password", "bob", *at, config=config, text="pw\n"
    )
    added = ("--topic", "flights", "--consumer", "--allow-principal", "User:bob")
    assert "allows User:bob" in secured.run("acls", "add", *added, *at, config=config)
    listed = secured.run("acls", "list", "--principal", "User:bob", "--json", *at, config=config)
    assert {entry["operation"] for entry in json.loads(listed)} == {"read", "describe"}
    assert "bob" in secured.run("users", "list", *at, config=config)
    assert "removed" in secured.run("acls", "remove", "--topic", "flights", *at, config=config)
    assert "removed" in secured.run("users", "delete", "bob", *at, config=config)
    told = secured.logs()
    assert "correct horse" not in told
    assert "PRIVATE KEY" not in told
    assert "denied: User:ann" in told
    assert "CreateAcls by User:admin" in told
