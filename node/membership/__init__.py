"""The broker at the controller: its identity, its lifecycle, and the directories of its replicas.

`identity.BrokerIdentity` holds the broker's id and current epoch; everything that sends requests in
the broker's name shares it. `lifecycle.BrokerLifecycle` registers, sends heartbeats and shuts down
in order (KIP-631). `directory_assignments.DirectoryAssignments` reports the log directory of each
replica (KIP-858). `controller_calls.ControllerCaller` is the protocol of calls to the controller.

Rooms above may import all of it; outside of node only the simulation of the tests does.

Failed calls are repeated. Only a first registration has a limit,
initial.broker.registration.timeout.ms, after which the process stops. Heartbeats wait for nothing
but their own answer.
"""
