"""The controller: the pure state machine that decides on the cluster's metadata, and its queue.

`core.ControllerCore` generates records from the image, a request and the time. `requests.REQUESTS`
has one row per request, with the rule that generates its records. Rules lie in modules by subject:
topics, partitions, elections, configs, features, security. `partition_change` is the only
place that computes the next state of a partition.

`quorum_controller.QuorumController` runs the core: it appends the records to the metadata log,
replays them, and answers when they are committed.

Outsiders may import `core`, `quorum_controller` and `requests`, which `quorum.services` puts on the
network, `configs` for the precedence of settings, and `security` for who heeds ACLs.

Rules are pure functions: time, randomness and settings are arguments. The same image and request
give the same records on every node. An answer is given only after everything it depends on is
committed (RULES.md rule 7).
"""
