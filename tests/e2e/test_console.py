"""The web console of a broker in a real browser: every page, hostile records, logins and ACLs.

One cluster: controller 1 and broker 2, whose listener LOGINS takes passwords. Its nodes meet on
PLAINTEXT, which no user of the console reaches.
"""

from __future__ import annotations

import base64
import html
import json
import re
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.browser import Browser, text_of
from tidemark import NewTopic, Producer, TopicPartition
from tidemark.cli.local_cluster import LocalCluster, free_ports
from tidemark.client import Admin, OffsetAndMetadata
from tidemark.security import acls
from tidemark.security.acls import AclBinding

HOSTILE = "<img src=x onerror=\"document.title='pwned'\">"
PASSWORD = "correct horse"


class Consoled:
    """The cluster, and requests to its console."""

    def __init__(self, directory: Path) -> None:
        logins, self.console = free_ports(2)
        self.cluster = LocalCluster(
            directory,
            controllers=1,
            brokers=1,
            overrides={
                "authorizer.class.name": "StandardAuthorizer",
                "super.users": "User:ANONYMOUS;User:root",
                "listener.security.protocol.map": (
                    "CONTROLLER:PLAINTEXT,PLAINTEXT:PLAINTEXT,LOGINS:SASL_PLAINTEXT"
                ),
            },
            broker_overrides={"console.listener": f"127.0.0.1:{self.console}"},
        )
        broker = self.cluster.node(2)
        broker.settings["listeners"] += f",LOGINS://127.0.0.1:{logins}"

    def url(self, page: str) -> str:
        """A page as a super user opens it."""
        return f"http://root:{PASSWORD.replace(' ', '%20')}@127.0.0.1:{self.console}/#/{page}"

    def ask(
        self, path: str, user: str = "", password: str = PASSWORD, **headers: str
    ) -> tuple[int, Any]:
        """Status and JSON of a GET."""
        request = urllib.request.Request(f"http://127.0.0.1:{self.console}{path}")
        if user:
            both = base64.b64encode(f"{user}:{password}".encode()).decode()
            request.add_header("Authorization", f"Basic {both}")
        for name, value in headers.items():
            request.add_header(name, value)
        try:
            with urllib.request.urlopen(request, timeout=60) as answer:
                return answer.status, json.load(answer)
        except urllib.error.HTTPError as error:
            with error:
                return error.code, json.load(error)


def allow(kind: int, name: str, operation: int, user: str) -> AclBinding:
    return AclBinding(kind, name, acls.LITERAL, f"User:{user}", "*", operation, acls.ALLOW)


@pytest.fixture(scope="module")
def consoled(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Consoled]:
    made = Consoled(tmp_path_factory.mktemp("console"))
    with made.cluster as cluster:
        cluster.wait_ready(60)
        servers = cluster.bootstrap_servers
        with Admin(servers) as admin:
            admin.create_topics([NewTopic("flights", 2, 1), NewTopic("secret", 1, 1)])
            for user in ("root", "ann"):
                admin.security.set_scram_password(user, PASSWORD)
            admin.security.create_acls([allow(acls.TOPIC, "flights", acls.READ, "ann")])
            with Producer(servers, acks="all") as producer:
                values = (HOSTILE.encode(), b'{"carrier": "UA"}', bytes(range(8)), None)
                for value in values:
                    producer.send(
                        "flights", value, partition=0, key=b"k", headers=[(HOSTILE, b"</li>")]
                    ).result()
            admin.groups.alter_offsets(
                f"bill {HOSTILE}", {TopicPartition("flights", 0): OffsetAndMetadata(1)}
            )
        yield made


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Browser:
    return Browser(tmp_path_factory.mktemp("profile"))


@pytest.mark.parametrize(
    ("page", "texts"),
    [
        ("", ["Nothing is wrong here", "Active controller", "Under-replicated"]),
        ("brokers", ["127.0.0.1:", "active", "Log directories", "online"]),
        ("topics", ["flights", "secret", "__consumer_offsets"]),
        ("topics?contains=sec", ["secret"]),
        ("topic/flights", ["browse", "High watermark", "It has the brokers' defaults"]),
        ("tier", ["No topic has remote.storage.enable=true"]),
        ("groups", [f"bill {HOSTILE}", "Lag"]),
        ("quorum", ["leader", "Timeline", "node 1", "epoch 1"]),
        ("records/flights/0", [HOSTILE, '"carrier": "UA"', "00 01 02 03", "null", "</li>"]),
        ("records/flights/0?offset=1&limit=1&format=hex", ["7b 22 63", "offsets 1 to 2 of 0 to 4"]),
        ("records/flights/1", ["The partition is empty"]),
        ("topic/nowhere", ["UNKNOWN_TOPIC_OR_PARTITION", "Try again"]),
        ("records/flights/0?limit=9999", ["INVALID_REQUEST"]),
        ("nowhere", ["No such page"]),
    ],
)
def test_each_page_is_drawn_and_texts_of_the_cluster_stay_texts(
    consoled: Consoled, browser: Browser, page: str, texts: list[str]
) -> None:
    document = browser.document(consoled.url(page))
    shown = " ".join(text_of(document).split())
    for text in texts:
        assert text in shown, shown
    assert "pwned</title>" not in document and "<title>" in document
    assert "<img src=x" not in document and '<img src="x' not in document
    if page == "topics?contains=sec":
        assert "flights" not in shown


def test_the_group_page_of_a_hostile_name_is_reached_by_its_link(
    consoled: Consoled, browser: Browser
) -> None:
    found = re.search(r'href="(#/group/[^"]+)"', browser.document(consoled.url("groups")))
    assert found is not None
    page = html.unescape(found[1]).removeprefix("#/")
    shown = " ".join(text_of(browser.document(consoled.url(page))).split())
    assert f"bill {HOSTILE}" in shown and "Nobody is in the group" in shown


def test_light_and_dark_are_two_pictures(
    consoled: Consoled, browser: Browser, tmp_path: Path
) -> None:
    light = browser.picture(consoled.url("quorum"), tmp_path / "light.png")
    dark = browser.picture(consoled.url("quorum"), tmp_path / "dark.png", dark=True)
    assert light.startswith(b"\x89PNG") and dark.startswith(b"\x89PNG")
    assert light != dark


def test_a_user_sees_what_the_acls_allow(consoled: Consoled) -> None:
    assert consoled.ask("/api/topics")[0] == 401
    assert consoled.ask("/api/topics", "ann", "wrong")[0] == 401
    status, found = consoled.ask("/api/topics", "ann")
    assert status == 200 and [row["topic"] for row in found["topics"]["rows"]] == ["flights"]
    status, found = consoled.ask("/api/records?topic=flights", "ann")
    assert status == 200 and len(found["records"]) == 4
    for path in ("records?topic=secret", "topic?topic=secret", "quorum"):
        status, found = consoled.ask(f"/api/{path}", "ann")
        assert status in (403, 404) and "rows" not in found, (path, found)
    status, found = consoled.ask("/api/records?topic=secret", "root")
    assert status == 200 and found["records"] == []


def test_another_name_of_the_host_and_another_method_are_refused(consoled: Consoled) -> None:
    assert consoled.ask("/api/topics", "root", Host="evil.example")[0] == 421
    cross = {"Sec-Fetch-Site": "cross-site"}
    assert consoled.ask("/api/topics", "root", **cross)[0] == 403
    request = urllib.request.Request(f"http://127.0.0.1:{consoled.console}/", method="DELETE")
    with pytest.raises(urllib.error.HTTPError) as refused, urllib.request.urlopen(request):
        pass
    with refused.value as error:
        assert error.code == 405
