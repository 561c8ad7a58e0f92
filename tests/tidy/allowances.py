"""Places that do not keep a rule of shape or voice yet. Entries may only shrink and go."""

from __future__ import annotations

TABLES = {
    "tidemark/config/server.py:ServerConfig": "an attribute per setting",
    "tidemark/config/topic.py:TopicConfig": "an attribute per setting",
    "commitlog/disk/memory_files.py:MemoryDirectory": "the Directory protocol and a verb per fault",
}
"""Classes without a limit, and why."""

SIZES = {
    "commitlog/log/log.py:Log": (32, 16),
    "commitlog/segment/segment.py:Segment": (29, 23),
    "quorum/replica/metadata_log.py:ReplicatedLog": (36, 6),
}
"""(public methods, attributes) of classes beyond the limits."""

SPLIT = {
    "tidemark/client/admin_cluster.py:ClusterAdmin",
    "tidemark/client/admin_logs.py:LogAdmin",
    "tidemark/client/admin_quorum.py:QuorumAdmin",
}
"""Bases that are a part of their only heir."""
