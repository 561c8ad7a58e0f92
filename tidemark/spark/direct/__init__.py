"""Reads of the tier past the brokers: tasks get objects of the store, brokers only name them.

    pieces      byte ranges of objects, leases, and slices of them; pure
    plans       asks the leaders for pieces, leases and new URLs, in the driver or a worker
    objects     gets byte ranges of an object, by http(s) or from a file
    ranges      reads ranges ahead, and makes chunks of whole batches
    batches     checks that bytes are the record batches that the plan means; pure
    reading     reads one slice within a task
    leases      renews the leases of the slices that a worker reads
    snapshots   plans in a file, which give the same records again

A leader answers PlanRead with segments of its own lineage and the offset from which only brokers
have records. Its lease holds the objects of the range against retention until it ends.

The room promises the records that a read through brokers gives. Bytes that are gone, unreachable,
or contradict the plan are asked of the brokers, which have them or say why not.
"""
