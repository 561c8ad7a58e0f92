"""Transactions (KIP-98, KIP-890): the state of a partition of `__transaction_state`.

Outsiders import `shard` with its settings, and `transaction` for what a marker says.

    shard           all transactional ids of a partition: replay, requests, deadlines, markers
    transaction     one transactional id, from state to state

    EMPTY -> ONGOING -> PREPARE_COMMIT -> COMPLETE_COMMIT -> ONGOING ...
                    \\-> PREPARE_ABORT  -> COMPLETE_ABORT  -> ONGOING ...

All of it is pure. A decision returns records and an answer, and state changes only by replaying
records. Each transaction ends with a higher epoch (KIP-890), so what is late of one transaction can
not get into the next one. Once PREPARE is committed the outcome stands; markers tell it to the
partitions, as often as it takes.
"""
