"""Kafka's coordinators: consumer groups with their offsets, and transactions.

Both keep their state in partitions of an internal topic, `__consumer_offsets` and
`__transaction_state`, in records of Kafka's own formats.

    records/    the records of both topics
    runtime/    a state machine for each partition: load, append, replay, answer on commit
    groups/     consumer groups and their offsets; pure
    transactions/   transactional ids, from state to state; pure

Outsiders import `records.groups` and `records.transactions` for the records, `records.types` for
their errors, and `records.text` for the text that Kafka's dump tool prints of them. A broker's room
`node/coordination` drives `runtime` and `groups`.

The room promises Kafka's bytes: golden files of Apache Kafka test it in both directions.
"""
