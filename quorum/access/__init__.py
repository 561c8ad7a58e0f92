"""Authentication and authorization of all calls on all listeners of a node.

    guard        the interceptor of each server: who calls, and whether the call goes on
    rules        what each RPC needs; a test holds the table against proto/
    verdicts     the rules applied to a request and its answer (pure)
    authorizer   the ACLs of the metadata log, as Kafka reads them
    principals   the name of whom a certificate is for
    logins       tokens: SCRAM logins of this node, and users' JWTs
    keys         the key and certificate of a listener
    listeners    the guard of a listener, made from the settings
    audit        the log of what was denied and what administrators changed

Others import the modules `guard`, `keys`, `listeners` and `verdicts`. The room promises that no
call of a service reaches its handler unseen. A method without a row is refused wherever callers are
known. An authorizer reads the newest committed image: a change holds within a moment on each node.
"""
