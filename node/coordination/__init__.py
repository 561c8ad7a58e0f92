"""The coordinators of a broker: groups and transactions, on partitions of internal topics it leads.

`coordinators.Coordinators` puts them together for `node.broker`; nothing else imports this room but
the tests.

- `groups.GroupCoordinator` answers the service Groups, on state machines of `coordinator.groups`.
  `transactions.TransactionCoordinator` answers Transactions, on `coordinator.transactions`.
- `leaderships` gives the runtime of `coordinator.runtime` the partitions that this broker leads,
  and takes them away. `internal_topics` makes a topic at its first use.
- `verification` adds a partition to a transaction before its leader appends the first batch.
- `marker_sender` tells the leaders of partitions the outcome, and `marker_writer` writes it there.

A coordinator is where the leader of its partition is: whoever may append decides. It appends as a
client with acks=all does, so an answer means that the decision is as durable as any record
(RULES.md rule 9).
"""
