"""Records of the coordinators' internal topics, byte for byte as Kafka 4.3 writes them.

Outsiders import all modules of it.

    types           a type of record: schemas of its key and value, and its versions
    groups          __consumer_offsets: offsets, and groups of the consumer protocol (KIP-848)
    offset_codec    committed offsets, faster
    transactions    __transaction_state
    text            both as the JSON of Kafka's dump tool

A key begins with the number of its type, a value with the version of its schema. A null value
deletes what its key names.
"""
