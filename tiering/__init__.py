"""Tiered storage (KIP-405): rolled segments of a log go to an object store, and are read back
from there.

Where to look: `metadata` (what is known of a remote segment) and its `codec`; `storage` (the
RemoteStorageManager protocol) with `directory_storage` and `s3_storage`; `metadata_manager` (the
RemoteLogMetadataManager protocol) with `topic_metadata`; `planner` (every decision, pure);
`manager` (the RemoteLogManager, what a node holds), whose tasks are `copier`, `expirer` and
`reader`.
"""
