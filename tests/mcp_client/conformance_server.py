"""Run conformance clients in forks of one process that has imported everything: 50 imports would take minutes.

conformance_server.py SOCKET: each connection sends one JSON object with `url`, `scenario` and `context`, and gets
the client's exit code.
"""

from __future__ import annotations

import asyncio
import importlib
import json
import os
import socket
import sys

from mcp_client.conformance_client import main

AT_ONCE = 3


def serve(path: str) -> None:
    importlib.import_module("upcall.links.mcp.transports")  # before the first fork
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind(path)
        listening.listen(100)
        running = 0
        while True:
            connection, _ = listening.accept()
            while running >= AT_ONCE:
                os.wait()
                running -= 1
            running += 1
            if os.fork() == 0:
                listening.close()
                os._exit(run(connection))
            connection.close()


def run(connection: socket.socket) -> int:
    """Run one client, and tell whoever waits for it how it ended."""
    with connection, connection.makefile("rw") as wire:
        given = json.loads(wire.readline())
        try:
            asyncio.run(main(given["url"], given["scenario"], given["context"]))
            code = 0
        except BaseException as error:
            print(f"{type(error).__name__}: {error}", file=sys.stderr)
            code = 1
        wire.write(f"{code}\n")
    return code


if __name__ == "__main__":
    serve(sys.argv[1])
