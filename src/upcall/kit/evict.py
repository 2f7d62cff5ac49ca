"""Keep large results out of the conversation and the log: store them in the workspace and leave a preview."""

from __future__ import annotations

import base64
import binascii
from collections.abc import Awaitable
from typing import Any, cast

from upcall.agent import Kit
from upcall.contracts import Context, Files, SessionAccess
from upcall.errors import BadKit, WorkspaceError
from upcall.events import digest
from upcall.hooks import Hooks
from upcall.kit.numbers import check_number
from upcall.kit.tokens import BYTES_PER_TOKEN
from upcall.messages import Call, Image, Result, replace_surrogates
from upcall.tools import to_result

FOLDER = "/large_tool_results"
FILE_TOOLS = frozenset({"edit_file", "glob", "grep", "ls", "read_file", "write_file"})
"""The file tools shorten their own results, and the model reads stored results with them."""

_PREVIEW_CHARS = 1_000


def evict(tokens: int = 25_000) -> Kit:
    """Store a large result in the workspace, and show the model its beginning and end, its size and its path.

    Text, JSON, bytes and images are stored; the results of the file tools stay as they are. It happens before the
    result is stored, so the log only has the preview.

    tokens: the threshold; a token is four bytes here
    """
    check_number("evict", "tokens", tokens, whole=True)
    max_bytes, writing = tokens * BYTES_PER_TOKEN, set[str]()
    preview_chars = min(_PREVIEW_CHARS, tokens)

    def require_workspace(session: SessionAccess) -> None:
        if session.workspace is None:
            example = "Agent(workspace=Folder('work')), or InLog()"
            raise BadKit(
                "evict", f"{session.agent} has no workspace to keep large results in; give it one: {example}"
            )

    def keep_small(ctx: Context, call: Call, value: Any) -> Awaitable[Result | None] | None:
        small = call.name in FILE_TOOLS or (isinstance(value, str) and len(value) * BYTES_PER_TOKEN <= max_bytes)
        return None if small else store_large(ctx, call, value)

    async def store_large(ctx: Context, call: Call, value: Any) -> Result | None:
        files = ctx.workspace
        if files is None:
            return None
        result, bodies = _split_large(call.id, value, max_bytes, preview_chars)
        if not bodies:
            return None
        lines: list[str] = []
        for number, body in enumerate(bodies, 1):
            name = f"{call.name}_{call.id}" + (f"_{number}" if number > 1 else "")
            lines.append(await _store(ctx, files, name, body, writing))
        lines.append(
            _preview(result.text, preview_chars) if len(result.text) * BYTES_PER_TOKEN > max_bytes else result.text
        )
        return Result(call.id, "\n".join(lines), result.is_error, images=result.images)

    return Kit(Hooks(begin_session=[require_workspace]), results=[keep_small])


def _split_large(call_id: str, value: Any, max_bytes: int, preview_chars: int) -> tuple[Result, list[bytes]]:
    """Return the result without its large images, or with the text to preview; and the bodies to store."""
    if isinstance(value, bytes | bytearray | memoryview):
        data = cast("bytes", value)
        if len(data) <= max_bytes:
            return Result(call_id, ""), []
        return Result(call_id, _preview_bytes(data, preview_chars)), [
            data if isinstance(value, bytes) else bytes(data)
        ]
    result = Result(call_id, replace_surrogates(value)) if isinstance(value, str) else to_result(call_id, value)
    body = result.text.encode()
    bodies = [body] if len(body) > max_bytes else []
    if sum(len(image.data) for image in result.images) > max_bytes:
        bodies += [_image_bytes(image) for image in result.images if image.data]
        result = result.replace(images=tuple(image for image in result.images if not image.data))
    return result, bodies


def _image_bytes(image: Image) -> bytes:
    try:
        return base64.b64decode(image.data)
    except (binascii.Error, ValueError):
        return image.data.encode()


async def _store(ctx: Context, files: Files, name: str, body: bytes, writing: set[str]) -> str:
    """Store a body and return a line that says where. Sessions share call ids; one of them gets the plain name."""
    plain = path = f"{FOLDER}/{name}"
    unique = f"{plain}_{digest(ctx.id)[:8]}"
    free = not ctx.parent and plain not in writing
    if free:
        writing.add(plain)
    try:
        if not free or await _exists(files, plain):
            path = unique
        await files.write(path, body)
    except WorkspaceError as error:
        return f"(This result has {len(body):,} bytes and can't be stored: {error}. Only this part of it is kept.)"
    finally:
        if free:
            writing.discard(plain)
    return (
        f"(This result has {len(body):,} bytes. All of it is stored in {path}; read what you need from that file.)"
    )


async def _exists(files: Files, path: str) -> bool:
    try:
        await files.look(path)
    except WorkspaceError as error:
        return not error.missing
    return True


def _preview(text: str, preview_chars: int) -> str:
    hidden = len(text) - 2 * preview_chars
    return f"{text[:preview_chars]}\n… {hidden:,} characters …\n{text[-preview_chars:]}" if hidden > 0 else text


def _preview_bytes(data: bytes, preview_chars: int) -> str:
    """Return the first and last bytes, as text if they are UTF-8, else in hexadecimal."""
    head, tail = bytes(data[:preview_chars]), bytes(data[-preview_chars:])
    if b"\0" not in head + tail:
        try:
            return f"{head.decode()}\n…\n{tail.decode()}"
        except UnicodeDecodeError:
            pass
    return f"binary: {head[:32].hex(' ')} … {tail[-32:].hex(' ')}"
