"""The web page and its API as an ASGI application, to mount in a service of your own."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

from upcall.app import Runtime
from upcall.hosts.http.access import Authenticate, Places, origin_of
from upcall.hosts.web.application import WebApplication
from upcall.observe.redact import Redactor

__all__ = ["Authenticate", "WebApplication", "app"]


def app(
    runtime: Runtime,
    authenticate: Authenticate,
    *,
    origins: Sequence[str] = (),
    view_only: bool = False,
    redactor: Redactor | None = None,
    index: str | os.PathLike[str] | None = None,
) -> WebApplication:
    """The page and its API over a runtime's log, below whatever path it is mounted at.

    authenticate: called with each request to the API, sync or async; returns the principal's name, or None for a
        request that may not come in. Answers say `right: asserted`
    origins: further origins whose pages may use the API, such as that of a proxy which changes the Host
    view_only: nothing can be answered, started or changed
    redactor: what is hidden in everything that is shown; without one, the built-in rules
    index: a file for the index, which makes long lists fast and the log searchable. It can be deleted at any time

    It runs what its requests start. Run `runtime.work()` beside it, so that answered sessions continue.
    """
    places = Places(origins=frozenset(origin_of(url) for url in origins))
    hides = redactor or Redactor(environ=os.environ)
    file = Path(index) if index is not None else None
    return WebApplication(runtime, authenticate, places=places, view_only=view_only, redactor=hides, index=file)
