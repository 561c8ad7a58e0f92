"""The command line: `tidemark`."""
