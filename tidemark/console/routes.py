"""The paths of the console: files of the page, and what it asks below `/api/`.

An answer of `/api/` is one round of calls of the user's own client. There are at most
`ANSWERS_MAX` at once, and `BROWSES_MAX` more that read records; others wait, and each has
`ANSWER_S_MAX` in all.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from http import HTTPStatus
from importlib.resources import files
from typing import Any

from tidemark import __version__
from tidemark.client.models import GroupDescription, GroupListing
from tidemark.console import browsing, group_views, views
from tidemark.console.browsing import BrowseQuery
from tidemark.console.timeline import QuorumTimeline
from tidemark.console.visitors import Visitor, Visitors
from tidemark.console.web import WebAnswer, WebRequest, of_json, refusal
from tidemark.errors import (
    ApiError,
    ClusterAuthorizationFailedError,
    ErrorCode,
    GroupAuthorizationFailedError,
    GroupIdNotFoundError,
    InvalidRequestError,
    OffsetOutOfRangeError,
    RequestTimedOutError,
    SaslAuthenticationError,
    ThrottlingQuotaExceededError,
    TidemarkError,
    TopicAuthorizationFailedError,
    UnknownTopicOrPartitionError,
)
from tidemark.types import OffsetSpec, TopicPartition

ANSWERS_MAX = 8
BROWSES_MAX = 2
ANSWER_S_MAX = 20.0
TOPICS_MAX = 1_000
GROUPS_MAX = 100
_TOPICS_AT_ONCE = 100

_TYPES = {
    "index.html": "text/html; charset=utf-8",
    "console.css": "text/css; charset=utf-8",
    "console.js": "text/javascript; charset=utf-8",
    "dom.js": "text/javascript; charset=utf-8",
    "pages.js": "text/javascript; charset=utf-8",
    "records.js": "text/javascript; charset=utf-8",
    "icon.svg": "image/svg+xml",
}

_STATUSES: tuple[tuple[type[BaseException], HTTPStatus], ...] = (
    (SaslAuthenticationError, HTTPStatus.UNAUTHORIZED),
    (ClusterAuthorizationFailedError, HTTPStatus.FORBIDDEN),
    (GroupAuthorizationFailedError, HTTPStatus.FORBIDDEN),
    (TopicAuthorizationFailedError, HTTPStatus.FORBIDDEN),
    (UnknownTopicOrPartitionError, HTTPStatus.NOT_FOUND),
    (GroupIdNotFoundError, HTTPStatus.NOT_FOUND),
    (InvalidRequestError, HTTPStatus.BAD_REQUEST),
    (OffsetOutOfRangeError, HTTPStatus.CONFLICT),
    (ThrottlingQuotaExceededError, HTTPStatus.SERVICE_UNAVAILABLE),
    (RequestTimedOutError, HTTPStatus.GATEWAY_TIMEOUT),
)

Parameters = Mapping[str, str]
Page = Callable[[Visitor, Parameters], Awaitable[dict[str, Any]]]


def _read_files() -> dict[str, WebAnswer]:
    directory = files("tidemark.console") / "static"
    found = {
        f"/{name}": WebAnswer(HTTPStatus.OK, (directory / name).read_bytes(), kind)
        for name, kind in _TYPES.items()
    }
    return {**found, "/": found["/index.html"]}


class ConsoleRoutes:
    """Answers requests for the users of `visitors`."""

    def __init__(
        self, visitors: Visitors, timeline: QuorumTimeline, now_ms: Callable[[], int]
    ) -> None:
        self._visitors = visitors
        self._timeline = timeline
        self._now_ms = now_ms
        self._files = _read_files()
        self._index = self._files["/index.html"]
        self._answers = asyncio.Semaphore(ANSWERS_MAX)
        self._browses = asyncio.Semaphore(BROWSES_MAX)
        self._pages: dict[str, Page] = {
            "/api/overview": self._overview,
            "/api/brokers": self._brokers,
            "/api/topics": self._topics,
            "/api/topic": self._topic,
            "/api/tier": self._tier,
            "/api/groups": self._groups,
            "/api/group": self._group,
            "/api/quorum": self._quorum,
            "/api/records": self._records,
        }
        if visitors.ask_login:
            del self._files["/"], self._files["/index.html"]

    async def answer(self, request: WebRequest) -> WebAnswer:
        """The answer to a GET."""
        if request.path in self._files:
            return self._files[request.path]
        page = self._pages.get(request.path)
        if request.path in ("/", "/index.html"):
            page = self._logged_in
        if page is None:
            return refusal(HTTPStatus.NOT_FOUND, "NO_SUCH_PATH", "the console has no such path")
        try:
            slots = self._browses if page == self._records else self._answers
            async with asyncio.timeout(ANSWER_S_MAX), slots:
                login = request.headers.get("authorization", "")
                async with self._visitors.visitor(login) as visitor:
                    found = await page(visitor, request.parameters)
            return self._index if page == self._logged_in else of_json(found)
        except TimeoutError:
            return refusal(
                HTTPStatus.GATEWAY_TIMEOUT,
                "REQUEST_TIMED_OUT",
                f"the cluster did not answer within {ANSWER_S_MAX:.0f} s",
            )
        except TidemarkError as error:
            return refused(error)

    async def _logged_in(self, visitor: Visitor, parameters: Parameters) -> dict[str, Any]:
        """Has the browser ask for a password before the page is there: scripts can not."""
        try:
            await visitor.admin.describe_cluster()
        except SaslAuthenticationError:
            raise
        except ApiError:
            pass  # the page tells it
        return {}

    async def _facts(self, visitor: Visitor, parameters: Parameters) -> views.ClusterFacts:
        admin = visitor.admin
        cluster, listed = await asyncio.gather(
            admin.describe_cluster(), admin.list_topics(include_internal=True)
        )
        wanted = parameters.get("contains", "").lower()
        names = [topic.name for topic in listed if wanted in topic.name.lower()]
        return await _described(visitor, cluster, names[:TOPICS_MAX], len(names) - TOPICS_MAX)

    async def _overview(self, visitor: Visitor, parameters: Parameters) -> dict[str, Any]:
        facts = await self._facts(visitor, {})
        try:
            groups: int | None = len(await visitor.admin.groups.list())
        except ApiError:
            groups = None
        return views.overview(facts, groups, __version__)

    async def _brokers(self, visitor: Visitor, parameters: Parameters) -> dict[str, Any]:
        return views.brokers(await self._facts(visitor, {}))

    async def _topics(self, visitor: Visitor, parameters: Parameters) -> dict[str, Any]:
        return views.topics(await self._facts(visitor, parameters))

    async def _tier(self, visitor: Visitor, parameters: Parameters) -> dict[str, Any]:
        return views.tier(await self._facts(visitor, parameters))

    async def _topic(self, visitor: Visitor, parameters: Parameters) -> dict[str, Any]:
        name = _named(parameters, "topic")
        cluster = await visitor.admin.describe_cluster()
        return views.topic(await _described(visitor, cluster, [name], 0))

    async def _groups(self, visitor: Visitor, parameters: Parameters) -> dict[str, Any]:
        wanted = parameters.get("contains", "").lower()
        found = [
            group for group in await visitor.admin.groups.list() if wanted in group.group_id.lower()
        ]
        listed = found[:GROUPS_MAX]
        offsets = await asyncio.gather(*(_committed(visitor, group) for group in listed))
        known = {
            group.group_id: own
            for group, own in zip(listed, offsets, strict=True)
            if own is not None
        }
        ends = await _ends(visitor, {p for own in known.values() for p in own})
        return group_views.groups(listed, known, ends, len(found) - len(listed))

    async def _group(self, visitor: Visitor, parameters: Parameters) -> dict[str, Any]:
        group_id = _named(parameters, "group")
        committed = await visitor.admin.groups.offsets(group_id)
        described: GroupDescription | None = None
        try:
            described = (await visitor.admin.groups.describe([group_id]))[group_id]
        except GroupIdNotFoundError:
            if not committed:
                raise
        owned = {p for m in (described.members if described else ()) for p in m.assignment}
        ends = await _ends(visitor, owned.union(committed))
        return group_views.group(group_id, described, committed, ends)

    async def _quorum(self, visitor: Visitor, parameters: Parameters) -> dict[str, Any]:
        described = await visitor.admin.describe_quorum()  # before the timeline: it asks for rights
        return views.quorum(described, self._timeline.view(), self._now_ms())

    async def _records(self, visitor: Visitor, parameters: Parameters) -> dict[str, Any]:
        query = BrowseQuery.of(parameters)
        topics = await visitor.admin.describe_topics([query.partition.topic])
        numbers = {one.partition for one in topics[query.partition.topic].partitions}
        if query.partition.partition not in numbers:
            raise UnknownTopicOrPartitionError(
                f"{query.partition} does not exist: the topic has {len(numbers)} partitions"
            )
        async with visitor.consumer(query.isolation_level) as consumer:
            return await browsing.browse(consumer, query)


def refused(error: TidemarkError) -> WebAnswer:
    """The answer for an error of the cluster."""
    status = next((s for kind, s in _STATUSES if isinstance(error, kind)), HTTPStatus.BAD_GATEWAY)
    code = getattr(error, "code", None)
    name = code.name if isinstance(code, ErrorCode) else type(error).__name__
    return refusal(status, name, str(error))


def _named(parameters: Parameters, name: str) -> str:
    if not parameters.get(name):
        raise InvalidRequestError(f"the path needs a {name}: ?{name}=NAME")
    return parameters[name]


async def _described(
    visitor: Visitor, cluster: Any, names: list[str], left_out: int
) -> views.ClusterFacts:
    """Facts of these topics; those that are deleted meanwhile are left out, unless it is one."""
    topics: list[Any] = []
    for first in range(0, len(names), _TOPICS_AT_ONCE):
        part = names[first : first + _TOPICS_AT_ONCE]
        try:
            topics += (await visitor.admin.describe_topics(part)).values()
        except UnknownTopicOrPartitionError:
            if len(names) == 1:
                raise
            known = {topic.name for topic in await visitor.admin.list_topics(include_internal=True)}
            kept = [name for name in part if name in known]
            topics += (await visitor.admin.describe_topics(kept)).values()
    log_dirs, error = {}, None
    try:
        log_dirs = await visitor.admin.describe_log_dirs(topics=names if len(names) == 1 else ())
    except SaslAuthenticationError:
        raise
    except ApiError as refusal_of_brokers:
        error = str(refusal_of_brokers)
    return views.ClusterFacts(cluster, topics, log_dirs, error, max(0, left_out))


async def _committed(visitor: Visitor, group: GroupListing) -> group_views.Committed | None:
    try:
        return await visitor.admin.groups.offsets(group.group_id)
    except SaslAuthenticationError:
        raise
    except ApiError:
        return None


async def _ends(visitor: Visitor, partitions: set[TopicPartition]) -> dict[TopicPartition, int]:
    """End offsets of those partitions that there are, as far as their leaders tell."""
    if not partitions:
        return {}
    counts = {
        topic.name: topic.num_partitions
        for topic in await visitor.admin.list_topics(include_internal=True)
    }
    there = [each for each in partitions if each.partition < counts.get(each.topic, 0)]
    try:
        found = await visitor.admin.list_offsets(dict.fromkeys(there, OffsetSpec.LATEST))
    except SaslAuthenticationError:
        raise
    except ApiError:
        return {}
    return {partition: answer.offset for partition, answer in found.items() if answer is not None}
