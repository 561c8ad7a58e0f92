"""Sessions of brokers at the active controller: soft state, never in the log.

A session is the time since a broker's last heartbeat. A new controller has received no heartbeats,
so it gives every broker in service a new session (KIP-631). Otherwise a change of controller would
fence all brokers.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from quorum.image import MetadataImage


@dataclass(slots=True)
class _Session:
    last_contact_ms: int
    metadata_offset: int = -1


@dataclass(slots=True)
class BrokerSessions:
    """Sessions by broker id, and the metadata offsets since which brokers want to shut down."""

    timeout_ms: int
    _sessions: dict[int, _Session] = field(default_factory=dict)
    _shutdown_offsets: dict[int, int] = field(default_factory=dict)

    def activate(self, image: MetadataImage, now_ms: int) -> None:
        """Drops all sessions and gives each broker in service a new one."""
        self._sessions = {
            broker_id: _Session(now_ms)
            for broker_id, broker in sorted(image.brokers.items())
            if not broker.fenced
        }
        self._shutdown_offsets = {}

    def touch(self, broker_id: int, now_ms: int, metadata_offset: int = -1) -> None:
        """Renews a session; the broker has applied the metadata up to `metadata_offset`."""
        session = self._sessions.setdefault(broker_id, _Session(now_ms))
        session.last_contact_ms = now_ms
        session.metadata_offset = max(session.metadata_offset, metadata_offset)

    def restart(self, broker_id: int, now_ms: int) -> None:
        """Starts the session of a new incarnation; reports of the old one no longer count."""
        self._sessions[broker_id] = _Session(now_ms)
        self._shutdown_offsets.pop(broker_id, None)

    def end(self, broker_id: int) -> None:
        self._sessions.pop(broker_id, None)
        self._shutdown_offsets.pop(broker_id, None)

    def is_live(self, broker_id: int, now_ms: int) -> bool:
        session = self._sessions.get(broker_id)
        return session is not None and now_ms - session.last_contact_ms < self.timeout_ms

    def stalest(self, image: MetadataImage, now_ms: int) -> int | None:
        """The broker in service whose session ended longest ago; None if all are alive."""
        ended = [
            (-1 if (session := self._sessions.get(i)) is None else session.last_contact_ms, i)
            for i, broker in image.brokers.items()
            if not broker.fenced and not self.is_live(i, now_ms)
        ]
        return min(ended)[1] if ended else None

    def begin_shutdown(self, broker_id: int, offset: int) -> None:
        """Records that the broker's leaderships were moved away by records up to `offset`."""
        previous = self._shutdown_offsets.get(broker_id, -1)
        self._shutdown_offsets[broker_id] = max(previous, offset)

    def may_shut_down(self, broker_id: int, image: MetadataImage) -> bool:
        """Whether every active broker has applied the moves of the broker's leaderships."""
        offset = self._shutdown_offsets.get(broker_id, -1)
        return all(
            (session := self._sessions.get(i)) is not None and session.metadata_offset >= offset
            for i, broker in image.brokers.items()
            if i != broker_id and broker.is_active
        )
