"""The gRPC services of a controller, the Admin service of every node, and calls to the controller.

`controller_server.ControllerServer` serves Raft, Controller, Admin and health on the controller
listener. `admin_service` serves Admin on every node: one row per RPC says where it is answered.
`admin_answers` and `config_answers` are pure functions of an image. `controller_client` finds the
active controller and forwards to it. `voter_admin` changes the quorum itself (KIP-853).
`controller_registration` keeps a controller registered (KIP-919). `node_answers` are about the
answering node itself.

Outsiders may import `controller_server`, `controller_client`, `admin_service`, `admin_answers`,
`node_answers`, `listening`, and `serving` for services of their own.

Failures are answers: an error goes into `error_code` and `error_message` of the response. A request
is forwarded at most once. Every call to the controller is safe to repeat.
"""
