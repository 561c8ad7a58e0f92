"""Logins and access control entries: the parts that clients, tools and nodes share.

    scram    logging in by name and password without sending it (RFC 5802, RFC 7677)
    acls     access control entries as Kafka has them: resources, operations, patterns, filters

All of it is pure: messages and values in, messages and verdicts out. Settings of secured
connections are in `tidemark.config.security`, keys and certificates in `tidemark.wire.credentials`.
A node decides in `quorum.access`, which has the ACLs and the users of the metadata log.

The room promises that a password never leaves the client, and that a comparison of secrets takes
the same time whatever they are. Malformed input raises an error of the table.
"""
