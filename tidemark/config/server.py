"""The settings of a node. Names and defaults are Kafka's."""

from __future__ import annotations

import os
from dataclasses import dataclass, field

from tidemark.config.console import ConsoleConfig, console_access
from tidemark.config.definition import section, setting
from tidemark.config.listeners import check_listeners, parse_listeners
from tidemark.config.observation import ObservationConfig
from tidemark.config.security import ClientSecurity, ListenerSecurity, NodeSecurity
from tidemark.errors import ConfigError
from tidemark.types import Endpoint

_MAX_INT = 2**31 - 1
_MAX_LONG = 2**63 - 1
# Kafka's selectors (KIP-392), with and without their package.
_RACK_AWARE = "RackAwareReplicaSelector"
_SELECTORS = tuple(
    package + name
    for name in (_RACK_AWARE, "LeaderSelector")
    for package in ("", "org.apache.kafka.common.replica.")
)


@dataclass(frozen=True, slots=True)
class ServerConfig:
    """A node's settings; `tidemark/config/loading.py` reads them."""

    process_roles: tuple[str, ...] = setting(
        doc="controller, broker, or both", one_of=("controller", "broker")
    )
    node_id: int = setting(doc="unique among all nodes of the cluster", at_least=0)
    broker_rack: str = setting("", doc="rack of this broker; empty: none")
    replica_selector_class: str = setting(
        "",
        doc="whom consumers that name their rack read from: RackAwareReplicaSelector, the closest"
        " replica (KIP-392); empty or LeaderSelector: the leader",
        one_of=("", *_SELECTORS),
    )
    listeners: tuple[str, ...] = setting(("PLAINTEXT://:9092",), doc="NAME://host:port, ...")
    advertised_listeners: tuple[str, ...] = setting(
        (), doc="what others are told; empty: as listeners"
    )
    inter_broker_listener_name: str = setting(
        "", doc="listener on which brokers connect to each other; empty: PLAINTEXT, or the first"
    )
    controller_listener_names: tuple[str, ...] = setting(
        ("CONTROLLER",), doc="listeners controllers answer on"
    )
    log_dirs: tuple[str, ...] = setting(
        ("/tmp/tidemark-logs",), doc="directories of partition logs"
    )
    metadata_log_dir: str = setting(
        "", doc="directory of __cluster_metadata; empty: the first of log.dirs"
    )

    controller_quorum_voters: tuple[str, ...] = setting((), doc="static voters: id@host:port, ...")
    controller_quorum_bootstrap_servers: tuple[str, ...] = setting(
        (), doc="host:port of controllers to ask first"
    )
    controller_quorum_auto_join_enable: bool = setting(
        False, doc="a controller that is no voter asks to become one (KIP-853)"
    )
    controller_quorum_election_timeout_ms: int = setting(
        1000, doc="least time before an election", at_least=1
    )
    controller_quorum_fetch_timeout_ms: int = setting(
        2000, doc="a follower without a fetch this long elects", at_least=1
    )
    controller_quorum_election_backoff_max_ms: int = setting(
        1000, doc="greatest spread of successors", at_least=0
    )
    controller_quorum_append_linger_ms: int = setting(
        25, doc="wait for more records before an append", at_least=0
    )
    controller_quorum_request_timeout_ms: int = setting(
        2000, doc="quorum request timeout", at_least=1
    )
    controller_quorum_retry_backoff_ms: int = setting(
        20, doc="wait before a quorum request is repeated", at_least=0
    )
    controller_quorum_fetch_max_bytes: int = setting(
        1 << 20, doc="largest metadata fetch", at_least=1
    )
    controller_quorum_fetch_snapshot_max_bytes: int = setting(
        1 << 20, doc="largest snapshot piece", at_least=1
    )

    metadata_log_segment_bytes: int = setting(
        1 << 30, doc="segment size of __cluster_metadata", at_least=1024
    )
    metadata_log_segment_ms: int = setting(
        604_800_000, doc="segment age of __cluster_metadata", at_least=1
    )
    metadata_max_retention_bytes: int = setting(
        100 << 20, doc="size limit of metadata log and snapshots", at_least=-1
    )
    metadata_max_retention_ms: int = setting(
        604_800_000, doc="age limit of metadata log and snapshots", at_least=-1
    )
    metadata_log_max_record_bytes_between_snapshots: int = setting(
        20 << 20, doc="log bytes that make a snapshot", at_least=1
    )
    metadata_log_max_snapshot_interval_ms: int = setting(
        3_600_000, doc="time that makes a snapshot; 0: off", at_least=0
    )
    metadata_max_idle_interval_ms: int = setting(
        500, doc="active controller writes a NoOp this often; 0: off", at_least=0
    )

    broker_heartbeat_interval_ms: int = setting(
        2000, doc="time between broker heartbeats", at_least=1
    )
    broker_session_timeout_ms: int = setting(
        9000, doc="a broker silent this long is fenced", at_least=1
    )
    initial_broker_registration_timeout_ms: int = setting(
        60_000, doc="a broker that can not register in this time stops", at_least=1
    )
    log_dir_failure_timeout_ms: int = setting(
        30_000,
        doc="a broker that can not tell of a failed log directory in this time stops",
        at_least=1,
    )
    controlled_shutdown_enable: bool = setting(True, doc="move leaders away before stopping")
    leader_imbalance_check_interval_seconds: int = setting(
        300, doc="time between preferred elections", at_least=1
    )
    auto_leader_rebalance_enable: bool = setting(
        True, doc="give leadership back to preferred replicas"
    )

    num_partitions: int = setting(1, doc="partitions of a topic that says none", at_least=1)
    default_replication_factor: int = setting(
        1, doc="replicas of a topic that says none", at_least=1
    )
    auto_create_topics_enable: bool = setting(False, doc="create a topic that a client asks for")

    log_segment_bytes: int = setting(
        1 << 30, doc="segment.bytes of topics", at_least=14, at_most=_MAX_INT
    )
    log_roll_ms: int = setting(604_800_000, doc="segment.ms of topics", at_least=1)
    log_roll_jitter_ms: int = setting(0, doc="segment.jitter.ms of topics", at_least=0)
    log_retention_ms: int = setting(604_800_000, doc="retention.ms of topics", at_least=-1)
    log_retention_bytes: int = setting(-1, doc="retention.bytes of topics", at_least=-1)
    log_retention_check_interval_ms: int = setting(
        300_000, doc="time between retention passes", at_least=1
    )
    log_cleanup_policy: tuple[str, ...] = setting(
        ("delete",), doc="cleanup.policy of topics", one_of=("delete", "compact")
    )
    log_index_interval_bytes: int = setting(
        4096, doc="index.interval.bytes of topics", at_least=0, at_most=_MAX_INT
    )
    log_index_size_max_bytes: int = setting(
        10 << 20, doc="segment.index.bytes of topics", at_least=24, at_most=_MAX_INT
    )
    log_segment_delete_delay_ms: int = setting(
        60_000, doc="file.delete.delay.ms of topics", at_least=0
    )
    log_flush_interval_messages: int = setting(
        _MAX_LONG, doc="flush.messages of topics", at_least=1
    )
    log_flush_interval_ms: int = setting(_MAX_LONG, doc="flush.ms of topics", at_least=0)
    log_flush_scheduler_interval_ms: int = setting(
        _MAX_LONG,
        doc="time between looks for logs whose flush.ms is over; they are flushed with the"
        " recovery-point checkpoints as well",
        at_least=1,
    )
    log_flush_offset_checkpoint_interval_ms: int = setting(
        60_000, doc="time between recovery-point checkpoints", at_least=1
    )
    log_flush_start_offset_checkpoint_interval_ms: int = setting(
        60_000, doc="time between log-start checkpoints", at_least=1
    )
    log_message_timestamp_type: str = setting(
        "CreateTime", doc="message.timestamp.type of topics", one_of=("CreateTime", "LogAppendTime")
    )
    log_message_timestamp_before_max_ms: int = setting(
        _MAX_LONG, doc="message.timestamp.before.max.ms of topics", at_least=0
    )
    log_message_timestamp_after_max_ms: int = setting(
        3_600_000, doc="message.timestamp.after.max.ms of topics", at_least=0
    )
    log_local_retention_ms: int = setting(-2, doc="local.retention.ms of topics", at_least=-2)
    log_local_retention_bytes: int = setting(-2, doc="local.retention.bytes of topics", at_least=-2)
    log_cleaner_delete_retention_ms: int = setting(
        86_400_000, doc="delete.retention.ms of topics", at_least=0
    )
    log_cleaner_min_cleanable_ratio: float = setting(
        0.5, doc="min.cleanable.dirty.ratio of topics", at_least=0, at_most=1
    )
    log_cleaner_min_compaction_lag_ms: int = setting(
        0, doc="min.compaction.lag.ms of topics", at_least=0
    )
    log_cleaner_max_compaction_lag_ms: int = setting(
        _MAX_LONG, doc="max.compaction.lag.ms of topics", at_least=1
    )
    log_cleaner_enable: bool = setting(True, doc="compact topics with cleanup.policy=compact")
    log_cleaner_threads: int = setting(1, doc="logs that are cleaned at once", at_least=1)
    log_cleaner_dedupe_buffer_size: int = setting(
        128 << 20,
        doc="memory of all cleaners for their maps of keys, 24 bytes a key",
        at_least=4096,
    )
    log_cleaner_io_buffer_size: int = setting(
        1 << 20, doc="bytes that all cleaners read at once, and hold back to write", at_least=1024
    )
    log_cleaner_io_buffer_load_factor: float = setting(
        0.9, doc="how full a cleaner's map may get", at_least=0.1, at_most=0.99
    )
    log_cleaner_io_max_bytes_per_second: float = setting(
        float(_MAX_LONG), doc="rate of all cleaners' reads and writes together", at_least=1
    )
    log_cleaner_backoff_ms: int = setting(
        15_000, doc="wait of an idle cleaner before it looks again", at_least=0
    )
    log_scrubber_io_max_bytes_per_second: float = setting(
        float(10 << 20), doc="rate at which rolled segments are read for damage", at_least=1
    )
    log_scrubber_interval_ms: int = setting(
        7 * 86_400_000,
        doc="time from one check of all rolled segments to the next, begun 10 minutes after the"
        " start; -1: never",
        at_least=-1,
    )
    log_max_open_files: int = setting(
        0,
        doc="open files of logs, beyond which one is closed until its next use; 0: three quarters"
        " of what the process may open (ulimit -n)",
        at_least=0,
    )
    observation: ObservationConfig = section(ObservationConfig)
    console: ConsoleConfig = section(ConsoleConfig)
    num_replica_alter_log_dirs_threads: int = setting(
        0, doc="replicas moved between directories at once; 0: one for each of log.dirs", at_least=0
    )
    replica_alter_log_dirs_io_max_bytes_per_second: int = setting(
        _MAX_LONG, doc="rate of all moves between directories together", at_least=1
    )
    num_recovery_threads_per_data_dir: int = setting(
        2, doc="threads that recover logs at start", at_least=1
    )
    message_max_bytes: int = setting(
        1_048_588, doc="max.message.bytes of topics", at_least=0, at_most=_MAX_INT
    )
    compression_type: str = setting(
        "producer",
        doc="compression.type of topics",
        one_of=("producer", "uncompressed", "gzip", "snappy", "lz4", "zstd"),
    )
    min_insync_replicas: int = setting(
        1, doc="min.insync.replicas of topics", at_least=1, at_most=_MAX_INT
    )
    unclean_leader_election_enable: bool = setting(False, doc="may a replica outside the ISR lead")

    replica_lag_time_max_ms: int = setting(
        30_000, doc="a follower behind this long leaves the ISR", at_least=1
    )
    replica_fetch_max_bytes: int = setting(
        1 << 20, doc="bytes per partition of a follower fetch", at_least=0
    )
    replica_fetch_response_max_bytes: int = setting(
        10 << 20, doc="bytes of a follower fetch", at_least=0
    )
    replica_fetch_wait_max_ms: int = setting(
        500, doc="longest wait of a follower fetch", at_least=0
    )
    replica_fetch_min_bytes: int = setting(1, doc="bytes that end a follower's wait", at_least=1)
    replica_fetch_backoff_ms: int = setting(
        1000, doc="wait after a failed follower fetch", at_least=0
    )
    follower_fetch_last_tiered_offset_enable: bool = setting(
        False, doc="an empty follower starts behind the last tiered offset (KIP-1023)"
    )
    replica_high_watermark_checkpoint_interval_ms: int = setting(
        5000, doc="time between high-watermark checkpoints", at_least=1
    )
    request_timeout_ms: int = setting(30_000, doc="inter-node request timeout", at_least=1)
    fetch_max_bytes: int = setting(55 << 20, doc="largest fetch response", at_least=1024)
    socket_request_max_bytes: int = setting(
        100 << 20, doc="largest request; a larger one is refused unread", at_least=1 << 20
    )
    connections_max_idle_ms: int = setting(
        600_000, doc="a connection without a call for so long is closed", at_least=1_000
    )
    max_connections: int = setting(
        2**31 - 1, doc="connections of a listener; further ones are closed", at_least=1
    )
    queued_max_request_bytes: int = setting(
        256 << 20, doc="bytes of produce requests under way before new ones wait", at_least=1 << 20
    )
    queued_max_response_bytes: int = setting(
        128 << 20,
        doc="bytes of answers to consumers not sent yet, above which answers get small",
        at_least=1 << 20,
    )
    quota_window_num: int = setting(
        11, doc="windows of client quotas: all but one are the burst of a client", at_least=1
    )
    quota_window_size_seconds: int = setting(1, doc="length of each of these windows", at_least=1)
    leader_replication_throttled_rate: int = setting(
        2**63 - 1, doc="bytes a second that throttled replicas here send to followers", at_least=1
    )
    follower_replication_throttled_rate: int = setting(
        2**63 - 1, doc="bytes a second that throttled replicas here fetch", at_least=1
    )
    replication_quota_window_num: int = setting(
        11, doc="windows over which the rate of throttled replicas is measured", at_least=1
    )
    replication_quota_window_size_seconds: int = setting(
        1, doc="length of each of these windows", at_least=1
    )
    producer_id_expiration_ms: int = setting(
        86_400_000, doc="a silent producer is forgotten", at_least=1
    )
    background_threads: int = setting(4, doc="threads for large disk work", at_least=1)

    remote_log_storage_system_enable: bool = setting(False, doc="tiered storage (KIP-405)")
    remote_log_storage_manager_class_name: str = setting(
        "", doc="directory, s3, or module:Class; empty: from rsm.config"
    )
    remote_log_metadata_manager_class_name: str = setting(
        "", doc="module:Class; empty: the topic-based one"
    )
    remote_log_metadata_topic_num_partitions: int = setting(
        50, doc="partitions of __remote_log_metadata", at_least=1
    )
    remote_log_metadata_topic_replication_factor: int = setting(
        3, doc="replicas of __remote_log_metadata", at_least=1
    )
    remote_log_metadata_topic_min_isr: int = setting(
        2, doc="min.insync.replicas of __remote_log_metadata", at_least=1
    )
    remote_log_metadata_topic_retention_ms: int = setting(
        -1, doc="retention of __remote_log_metadata; -1: none", at_least=-1
    )
    remote_log_direct_read_enable: bool = setting(
        True, doc="give jobs URLs of segments, by which they read the store without a node"
    )
    remote_log_lease_max_ms: int = setting(
        3_600_000,
        doc="longest hold of a job on segments in the store, and how long URLs of them last",
        at_least=1,
    )
    remote_log_manager_task_interval_ms: int = setting(
        30_000, doc="time between passes over a partition", at_least=1
    )
    remote_log_manager_task_retry_backoff_ms: int = setting(
        500, doc="first wait after a failed pass", at_least=1
    )
    remote_log_manager_task_retry_backoff_max_ms: int = setting(
        30_000, doc="longest wait after a failed pass", at_least=1
    )
    remote_log_manager_task_retry_jitter: float = setting(
        0.2, doc="random share of that wait", at_least=0, at_most=0.5
    )
    remote_log_manager_copier_thread_pool_size: int = setting(
        10, doc="uploads under way at once", at_least=1
    )
    remote_log_manager_copier_segments_per_partition: int = setting(
        4, doc="segments of one partition that are uploaded at once", at_least=1
    )
    remote_log_manager_follower_thread_pool_size: int = setting(
        2, doc="followers that start from the tier at once", at_least=1
    )
    remote_log_manager_copy_max_bytes_per_second: int = setting(
        2**63 - 1, doc="bytes of segments that the node copies to the tier a second", at_least=1
    )
    remote_log_manager_copy_quota_window_num: int = setting(
        11, doc="windows over which the rate of copies is measured", at_least=1
    )
    remote_log_manager_copy_quota_window_size_seconds: int = setting(
        1, doc="length of each of these windows", at_least=1
    )
    remote_log_manager_fetch_max_bytes_per_second: int = setting(
        2**63 - 1, doc="bytes that the node reads from the tier for consumers a second", at_least=1
    )
    remote_log_manager_fetch_quota_window_num: int = setting(
        11, doc="windows over which the rate of reads is measured", at_least=1
    )
    remote_log_manager_fetch_quota_window_size_seconds: int = setting(
        1, doc="length of each of these windows", at_least=1
    )
    remote_log_manager_expiration_thread_pool_size: int = setting(
        10, doc="deletions under way at once", at_least=1
    )
    remote_partition_remover_task_interval_ms: int = setting(
        3_600_000, doc="time between removals of deleted topics from the tier", at_least=1
    )
    remote_log_reader_threads: int = setting(10, doc="remote reads under way at once", at_least=1)
    remote_log_reader_max_pending_tasks: int = setting(
        100, doc="remote reads that may wait", at_least=1
    )
    remote_log_reader_timeout_ms: int = setting(
        30_000, doc="longest remote read; it goes on into the cache", at_least=1
    )
    remote_log_reader_chunk_bytes: int = setting(
        8 << 20, doc="bytes asked of the remote storage at once", at_least=1 << 10
    )
    remote_log_reader_chunk_cache_total_size_bytes: int = setting(
        128 << 20, doc="memory for chunks read from the remote storage", at_least=1 << 20
    )
    remote_log_reader_chunk_cache_disk_size_bytes: int = setting(
        0, doc="disk for chunks read from the remote storage; 0: none", at_least=0
    )
    remote_log_reader_prefetch_chunks: int = setting(
        2, doc="chunks read ahead of a sequential reader", at_least=0, at_most=64
    )
    remote_log_index_file_cache_total_size_bytes: int = setting(
        1 << 30, doc="size of the remote index cache", at_least=1
    )
    remote_log_metadata_custom_metadata_max_bytes: int = setting(
        128, doc="limit of a plug-in's own metadata; the pin of a segment has 12", at_least=12
    )
    remote_fetch_max_wait_ms: int = setting(
        500, doc="longest wait of a consumer for the tier", at_least=1
    )
    remote_list_offsets_request_timeout_ms: int = setting(
        30_000, doc="longest remote look-up by time", at_least=1
    )

    group_consumer_session_timeout_ms: int = setting(
        45_000, doc="a member without a heartbeat for so long is removed", at_least=1
    )
    group_consumer_heartbeat_interval_ms: int = setting(
        5_000, doc="what members are told to wait between heartbeats", at_least=1
    )
    group_consumer_max_size: int = setting(
        _MAX_INT, doc="members of one consumer group", at_least=1
    )
    offset_metadata_max_bytes: int = setting(
        4_096, doc="largest metadata of a committed offset", at_least=0
    )
    offsets_commit_timeout_ms: int = setting(
        5_000, doc="longest wait of a coordinator's answer for its replicas", at_least=1
    )
    offsets_retention_minutes: int = setting(
        10_080, doc="age at which offsets of topics without a subscriber expire", at_least=1
    )
    offsets_retention_check_interval_ms: int = setting(
        600_000, doc="time between checks for expired offsets", at_least=1
    )
    offsets_topic_num_partitions: int = setting(
        50, doc="partitions of __consumer_offsets, when it is made", at_least=1
    )
    offsets_topic_replication_factor: int = setting(
        3, doc="replicas of __consumer_offsets, when it is made", at_least=1
    )
    offsets_topic_segment_bytes: int = setting(
        100 << 20, doc="segment.bytes of __consumer_offsets, when it is made", at_least=1
    )
    transaction_state_log_num_partitions: int = setting(
        50, doc="partitions of __transaction_state, when it is made", at_least=1
    )
    transaction_state_log_replication_factor: int = setting(
        3, doc="replicas of __transaction_state, when it is made", at_least=1
    )
    transaction_state_log_min_isr: int = setting(
        2, doc="min.insync.replicas of __transaction_state, when it is made", at_least=1
    )
    transaction_state_log_segment_bytes: int = setting(
        100 << 20, doc="segment.bytes of __transaction_state, when it is made", at_least=1
    )
    transaction_max_timeout_ms: int = setting(
        900_000, doc="longest transaction timeout that a producer may ask for", at_least=1
    )
    transaction_two_phase_commit_enable: bool = setting(
        True, doc="whether a transaction may be prepared, which ends its timeout (KIP-939)"
    )
    transactional_id_expiration_ms: int = setting(
        604_800_000, doc="time after which an idle transactional id is forgotten", at_least=1
    )
    transaction_remove_expired_transaction_cleanup_interval_ms: int = setting(
        3_600_000, doc="time between checks for idle transactional ids", at_least=1
    )

    security: NodeSecurity = section(NodeSecurity)
    listener_name: dict[str, str] = field(default_factory=dict, kw_only=True, repr=False)
    """Settings of single listeners (`listener.name.*` without the prefix)."""
    rsm_config: dict[str, str] = field(default_factory=dict, kw_only=True, repr=False)
    """Settings of the remote storage manager (`rsm.config.*` without the prefix)."""
    rlmm_config: dict[str, str] = field(default_factory=dict, kw_only=True, repr=False)
    """Settings of the remote log metadata manager (`rlmm.config.*` without the prefix)."""

    def __post_init__(self) -> None:
        if not self.process_roles:
            raise ConfigError("process.roles is empty: say controller, broker or both")
        if not self.log_dirs:
            raise ConfigError("log.dirs is empty: name at least one directory")
        paths = [os.path.realpath(path) for path in self.log_dirs]
        for path in paths:
            if paths.count(path) > 1:
                raise ConfigError(f"log.dirs names the directory {path} twice")
        if not self.controller_quorum_voters and not self.controller_quorum_bootstrap_servers:
            raise ConfigError("set controller.quorum.voters or controller.quorum.bootstrap.servers")
        listeners = self.listener_endpoints()
        wanted = (
            self.controller_listener_names[0] if self.controller_listener_names else "CONTROLLER"
        )
        if self.is_controller and wanted not in listeners:
            raise ConfigError(f"a controller needs the listener {wanted!r} in listeners")
        if self.is_broker and not self.broker_listeners():
            raise ConfigError("a broker needs a listener beside those in controller.listener.names")
        self.voters()
        check_listeners(self)
        console_access(self)
        if self.log_cleaner_min_compaction_lag_ms > self.log_cleaner_max_compaction_lag_ms:
            raise ConfigError(
                "log.cleaner.min.compaction.lag.ms is above log.cleaner.max.compaction.lag.ms"
            )
        if self.auto_create_topics_enable:
            raise ConfigError(
                "auto.create.topics.enable=true: topics are not created by asking for them; create"
                " them (tidemark topics create, or an Admin), and leave this setting out"
            )

    @property
    def is_controller(self) -> bool:
        return "controller" in self.process_roles

    @property
    def is_broker(self) -> bool:
        return "broker" in self.process_roles

    @property
    def selects_closest_replica(self) -> bool:
        return self.replica_selector_class.endswith(_RACK_AWARE)

    @property
    def metadata_directory(self) -> str:
        """Directory that holds `__cluster_metadata-0`."""
        return self.metadata_log_dir or self.log_dirs[0]

    def listener_endpoints(self) -> dict[str, Endpoint]:
        """The endpoints this node listens on, by listener name; an empty host means every
        interface.
        """
        return parse_listeners("listeners", self.listeners)

    def advertised_endpoints(self) -> dict[str, Endpoint]:
        """The endpoints given to clients and other nodes: advertised.listeners over listeners."""
        return self.listener_endpoints() | parse_listeners(
            "advertised.listeners", self.advertised_listeners
        )

    def broker_listeners(self) -> dict[str, Endpoint]:
        """The listeners that serve clients and other brokers."""
        return {
            n: e
            for n, e in self.listener_endpoints().items()
            if n not in self.controller_listener_names
        }

    @property
    def inter_broker_listener(self) -> str:
        """Name of the listener on which this broker connects to others."""
        names = tuple(self.broker_listeners())
        default = "PLAINTEXT" if "PLAINTEXT" in names else names[0]
        return self.inter_broker_listener_name.upper() or default

    def security_of(self, listener: str) -> ListenerSecurity:
        """How a listener is secured. Raises ConfigError."""
        return self.security.of_listener(listener, self.listener_name)

    def channel_security(self, listener: str) -> ClientSecurity:
        """How this node connects to others on a listener: with the key of its own one there."""
        protocol = self.security.protocol_of(listener)
        return ClientSecurity(security_protocol=protocol, ssl=self.security_of(listener).ssl)

    def voters(self) -> dict[int, Endpoint]:
        """The voters of controller.quorum.voters by node id. Raises ConfigError."""
        found: dict[int, Endpoint] = {}
        for text in self.controller_quorum_voters:
            node, at, address = text.partition("@")
            try:
                if not at:
                    raise ValueError
                found[int(node)] = Endpoint.parse(address)
            except ValueError:
                raise ConfigError(
                    f"controller.quorum.voters: {text!r} is not id@host:port"
                ) from None
        return found
