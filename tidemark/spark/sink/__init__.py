"""The sink: rows of Spark to topics, each batch as a whole and once.

    writers, portable    the classes that Spark calls
    options              the options of a write, parsed and checked
    columns              Arrow batches of Spark as tables for `send_arrow`, by topic
    tasks                the work of a task attempt: send, and leave the transaction open
    decision             which batch counts, and whose attempts of it: the record of that; pure
    core                 the steps of the driver's commit and abort; pure
    coordinators         its calls of the cluster

Every task attempt writes in a transaction of its own and leaves it open. The driver prepares those
of a batch, so that none times out. It decides by one record, and then commits them. A task that is
repeated, a batch that is replayed, and a driver that dies between two steps change nothing that
readers with isolation_level=read_committed see.

With delivery.guarantee=at-least-once the tasks send without transactions, and the driver has
nothing to do.
"""
