"""All logs of a node's log directories."""
