"""The controller: the pure state machine that decides on the cluster's metadata, and its edge.

`ControllerCore` generates records from the image, a request and the time; `QuorumController`
appends them to the metadata log, replays them and answers when they are committed.
"""
