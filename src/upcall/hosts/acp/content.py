"""A person's message: from the content blocks of an editor to what a model reads."""

from __future__ import annotations

from itertools import groupby
from typing import Any, cast
from urllib.parse import unquote, urlsplit

from upcall.jsonrpc.errors import INVALID_PARAMS, RpcError
from upcall.messages import Image, Message, Part, Text
from upcall.safety.bounds import PROMPT
from upcall.safety.framing import harmless_file

_CLOSING = '"<>'
_MOST_BLOCKS, _LONGEST_NAME = 1000, 4_096


def message_of(blocks: list[dict[str, Any]]) -> Message:
    """Return the message in content blocks; RpcError says which block can't be read."""
    if len(blocks) > _MOST_BLOCKS:
        raise RpcError(INVALID_PARAMS, f"a prompt may have at most {_MOST_BLOCKS} content blocks")
    _check_sizes(blocks)
    parts: list[Part] = []
    for number, block in enumerate(blocks):
        part = _part(block)
        if part is None:
            raise RpcError(INVALID_PARAMS, f"prompt[{number}] is not a content block that this agent accepts")
        parts.append(part)
    if sum(len(part.text) for part in parts if isinstance(part, Text)) > PROMPT:
        raise RpcError(INVALID_PARAMS, f"a prompt may have at most {PROMPT} characters of text")
    joined: list[Part] = []
    for is_text, group in groupby(parts, lambda part: isinstance(part, Text)):
        if is_text:  # one text reads better than many
            joined.append(Text("".join([part.text for part in group if isinstance(part, Text)])))
        else:
            joined += group
    message = Message("user", tuple(joined))
    if not message.text.strip() and not any(isinstance(part, Image) for part in joined):
        raise RpcError(INVALID_PARAMS, "the prompt is empty; write what the agent should do")
    return message


def _check_sizes(blocks: list[dict[str, Any]]) -> None:
    """Raise RpcError if the texts or a name in content blocks are too long to be worked on."""
    left = PROMPT
    for number, block in enumerate(blocks):
        resource = block.get("resource")
        fields = block | cast("dict[str, Any]", resource) if isinstance(resource, dict) else block
        text = fields.get("text")
        left -= len(text) if isinstance(text, str) else 0
        if left < 0:
            raise RpcError(INVALID_PARAMS, f"a prompt may have at most {PROMPT} characters of text")
        for name in ("name", "uri"):
            value = fields.get(name)
            if isinstance(value, str) and len(value) > _LONGEST_NAME:
                what = f"prompt[{number}].{name} may have at most {_LONGEST_NAME} characters"
                raise RpcError(INVALID_PARAMS, what)


def _part(block: dict[str, Any]) -> Part | None:
    match block:
        case {"type": "text", "text": str(text)}:
            return Text(text)
        case {"type": "image", "data": str(data), "mimeType": str(kind)}:
            return Image(data, kind)
        case {"type": "resource_link", "uri": str(uri)}:
            name = block.get("name")
            return Text(f"[{_on_a_line(name if name and isinstance(name, str) else 'file')}]({_place(uri)})")
        case {"type": "resource", "resource": {"uri": str(uri), "text": str(text)}}:
            return Text(f'\n<file path="{_place(uri)}">\n{harmless_file(text)}\n</file>\n')
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
    """Return the path of a file's address, and any other address as it is, on one line and without marks."""
    try:
        found = urlsplit(uri)
    except ValueError:
        return _on_a_line(uri)
    return _on_a_line(unquote(found.path) if found.scheme == "file" else uri)


def _on_a_line(name: str) -> str:
    """Return a name in which nothing closes what it stands in: a repository may call its files anything."""
    return "".join([one if one.isprintable() and one not in _CLOSING else "_" for one in name])


def blocks_of(message: Message) -> list[dict[str, Any]]:
    """Return a message as content blocks, to show it again."""
    blocks: list[dict[str, Any]] = []
    for part in message.parts:
        if isinstance(part, Text) and part.text:
            blocks.append({"type": "text", "text": part.text})
        elif isinstance(part, Image) and part.data:
            blocks.append({"type": "image", "data": part.data, "mimeType": part.media_type})
    return blocks
