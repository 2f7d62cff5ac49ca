"""A person's message: from the content blocks of an editor to what a model reads."""

from __future__ import annotations

from typing import Any, cast
from urllib.parse import unquote, urlsplit

from upcall.jsonrpc.errors import INVALID_PARAMS, RpcError
from upcall.messages import Image, Message, Part, Text

_MOST_BLOCKS = 1000


def message_of(blocks: list[dict[str, Any]]) -> Message:
    """Return the message in content blocks; RpcError says which block can't be read."""
    if len(blocks) > _MOST_BLOCKS:
        raise RpcError(INVALID_PARAMS, f"a prompt may have at most {_MOST_BLOCKS} content blocks")
    parts: list[Part] = []
    for number, block in enumerate(blocks):
        part = _part(block)
        if part is None:
            raise RpcError(INVALID_PARAMS, f"prompt[{number}] is not a content block that this agent accepts")
        parts.append(part)
    joined: list[Part] = []
    for part in parts:  # one text reads better than many
        if isinstance(part, Text) and joined and isinstance(joined[-1], Text):
            joined[-1] = Text(joined[-1].text + part.text)
        else:
            joined.append(part)
    message = Message("user", tuple(joined))
    if not message.text.strip() and not any(isinstance(part, Image) for part in joined):
        raise RpcError(INVALID_PARAMS, "the prompt is empty; write what the agent should do")
    return message


def _part(block: dict[str, Any]) -> Part | None:
    match block:
        case {"type": "text", "text": str(text)}:
            return Text(text)
        case {"type": "image", "data": str(data), "mimeType": str(kind)}:
            return Image(data, kind)
        case {"type": "resource_link", "uri": str(uri)}:
            return Text(f"[{block.get('name') or 'file'}]({_place(uri)})")
        case {"type": "resource", "resource": {"uri": str(uri), "text": str(text)}}:
            return Text(f'\n<file path="{_place(uri)}">\n{text}\n</file>\n')
        case {"type": "resource", "resource": {"uri": str(uri), "blob": str(data)}}:
            kind = str(cast("dict[str, Any]", block["resource"]).get("mimeType"))
            return (
                Image(data, kind)
                if kind.startswith("image/")
                else Text(f"[a file that is not text]({_place(uri)})")
            )
        case _:
            return None


def _place(uri: str) -> str:
    """Return the path of a file's address, and any other address as it is."""
    try:
        found = urlsplit(uri)
    except ValueError:
        return uri
    return unquote(found.path) if found.scheme == "file" else uri


def blocks_of(message: Message) -> list[dict[str, Any]]:
    """Return a message as content blocks, to show it again."""
    blocks: list[dict[str, Any]] = []
    for part in message.parts:
        if isinstance(part, Text) and part.text:
            blocks.append({"type": "text", "text": part.text})
        elif isinstance(part, Image) and part.data:
            blocks.append({"type": "image", "data": part.data, "mimeType": part.media_type})
    return blocks
