"""Remote storage managers: the bytes of remote segments.

- `manager`: the protocol RemoteStorageManager, its types, and the names of files.
- `sidecar`: the object beside a log, with all the rest of the segment and its checksums (pure).
- `objects`: reads of a sidecar's table and parts from a store.
- `marker`: the object at the root of a tier, by which one that looks empty is known.
- `directory`: a tier in a directory, on a network file system or for the quickstart.
- `deadlines`: the end of HTTP calls that trickle, or hang while the node stops.
- `s3`: a tier on S3, MinIO, or another store of S3's protocol.
- `direct`: the protocol DirectStore, of stores that clients can read themselves.
- `factory`: the manager that a node's configuration names.
- `inventory`, `listing`, `verifying`: objects against the metadata (pure), lists of a store, and a
  check of every byte, for tools.
- `index_check`: the indexes of a segment against its batches.
- `recovered`: segments as their sidecars tell them, for a rebuild of lost metadata.

Outsiders import `factory`, and tools the last four; a manager of their own implements the protocol
in `manager`. A store has no notion of offsets or epochs. Copies and deletions are idempotent, and a
file appears whole or not at all. Files have the names of Apache Kafka's local tier.
"""
