"""The console's paths over clients that tell, refuse and hang. Time is virtual."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Callable, Coroutine, Sequence
from http import HTTPStatus
from pathlib import Path
from typing import Any

import pytest

import tidemark.console
from tests.console.facts import ToldAdmin, topic
from tests.virtual_time import run
from tidemark.client.models import OffsetAndMetadata
from tidemark.console import routes
from tidemark.console.routes import ConsoleRoutes, refused
from tidemark.console.timeline import QuorumSight, QuorumTimeline
from tidemark.console.visitors import Visitors
from tidemark.console.web import WebAnswer, WebRequest
from tidemark.errors import (
    ApiError,
    ClusterAuthorizationFailedError,
    CorruptMessageError,
    GroupAuthorizationFailedError,
    NetworkError,
    RequestTimedOutError,
    SaslAuthenticationError,
    TidemarkError,
    TopicAuthorizationFailedError,
)
from tidemark.types import TopicPartition

STATIC = Path(tidemark.console.__file__).parent / "static"
PATHS = (
    *("overview", "brokers", "topics", "topic?topic=events", "tier"),
    *("groups", "group?group=g", "quorum"),
)
COMMITTED = {"g": {TopicPartition("events", 0): OffsetAndMetadata(90)}}


class Console:
    """The routes over one admin client."""

    def __init__(self, admin: ToldAdmin, login: dict[str, str] | None = None) -> None:
        self.timeline = QuorumTimeline()
        visitors = Visitors("b:1", login, lambda: 1_000, make=lambda *_: admin)
        self.routes = ConsoleRoutes(visitors, self.timeline, lambda: 1_000)

    async def get(self, path: str) -> WebAnswer:
        path, _, query = path.partition("?")
        parameters = dict(pair.split("=", 1) for pair in query.split("&") if pair)
        return await self.routes.answer(WebRequest(path, parameters, {}))

    async def api(self, path: str) -> tuple[HTTPStatus, Any]:
        answer = await self.get(f"/api/{path}")
        assert answer.content_type == "application/json"
        return answer.status, json.loads(answer.body)


def told(admin: ToldAdmin, story: Callable[[Console], Coroutine[Any, Any, None]]) -> None:
    async def main() -> None:
        await story(Console(admin))

    run(main())


def test_every_page_has_an_answer() -> None:
    async def story(console: Console) -> None:
        console.timeline.see(5, QuorumSight(1, 7, 100, (1, 2, 3)))
        found = {}
        for path in PATHS:
            status, found[path] = await console.api(path)
            assert status == HTTPStatus.OK, (path, found[path])
        assert found["overview"]["groups"] == 1
        assert found["groups"]["groups"]["rows"][0]["lag"] == 5
        assert found["group?group=g"]["lag"] == 5 and found["group?group=g"]["state"] is None
        assert found["quorum"]["timeline"]["changes"][0]["epoch"] == 7

    told(ToldAdmin(committed=COMMITTED), story)


def test_a_name_that_is_unknown_or_missing_is_told() -> None:
    async def story(console: Console) -> None:
        assert (await console.api("topic?topic=no"))[0] == HTTPStatus.NOT_FOUND
        assert (await console.api("records?topic=no"))[0] == HTTPStatus.NOT_FOUND
        assert (await console.api("records?topic=events&partition=2"))[0] == HTTPStatus.NOT_FOUND
        assert (await console.api("group?group=no"))[0] == HTTPStatus.NOT_FOUND
        assert (await console.api("topic"))[0] == HTTPStatus.BAD_REQUEST
        assert (await console.api("records?topic=events&limit=x"))[0] == HTTPStatus.BAD_REQUEST
        assert (await console.api("no"))[0] == HTTPStatus.NOT_FOUND
        assert (await console.get("/../server.py")).status == HTTPStatus.NOT_FOUND

    told(ToldAdmin(), story)


def test_topics_are_found_by_a_part_of_their_name_and_bounded(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(routes, "TOPICS_MAX", 3)
    monkeypatch.setattr(routes, "_TOPICS_AT_ONCE", 2)

    async def story(console: Console) -> None:
        _, found = await console.api("topics")
        assert len(found["topics"]["rows"]) == 3 and found["topics_left_out"] == 7
        _, found = await console.api("topics?contains=T7")
        assert [row["topic"] for row in found["topics"]["rows"]] == ["t7"]
        assert found["topics_left_out"] == 0

    told(ToldAdmin(topics=[topic(f"t{n}", ([4], [4], 4)) for n in range(10)]), story)


def test_a_topic_deleted_between_two_calls_is_left_out() -> None:
    class Deleting(ToldAdmin):
        async def list_topics(self, *, include_internal: bool) -> Any:
            found = await super().list_topics(include_internal=include_internal)
            self.topics = self.topics[1:] if len(self.topics) > 2 else self.topics
            return found

    async def story(console: Console) -> None:
        status, found = await console.api("topics")
        assert status == HTTPStatus.OK
        assert [row["topic"] for row in found["topics"]["rows"]] == ["b", "c"]

    told(Deleting(topics=[topic(name, ([4], [4], 4)) for name in "abc"]), story)


def test_what_one_call_refuses_leaves_the_rest_of_the_page() -> None:
    denied = ClusterAuthorizationFailedError("no")
    errors: dict[str, ApiError] = {
        "log dirs": denied,
        "groups": GroupAuthorizationFailedError("no"),
    }

    async def story(console: Console) -> None:
        status, found = await console.api("overview")
        assert status == HTTPStatus.OK
        assert found["bytes"] is None and found["log_dirs_error"] and found["groups"] is None

    told(ToldAdmin(errors=errors), story)

    async def of_groups(console: Console) -> None:
        _, found = await console.api("groups")
        assert [row["partitions"] for row in found["groups"]["rows"]] == [None]
        console_2 = Console(ToldAdmin(committed=COMMITTED, errors={"offsets": NetworkError("x")}))
        _, found = await console_2.api("groups")
        assert [row["lag"] for row in found["groups"]["rows"]] == [None]

    told(
        ToldAdmin(
            committed=COMMITTED, errors={"offsets of g": GroupAuthorizationFailedError("no")}
        ),
        of_groups,
    )


def test_groups_are_bounded_and_topics_that_are_gone_have_no_lag(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(routes, "GROUPS_MAX", 2)
    kept, gone = TopicPartition("events", 0), TopicPartition("gone", 0)
    offsets = {kept: OffsetAndMetadata(90), gone: OffsetAndMetadata(3)}

    async def story(console: Console) -> None:
        _, found = await console.api("groups")
        assert [row["lag"] for row in found["groups"]["rows"]] == [5, 5]
        assert found["groups"]["rows_left_out"] == 1
        _, found = await console.api("groups?contains=C")
        assert [row["group"] for row in found["groups"]["rows"]] == ["c"]

    told(ToldAdmin(committed=dict.fromkeys("abc", offsets)), story)


def test_a_login_that_ends_within_a_page_is_asked_for_again() -> None:
    for call, path in (
        ("log dirs", "brokers"),
        ("offsets of g", "groups"),
        ("offsets", "groups"),
        ("groups", "groups"),
    ):
        ended = SaslAuthenticationError("the session is over")

        async def story(console: Console, path: str = path) -> None:
            assert (await console.api(path))[0] == HTTPStatus.UNAUTHORIZED

        told(ToldAdmin(committed=COMMITTED, errors={call: ended}), story)


def test_the_timeline_is_told_to_those_alone_who_may_describe_the_quorum() -> None:
    async def story(console: Console) -> None:
        console.timeline.see(5, QuorumSight(1, 7, 100, (1,)))
        status, found = await console.api("quorum")
        assert status == HTTPStatus.FORBIDDEN and "timeline" not in found

    told(ToldAdmin(errors={"quorum": ClusterAuthorizationFailedError("no")}), story)


def test_without_a_login_only_style_and_script_are_served() -> None:
    async def main() -> None:
        console = Console(ToldAdmin(), {"security.protocol": "SASL_SSL"})
        for path in (*PATHS, "records?topic=events"):
            answer = await console.get(f"/api/{path}")
            assert answer.status == HTTPStatus.UNAUTHORIZED and answer.asks_login
        for path in ("/", "/index.html"):
            assert (await console.get(path)).status == HTTPStatus.UNAUTHORIZED
        assert (await console.get("/console.css")).status == HTTPStatus.OK

    run(main())


def test_a_login_that_the_cluster_refuses_gets_no_page_but_other_troubles_do() -> None:
    async def main() -> None:
        header = {"authorization": "Basic YTpi"}
        for error, status in (
            (SaslAuthenticationError("no"), HTTPStatus.UNAUTHORIZED),
            (NetworkError("no node"), HTTPStatus.OK),
            (None, HTTPStatus.OK),
        ):
            admin = ToldAdmin(errors={} if error is None else {"cluster": error})
            login = {"security.protocol": "SASL_PLAINTEXT", "sasl.mechanism": "SCRAM-SHA-512"}
            console = Console(admin, login)
            answer = await console.routes.answer(WebRequest("/", {}, header))
            assert answer.status == status
            assert (b"<!doctype html>" in answer.body) == (status == HTTPStatus.OK)

    run(main())


def test_a_cluster_that_hangs_ends_in_a_timeout_and_others_are_served() -> None:
    admin = ToldAdmin(hangs="cluster")

    async def story(console: Console) -> None:
        status, found = await console.api("brokers")
        assert status == HTTPStatus.GATEWAY_TIMEOUT and "20 s" in found["message"]
        admin.hangs = ""
        assert (await console.api("brokers"))[0] == HTTPStatus.OK

    told(admin, story)


def test_readers_of_a_leader_that_hangs_hold_up_no_other_page() -> None:
    class Hanging(ToldAdmin):
        async def describe_topics(self, names: Sequence[str]) -> Any:
            if list(names) == ["events"]:
                await asyncio.get_running_loop().create_future()
            return await super().describe_topics(names)

    async def story(console: Console) -> None:
        path = "records?topic=events"
        reading = [asyncio.ensure_future(console.api(path)) for _ in range(2 * routes.ANSWERS_MAX)]
        await asyncio.sleep(1)
        status, _ = await console.api("quorum")
        assert status == HTTPStatus.OK and not any(each.done() for each in reading)
        found = [status for status, _ in await asyncio.gather(*reading)]
        assert found == [HTTPStatus.GATEWAY_TIMEOUT] * len(reading)

    told(Hanging(), story)


@pytest.mark.parametrize(
    ("error", "status"),
    [
        (SaslAuthenticationError("x"), HTTPStatus.UNAUTHORIZED),
        (TopicAuthorizationFailedError("x"), HTTPStatus.FORBIDDEN),
        (RequestTimedOutError("x"), HTTPStatus.GATEWAY_TIMEOUT),
        (CorruptMessageError("x"), HTTPStatus.BAD_GATEWAY),
        (NetworkError("x"), HTTPStatus.BAD_GATEWAY),
    ],
)
def test_each_error_has_its_status_and_its_name(error: TidemarkError, status: HTTPStatus) -> None:
    answer = refused(error)
    assert answer.status == status
    assert re.fullmatch(r"[A-Z_]+", json.loads(answer.body)["error"])


def test_the_page_is_whole_and_asks_no_other_server() -> None:
    async def main() -> None:
        console = Console(ToldAdmin())
        for path in STATIC.iterdir():
            answer = await console.get(f"/{path.name}")
            assert answer.status == HTTPStatus.OK and answer.body == path.read_bytes()
            text = path.read_text(encoding="utf-8")
            links = set(re.findall(r"https?://[^\s\"']+", text))
            assert links <= {"http://www.w3.org/2000/svg"}, path
            for name in re.findall(r"(?:src|href)=\"/([a-z.]+)\"|from \"\./([a-z.]+)\"", text):
                assert (STATIC / (name[0] or name[1])).exists()

    run(main())


def test_the_script_makes_no_markup_of_texts() -> None:
    """The policy forbids inline scripts; these would be ways around text nodes."""
    for path in STATIC.glob("*.js"):
        text = path.read_text(encoding="utf-8")
        for word in (
            *("innerHTML", "outerHTML", "insertAdjacentHTML", "document.write", "eval("),
            *("new Function", "srcdoc", "javascript:", "DOMParser", "createContextualFragment"),
        ):
            assert word not in text, (path.name, word)
    html = (STATIC / "index.html").read_text(encoding="utf-8")
    assert not re.search(r"<script(?![^>]*\bsrc=)|\son[a-z]+=|<style|\sstyle=", html)
