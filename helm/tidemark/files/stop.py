"""Runs before a broker's pod is stopped: PORT SECONDS.

Waits, for SECONDS at most, until no partition would lose its minimum of in-sync replicas by the
stop. The broker serves meanwhile.
"""

import http.client
import sys
import time


def may_stop(port: int) -> bool:
    """Whether no partition needs the broker, or it has ended."""
    try:
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=5)
        connection.request("GET", "/restartz")
        return connection.getresponse().status == 200
    except ConnectionRefusedError:
        return True
    except (OSError, http.client.HTTPException):
        return False


deadline = time.monotonic() + float(sys.argv[2])
while not may_stop(int(sys.argv[1])) and time.monotonic() < deadline:
    time.sleep(0.5)
