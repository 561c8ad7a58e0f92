"""The services of the quorum on a node, and the calls a node makes to the controller."""
