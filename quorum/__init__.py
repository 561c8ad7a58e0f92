"""The metadata quorum: Raft over the log `__cluster_metadata`, the metadata image, the controller.

From the bottom up: `raft` (the pure replica), `replicated_log` and `raft_server` (its edge),
`raft_client` (what others see of it), `image` (the metadata as an immutable value, and deltas),
`metadata_loader` (committed records -> images -> publishers, snapshots), `controller` (the pure
controller and its edge), `controller_server` (the services of a controller), and, for every node,
`controller_client` (asking the active controller), `admin_answers` and `admin_service`.
"""
