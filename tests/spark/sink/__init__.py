"""The sink: decisions, their steps under failures, tasks, and whole queries."""
