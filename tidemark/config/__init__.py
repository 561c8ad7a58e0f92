"""Kafka-named settings of nodes and topics: one definition each, with type, bounds, default and
documentation.
"""

from tidemark.config.server import ServerConfig, load_server_config, parse_server_config
from tidemark.config.topic import (
    TopicConfig,
    altered_server,
    dynamic_settings,
    effective_topic_config,
    server_defaults,
    synonym_of,
    validate_dynamic_configs,
    validate_topic_configs,
)

__all__ = [
    "ServerConfig",
    "TopicConfig",
    "altered_server",
    "dynamic_settings",
    "effective_topic_config",
    "load_server_config",
    "parse_server_config",
    "server_defaults",
    "synonym_of",
    "validate_dynamic_configs",
    "validate_topic_configs",
]
