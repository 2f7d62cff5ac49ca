"""The built page: files of the package, found by name and never by path.

The build puts the page into the wheel. A checkout has none until `make serve` has built it; then a page says so.
Files that shrink are compressed once, at the first request.
"""

from __future__ import annotations

import gzip
import hashlib
import html
import mimetypes
import re
from pathlib import Path

from starlette.requests import Request
from starlette.responses import Response

from upcall.hosts.web.exchange import Refusal, error_response

FOLDER = Path(__file__).with_name("page")
INDEX, EXPORT = "index.html", "export.html"
_BASE = re.compile(r"<base\b[^>]*>", re.IGNORECASE)
_HEAD = re.compile(r"<head\b[^>]*>", re.IGNORECASE)
_NONCE = "__NONCE__"
_FOREVER = "public, max-age=31536000, immutable"
_TEXTS = (".js", ".css", ".html", ".svg", ".json", ".txt")
_HASHED = re.compile(r"-[\w-]{8,}\.\w+$")
"""Names that hold a hash of the content, so a file of that name never changes."""

NOT_BUILT = """\
<!doctype html>
<html lang="en"><head><meta charset="utf-8"><title>upcall</title></head>
<body><h1>The page is not built</h1>
<p>This is a checkout of the sources. <code>make serve</code> builds the page and opens it.
The API below <code>api/</code> works without it.</p></body></html>
"""


class PageFiles:
    """The files of the built page. They are listed once: a request can name only what was there."""

    def __init__(self, folder: Path = FOLDER, base: str = "") -> None:
        """`base` is the path below which browsers see the page, where a proxy hides it from this server."""
        found = (one for one in folder.rglob("*") if one.is_file()) if folder.is_dir() else ()
        self._files = {one.relative_to(folder).as_posix(): one for one in found}
        self._base = base.rstrip("/")
        self._bodies: dict[str, bytes] = {}
        self._small: dict[str, bytes] = {}

    def index(self, request: Request) -> Response:
        """The page itself, with the place where it is mounted."""
        body = self._body(INDEX).decode() if INDEX in self._files else NOT_BUILT
        mounted = self._base or request.scope.get("root_path", "").rstrip("/")
        base = f'<base href="{html.escape(mounted)}/">'
        body = _BASE.sub(lambda _: base, body, count=1) if _BASE.search(body) else _after_head(body, base)
        nonce: str = request.state.nonce
        return Response(body.replace(_NONCE, nonce), media_type="text/html")

    def export_template(self) -> bytes:
        """The page of an export, without its data; Refusal 503 where it is not built."""
        if EXPORT not in self._files:
            raise Refusal(503, "the page is not built, so it can't be exported; export the events instead")
        return self._body(EXPORT)

    def file(self, name: str, request: Request) -> Response:
        """One file of the page; 404 for any other name."""
        if name not in self._files or name in (INDEX, EXPORT):
            return error_response(404, "there is nothing here")
        kind = mimetypes.guess_type(name)[0] or "application/octet-stream"
        tag = self._tag(name)
        headers = {"cache-control": _FOREVER if _HASHED.search(name) else "no-cache", "etag": tag}
        if name.endswith(_TEXTS):
            headers["vary"] = "accept-encoding"
        if tag in (one.strip() for one in request.headers.get("if-none-match", "").split(",")):
            return Response(status_code=304, headers=headers)
        if name.endswith(_TEXTS) and accepts_gzip(request.headers.get("accept-encoding", "")):
            return Response(
                self._compressed(name), headers={**headers, "content-encoding": "gzip"}, media_type=kind
            )
        return Response(self._body(name), headers=headers, media_type=kind)

    def _compressed(self, name: str) -> bytes:
        if name not in self._small:
            self._small[name] = gzip.compress(self._body(name), 9, mtime=0)
        return self._small[name]

    def _tag(self, name: str) -> str:
        return f'W/"{hashlib.sha256(self._body(name)).hexdigest()[:20]}"'

    def _body(self, name: str) -> bytes:
        if name not in self._bodies:
            self._bodies[name] = self._files[name].read_bytes()
        return self._bodies[name]


def accepts_gzip(header: str) -> bool:
    """Tell whether an Accept-Encoding header allows gzip."""
    for one in header.lower().split(","):
        name, _, weight = one.partition(";")
        if name.strip() in ("gzip", "*"):
            return weight.replace(" ", "") not in ("q=0", "q=0.0", "q=0.00", "q=0.000")
    return False


def _after_head(body: str, base: str) -> str:
    return _HEAD.sub(lambda found: found[0] + base, body, count=1)
