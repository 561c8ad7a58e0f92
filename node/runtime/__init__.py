"""The process around a node: clocks, tasks, directories, health."""
