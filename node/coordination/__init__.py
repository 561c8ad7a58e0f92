"""The coordinators of a broker: consumer groups, on the partitions of an internal topic it leads.

`groups.GroupCoordinator` answers the service Groups, on state machines of `coordinator.groups`.
`leaderships` gives the runtime of `coordinator.runtime` the partitions that this broker leads, and
takes them away. `internal_topics` makes a topic at its first use.

`node.broker` puts it together; nothing else imports it but the tests.

A coordinator is where the leader of its partition is: whoever may append decides. It appends as a
client with acks=all does, so an answer means that the decision is as durable as any record
(RULES.md rule 9).
"""
