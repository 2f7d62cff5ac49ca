"""What the conformance suite starts for each scenario: it hands the scenario to conformance_server.py.

conformance_start.py SOCKET URL
"""

from __future__ import annotations

import json
import os
import socket
import sys

with socket.socket(socket.AF_UNIX) as wire:
    wire.connect(sys.argv[1])
    given = {
        "url": sys.argv[2],
        "scenario": os.environ.get("MCP_CONFORMANCE_SCENARIO", ""),
        "context": json.loads(os.environ.get("MCP_CONFORMANCE_CONTEXT") or "{}"),
    }
    wire.sendall(json.dumps(given).encode() + b"\n")
    sys.exit(int(wire.makefile().readline() or 1))
