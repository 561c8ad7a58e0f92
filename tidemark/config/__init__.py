"""Settings of nodes and topics, by Kafka's names and with Kafka's defaults.

Each setting is one line in a table, with type, default, bounds and documentation. Parsing, the
command line, DescribeConfigs and the checks of AlterConfigs all read that table. Outsiders import
what is listed here. The command line and the admin handlers also use `definition`, and programs
that write a server.properties use `properties`. Connections and listeners use `security`, and the
console `console`.

    server       ServerConfig: the settings of a node
    loading      reads them from a file and TIDEMARK_... variables
    observation  settings of a node's log, metrics and probes
    console      settings of a broker's web console
    topic        TopicConfig: the settings of a topic, its defaults, settings altered at run time
    value_schema what the values of a topic are, for who reads them
    security     settings of secured connections, of clients and of nodes
    listeners    the listeners of a node, and what they have to agree on
    definition   settings as dataclass fields: parsing, conversion, checks
    properties   the text format of server.properties and meta.properties

The room promises that parsed settings have passed every check of their table. An unknown name is an
error that suggests the nearest known one. Sizes are in bytes and durations in ms.
"""

from tidemark.config.loading import load_server_config, parse_server_config
from tidemark.config.server import ServerConfig
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
