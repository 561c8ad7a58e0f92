"""The file system as a log sees it, and the small text files of a log directory."""
