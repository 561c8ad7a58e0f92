"""Replication between brokers: leaders and followers made of the metadata, the ISR, fetchers."""
