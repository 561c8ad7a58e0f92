"""Settings of a node's log, metrics and probes."""

from __future__ import annotations

from dataclasses import dataclass

from tidemark.config.definition import setting


@dataclass(frozen=True, slots=True)
class ObservationConfig:
    """A section of `ServerConfig`."""

    event_loop_stall_ms: int = setting(
        1_000, doc="the log names where the event loop stood this long; 0: never", at_least=0
    )
    log_format: str = setting(
        "text", doc="lines of the node's log: text, or a JSON object each", one_of=("text", "json")
    )
    prometheus_listener: str = setting(
        "", doc="host:port of metrics and probes over HTTP; empty: none", matching=r"|.*:[0-9]{1,5}"
    )
    slow_request_threshold_ms: int = setting(
        0, doc="requests that take longer are logged, in ms; 0: none", at_least=0
    )
