"""Reads of remote segments, and their caches."""
