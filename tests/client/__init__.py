"""The client, against a fake Log service and against real nodes."""
