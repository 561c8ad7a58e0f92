"""The web console of a node, or of a command: its server, its clients, and its look-outs."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Awaitable, Callable, Mapping

from tidemark.config.security import NO_SECURITY, ClientSecurity
from tidemark.console.routes import ConsoleRoutes
from tidemark.console.timeline import QuorumSight, QuorumTimeline
from tidemark.console.visitors import Visitors
from tidemark.console.web import WebServer
from tidemark.errors import ApiError
from tidemark.surroundings import surroundings
from tidemark.types import Endpoint

logger = logging.getLogger(__name__)

_LOOK_S = 1.0

Look = Callable[[], Awaitable[QuorumSight | None]]


class ConsoleServer:
    """Serves the console until it is stopped.

    `bootstrap` is an address of the cluster. With `login`, the settings of a client that lack a
    name and a password, users log in; without, all are the user of `security`. `look` tells the
    quorum for the timeline; None: as the user of `security` sees it.
    """

    def __init__(
        self,
        bootstrap: str,
        *,
        login: Mapping[str, str] | None = None,
        security: ClientSecurity = NO_SECURITY,
        look: Look | None = None,
        look_s: float = _LOOK_S,
    ) -> None:
        self._now_ms = surroundings().wall_ms
        self._visitors = Visitors(bootstrap, login, self._now_ms, security)
        self._timeline = QuorumTimeline()
        self._look = look or self._asked
        self._look_s = look_s
        self._looker: asyncio.Task[None] | None = None
        self._web: WebServer | None = None

    async def start(self, wanted: Endpoint) -> Endpoint:
        """Listens; returns the endpoint with its port. Raises FatalError if it can not."""
        routes = ConsoleRoutes(self._visitors, self._timeline, self._now_ms)
        self._web = WebServer(routes.answer)
        bound = await self._web.start(wanted)
        self._looker = asyncio.create_task(self._watch(), name="console-timeline")
        return bound

    async def stop(self) -> None:
        """Ends answers under way, and closes the clients. Idempotent."""
        if self._looker is not None:
            self._looker.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._looker
            self._looker = None
        if self._web is not None:
            await self._web.stop()
        await self._visitors.close()

    async def _watch(self) -> None:
        """Looks at the quorum again and again; a look that fails is left out."""
        while True:
            try:
                sight = await self._look()
            except ApiError as error:
                logger.debug("the console can not see the quorum: %s", error)
            except Exception:
                logger.exception("the console's look at the quorum failed")
            else:
                if sight is not None:
                    self._timeline.see(self._now_ms(), sight)
            await asyncio.sleep(self._look_s)

    async def _asked(self) -> QuorumSight:
        async with self._visitors.visitor("") as visitor:
            found = await visitor.admin.describe_quorum()
        voters = tuple(voter.replica_id for voter in found.voters)
        return QuorumSight(found.leader_id, found.leader_epoch, found.high_watermark, voters)
