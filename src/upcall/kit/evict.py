"""Keeps large results out of the conversation and the log: the whole goes into the workspace, a preview stays."""

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
from upcall.kit.tokens import BYTES
from upcall.messages import Call, Image, Result, replace_surrogates
from upcall.tools import to_result

FOLDER = "/large_tool_results"
OWN = frozenset({"edit_file", "glob", "grep", "ls", "read_file", "write_file"})
"""The file tools cut what they return by themselves, and read what was put away here."""

_SHOWN = 1_000


def evict(tokens: int = 25_000) -> Kit:
    """Store a large result in the workspace, and show the model how it begins and ends, its size and its path.

    Text, JSON, bytes and pictures are stored; the results of the file tools are left alone. It happens before the
    result is stored, so the log only has the preview.

    tokens: the threshold; a token is four bytes here
    """
    check_number("evict", "tokens", tokens, whole=True)
    most, writing = tokens * BYTES, set[str]()
    shown = min(_SHOWN, tokens)

    def begin(session: SessionAccess) -> None:
        if session.workspace is None:
            example = "Agent(workspace=Folder('work')), or InLog()"
            raise BadKit(
                "evict", f"{session.agent} has no workspace to keep large results in; give it one: {example}"
            )

    def keep(ctx: Context, call: Call, value: Any) -> Awaitable[Result | None] | None:
        small = call.name in OWN or (isinstance(value, str) and len(value) * BYTES <= most)
        return None if small else put_away(ctx, call, value)

    async def put_away(ctx: Context, call: Call, value: Any) -> Result | None:
        files = ctx.workspace
        if files is None:
            return None
        result, bodies = _too_large(call.id, value, most, shown)
        if not bodies:
            return None
        told: list[str] = []
        for number, body in enumerate(bodies, 1):
            name = f"{call.name}_{call.id}" + (f"_{number}" if number > 1 else "")
            told.append(await _store(ctx, files, name, body, writing))
        told.append(_preview(result.text, shown) if len(result.text) * BYTES > most else result.text)
        return Result(call.id, "\n".join(told), result.is_error, images=result.images)

    return Kit(Hooks(begin_session=[begin]), results=[keep])


def _too_large(call_id: str, value: Any, most: int, shown: int) -> tuple[Result, list[bytes]]:
    """The result without what is too large, or with the text it is previewed by; and the bodies to put away."""
    if isinstance(value, bytes | bytearray | memoryview):
        data = cast("bytes", value)
        if len(data) <= most:
            return Result(call_id, ""), []
        return Result(call_id, _bytes_shown(data, shown)), [data if isinstance(value, bytes) else bytes(data)]
    result = Result(call_id, replace_surrogates(value)) if isinstance(value, str) else to_result(call_id, value)
    body = result.text.encode()
    bodies = [body] if len(body) > most else []
    if sum(len(image.data) for image in result.images) > most:
        bodies += [_decoded(image) for image in result.images if image.data]
        result = result.replace(images=tuple(image for image in result.images if not image.data))
    return result, bodies


def _decoded(image: Image) -> bytes:
    try:
        return base64.b64decode(image.data)
    except (binascii.Error, ValueError):
        return image.data.encode()


async def _store(ctx: Context, files: Files, name: str, body: bytes, writing: set[str]) -> str:
    """Put it away and say where. Call ids repeat from session to session: only one of them gets the plain name."""
    plain = path = f"{FOLDER}/{name}"
    own = f"{plain}_{digest(ctx.id)[:8]}"
    free = not ctx.parent and plain not in writing
    if free:
        writing.add(plain)
    try:
        if not free or await _is_there(files, plain):
            path = own
        await files.write(path, body)
    except WorkspaceError as error:
        return f"(This result has {len(body):,} bytes, and only this of it is left: it can't be stored, {error}.)"
    finally:
        if free:
            writing.discard(plain)
    return f"(This result has {len(body):,} bytes. It is stored whole in {path}; read there what you need.)"


async def _is_there(files: Files, path: str) -> bool:
    try:
        await files.look(path)
    except WorkspaceError as error:
        return not error.missing
    return True


def _preview(text: str, shown: int) -> str:
    left = len(text) - 2 * shown
    return f"{text[:shown]}\n… {left:,} characters …\n{text[-shown:]}" if left > 0 else text


def _bytes_shown(data: bytes, shown: int) -> str:
    """The first and last bytes as text where they are some, else in hexadecimal."""
    head, tail = bytes(data[:shown]), bytes(data[-shown:])
    if b"\0" not in head + tail:
        try:
            return f"{head.decode()}\n…\n{tail.decode()}"
        except UnicodeDecodeError:
            pass
    return f"binary: {head[:32].hex(' ')} … {tail[-32:].hex(' ')}"
