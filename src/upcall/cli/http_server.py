"""The HTTP server of a command: its socket, its limits, and when it accepts connections."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import socket
from collections.abc import Generator
from typing import TYPE_CHECKING, Any

from upcall.errors import SetupError, UpcallError

if TYPE_CHECKING:
    import uvicorn

FILES = 4096
"""Files that a server may have open: each connection is one."""

_BACKLOG = 2048
_GRACE = 2
"""Seconds that open requests have to end when the server stops."""


def allow_files(wanted: int = FILES) -> None:
    """Allow this process so many open files, if the system does."""
    import resource

    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    most = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
    if soft != resource.RLIM_INFINITY and soft < most:
        with contextlib.suppress(OSError, ValueError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (most, hard))


def server_for(
    application: Any, host: str, port: int, tls_cert: str | None = None, tls_key: str | None = None
) -> uvicorn.Server:
    """A server for an ASGI application, which leaves signals to the command."""
    import uvicorn

    from upcall.hosts.http.connections import MOST_CONNECTIONS, bounded_protocol

    class Server(uvicorn.Server):
        """A server that leaves signals to the command."""

        @contextlib.contextmanager
        def capture_signals(self) -> Generator[None]:
            yield

    config = uvicorn.Config(
        application, host=host, port=port, log_level="error", access_log=False, lifespan="off",
        proxy_headers=False, server_header=False, date_header=False, backlog=_BACKLOG, ws="none",
        ssl_certfile=tls_cert, ssl_keyfile=tls_key, timeout_graceful_shutdown=_GRACE,
        h11_max_incomplete_event_size=32_768, timeout_keep_alive=30, http=bounded_protocol(),
        limit_concurrency=MOST_CONNECTIONS,
    )  # fmt: skip
    try:
        config.load()
    except (OSError, ValueError) as error:
        raise SetupError(f"--tls-cert {tls_cert} can't be used: {error}") from None
    return Server(config)


@contextlib.contextmanager
def listening_at(host: str, port: int) -> Generator[socket.socket]:
    """A socket at the address to serve.

    It names its protocol: asyncio sends small answers without delay only on sockets that do.
    """
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP) as listening:
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            listening.bind((host, port))
            listening.listen(_BACKLOG)
        except OSError as error:
            how = "; --port 0 picks a free port" if error.errno == errno.EADDRINUSE else ""
            raise UpcallError(f"can't listen on {host}:{port}: {error.strerror or error}{how}") from None
        yield listening


async def wait_until_started(server: uvicorn.Server, serving: asyncio.Future[None]) -> None:
    """Return when the server accepts connections; raises what kept it from that."""
    while not server.started:
        if serving.done():
            serving.result()
            raise UpcallError("the server did not start")
        await asyncio.sleep(0.01)
