"""The log on disk: segments, indexes, epochs, producer state, recovery, retention; files as Apache
Kafka writes them.
"""
