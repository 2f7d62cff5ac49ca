"""A server's results as results of ours: texts, pictures, links, contents of resources, structured values."""

from __future__ import annotations

import base64
import binascii
from collections.abc import Mapping
from typing import Any

import msgspec

from upcall.mcp_wire.names import clean_line
from upcall.mcp_wire.reading import as_list, as_object, objects
from upcall.messages import Image, Result, replace_surrogates
from upcall.safety.bounds import RESULT, STRUCTURE, head_of, is_too_deep
from upcall.safety.schema_check import misfit_of

Json = dict[str, Any]

PICTURES, ITEMS = 20, 1000
"""Pictures of one result that the model sees, and parts of a result that are read."""

PICTURE = 10_000_000
"""Characters of one picture in base64."""

_KINDS = ("image/png", "image/jpeg", "image/gif", "image/webp")


def result_of(call_id: str, given: Json, output_schema: Any = None) -> Result:
    """Return a tool's result as the model reads it."""
    texts, images = read_content(given.get("content"))
    structured, text = given.get("structuredContent"), "\n".join(texts)
    value = None
    if structured is not None:
        written = msgspec.json.encode(structured).decode()
        if isinstance(output_schema, Mapping) and (problem := misfit_of(output_schema, structured)):
            text += f"\n(The tool ran, but its structured result does not fit its schema: {problem[:300]})"
        elif len(written) <= STRUCTURE and not is_too_deep(written):
            value = structured
        text = text or written
    if len(text) > RESULT:
        text = f"{head_of(text, RESULT)}\n(The result had {len(text)} characters; the rest was dropped.)"
    if not text:
        text = f"({len(images)} images)" if images else "done"
    return Result(call_id, replace_surrogates(text), is_error=bool(given.get("isError")), json=value, images=images)


def read_content(given: Any) -> tuple[list[str], tuple[Image, ...]]:
    """Return the texts and the pictures of a list of contents, in their order."""
    parts = as_list(given)
    texts: list[str] = []
    images: list[Image] = []
    for part in parts[:ITEMS]:
        if isinstance(part, dict):
            found = _read_part(as_object(part))
            if isinstance(found, Image) and len(images) < PICTURES:
                images.append(found)
            elif isinstance(found, str):
                texts.append(found)
            else:
                texts.append("(one more picture, not shown)")
    if len(parts) > ITEMS:
        texts.append(f"({len(parts) - ITEMS} more parts were dropped)")
    return texts, tuple(images)


def _read_part(part: Mapping[str, Any]) -> str | Image:
    kind, media = part.get("type"), clean_line(str(part.get("mimeType", "")), 100)
    if kind == "text":
        return str(part.get("text", ""))
    if kind == "image":
        return _picture(str(part.get("data", "")), media)
    if kind == "audio":
        return f"(a sound of type {media}, {len(str(part.get('data', '')))} characters of base64, not shown)"
    if kind == "resource_link":
        about = " ".join(clean_line(str(part[key]), 500) for key in ("title", "description") if part.get(key))
        name = clean_line(str(part.get("name", "")), 200)
        return f"resource {name}: {clean_line(str(part.get('uri', '')), 2000)} {about}".rstrip()
    if kind == "resource":
        return read_resource(as_object(part.get("resource")))
    return f"(a part of type {clean_line(str(kind), 50)!r}, not shown)"


def read_resource(given: Mapping[str, Any]) -> str | Image:
    """Return the content of one resource: its text, its picture, or a note of what it is."""
    uri, media = clean_line(str(given.get("uri", "")), 2000), clean_line(str(given.get("mimeType", "")), 100)
    if isinstance(given.get("text"), str):
        return f"resource {uri}:\n{given['text']}"
    blob = str(given.get("blob", ""))
    if media in _KINDS:
        return _picture(blob, media)
    return f"(resource {uri} of type {media or 'unknown'}, {len(blob)} characters of base64, not shown)"


def _picture(data: str, media: str) -> str | Image:
    if media not in _KINDS:
        return f"(a picture of type {media or 'unknown'}, which models can't see)"
    if len(data) > PICTURE:
        return f"(a picture of {len(data)} characters of base64, which is too large)"
    try:
        base64.b64decode(data, validate=True)
    except (binascii.Error, ValueError):
        return "(a picture that is not valid base64)"
    return Image(data=data, media_type=media)


def message_texts(message: Mapping[str, Any]) -> list[str]:
    """Return the texts of a message of a prompt or of a model call, those of an assistant marked."""
    content: Any = message.get("content")
    found, _ = read_content(content if isinstance(content, list) else [content])
    return [f"(assistant) {text}" if message.get("role") == "assistant" else text for text in found]


def prompt_text(given: Json) -> str:
    """Return the text of a prompt's messages."""
    texts = [text for one in objects(given.get("messages"))[:ITEMS] for text in message_texts(one)]
    return head_of(replace_surrogates("\n\n".join(texts)), RESULT)
