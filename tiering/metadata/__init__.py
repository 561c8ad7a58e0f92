"""Remote log metadata: the states of remote segments, and the managers that store them.

- `segments`: the values, and the table of legal state changes.
- `manager`: the protocol RemoteLogMetadataManager, which the rest of the tier depends on.
- `topic_based`: the real one, over the topic `__remote_log_metadata` (`topic`, `codec`).
- `memory`: the verified fake, for tests and benches.
- `cache`, `lookups`: the fold of a partition's records, and the queries on it.
- `followed`, `flat_store`, `flat_file`: a metadata partition in memory, and its KIP-405 files.
- `history`: the fold of the whole topic, for tools.
- `rows`, `ranges`: the segments of a partition in a hundred bytes each, and their order.

Outsiders import `topic_based` to create the manager that a node's configuration names, and for
tools `codec`, `formatter` and `history`. The codec writes Kafka's bytes; golden files hold it. All
nodes fold the same records in the same order, so all refuse the same illegal records. A write
returns after its record was read back.
"""
