"""Find JSON in text that a model wrote: alone, in a code fence, or with prose around it."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Callable
from typing import Any, TypeVar

import msgspec

from upcall.safety.bounds import excess, excess_in_text

T = TypeVar("T")

LONGEST = 2_000_000
"""Characters of a reply that is read as JSON."""

_MOST_READ = 3_000_000
_LEAST_READ = 8_000
_LONG, _FEW = 20_000, 200
_MOST_FENCES = 1000
_SAYS_WHERE = ("Expecting", "Invalid")
"""How the decoder's messages begin whose position is where reading ended. Others name where a text begins."""
_UNREADABLE = (msgspec.DecodeError, UnicodeEncodeError, RecursionError)


def json_values(text: str, openings: str) -> list[Any]:
    """Return all JSON arrays ("[") and objects ("{") in a text, without those inside another one.

    The work is bounded: after some megabytes of brackets that open nothing, the rest is not looked at.
    """
    decoder, found, read = json.JSONDecoder(), list[Any](), 0
    opening = re.compile(f"[{re.escape(openings)}]")
    at = opening.search(text)
    while at is not None and read < _MOST_READ:
        start = at.start()
        try:
            value, end = decoder.raw_decode(text, start)
        except (ValueError, RecursionError) as error:
            # a bracket that opens nothing may cause the rest of the text to be read
            read += max(_end_of_reading(error, text) - start, _LEAST_READ)
            end = start + 1
        else:
            found.append(value)
        at = opening.search(text, end)
    return found


def _end_of_reading(error: Exception, text: str) -> int:
    """Return up to where a text was read at most, before reading failed."""
    if isinstance(error, json.JSONDecodeError) and error.msg.startswith(_SAYS_WHERE):
        return error.pos
    return len(text)


async def read_off_loop(read: Callable[[str], T], text: str) -> T:
    """Return `read(text)`. A long text is read in a thread, because that takes long."""
    return read(text) if len(text) <= _LONG else await asyncio.to_thread(read, text)


def read_json(text: str) -> Any:
    """Return the one JSON value in a reply; ValueError says why there is not exactly one.

    The whole reply is JSON, or exactly one code fence is, or its prose contains exactly one object or array. It has
    to be within the bounds of every JSON value.
    """
    if len(text) > LONGEST:
        raise ValueError(f"the reply has {len(text)} characters; at most {LONGEST} are read as JSON")
    if problem := excess_in_text(text, LONGEST):
        raise ValueError(f"the reply can't be read as JSON: {problem}")
    value = _one_value(text)
    if len(text) > _FEW and (problem := excess(value, 6 * LONGEST)):
        raise ValueError(f"the reply's JSON exceeds a limit: {problem}")
    return value


def _one_value(text: str) -> Any:
    try:
        return msgspec.json.decode(text.strip())
    except _UNREADABLE as error:
        problem = str(error)
    fenced = [value for block in _fence_texts(text) for value in _decode(block)]
    found = fenced or json_values(text, "{[")
    if len(found) > 1:
        raise ValueError(f"the reply has {len(found)} JSON values; it must have exactly one")
    if not found:
        raise ValueError(f"the reply is not JSON: {problem}")
    return found[0]


def _fence_texts(text: str) -> list[str]:
    """Return the text of each of the first 1,000 code fences. No line of JSON can be mistaken for a fence's end."""
    blocks: list[str] = []
    mark, inside = "", list[str]()
    for line in text.split("\n"):
        bare = line.strip()
        if not mark:
            mark = bare[:3] if bare.startswith(("```", "~~~")) else ""
        elif bare.startswith(mark) and not bare.strip(mark[0]):
            blocks.append("\n".join(inside))
            mark, inside = "", []
            if len(blocks) == _MOST_FENCES:
                break
        else:
            inside.append(line)
    return blocks


def _decode(text: str) -> list[Any]:
    """Return the text's JSON value in a list, which is empty if the text is not JSON."""
    try:
        return [msgspec.json.decode(text.strip())]
    except _UNREADABLE:
        return []
