"""A model request as the log keeps it: what it follows from, and what hooks changed."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import msgspec

from upcall.callbacks import same_json
from upcall.contracts import Store
from upcall.events import Change, Responded, content_hash
from upcall.messages import Call, Message, Request, Response, Text, Thinking, ToolSpec
from upcall.settings import Settings

_SPECS = msgspec.json.Decoder(tuple[ToolSpec, ...])


def change_of(
    asked: Request,
    request: Request,
    history: Callable[[], list[Message]],
    keep: Callable[[str, bytes], None],
    named: Callable[[str], tuple[str, bytes]],
) -> Change | None:
    """A hook's changes to a request in a small form: changed texts by hash, changed messages as one splice."""
    instructions = tools = ""
    if request.instructions != asked.instructions:
        instructions, body = named(request.instructions)
        keep(instructions, body)
    if request.tools is not asked.tools and msgspec.json.encode(request.tools) != msgspec.json.encode(asked.tools):
        body = msgspec.json.encode(request.tools)
        tools = content_hash(body)
        keep(tools, body)
    change = Change(instructions, tools) if instructions or tools else None
    if request.settings is not asked.settings and request.settings != asked.settings:
        change = _with_settings(change or Change(), asked.settings, request.settings)
    if request.output is not asked.output and not same_json(request.output, asked.output):
        change = (change or Change()).replace(output=request.output)
    # mostly they are the same: then nobody looks at the whole history
    start, old, new = (0, 0, 0) if request.messages is asked.messages else _splice(history(), request.messages)
    if start == old == new:
        return change
    inserted = tuple(request.messages[start:new])
    return (change or Change()).replace(start=start, removed=old - start, inserted=inserted, spliced=True)


def _with_settings(change: Change, asked: Settings | None, given: Settings | None) -> Change:
    """The change with all settings of the request, and the names of the headers that the agent does not have so."""
    given, own = given or Settings(), (asked and asked.extra_headers) or {}
    new = [name for name, value in (given.extra_headers or {}).items() if own.get(name) != value]
    return change.replace(settings=msgspec.to_builtins(given.for_log()), headers=tuple(new))


def _splice(old: Sequence[Message], new: Sequence[Message]) -> tuple[int, int, int]:
    """The differing middle of two lists: `(start, old_end, new_end)`, without the common prefix and suffix."""
    start, most = 0, min(len(old), len(new))
    while start < most and _is_same(old[start], new[start]):
        start += 1
    end_old, end_new = len(old), len(new)
    while end_old > start and end_new > start and _is_same(old[end_old - 1], new[end_new - 1]):
        end_old, end_new = end_old - 1, end_new - 1
    return (start, end_old, end_new)


def _is_same(old: Message, new: Message) -> bool:
    """Tell whether two messages are written alike: 1 and true are equal in Python, but not in JSON."""
    return old is new or (old == new and msgspec.json.encode(old) == msgspec.json.encode(new))


async def apply_change(request: Request, change: Change | None, store: Store) -> Request:
    """The request as the hooks left it, from the log."""
    if change is None:
        return request
    if change.instructions:
        request = request.replace(instructions=(await store.blob(change.instructions)).decode())
    if change.tools:
        request = request.replace(tools=tool_specs(await store.blob(change.tools)))
    if change.settings is not None:
        request = request.replace(settings=_settings(change, request.settings))
    if change.output is not msgspec.UNSET:
        request = request.replace(output=change.output)
    if change.spliced:
        messages = list(request.messages)
        messages[change.start : change.start + change.removed] = change.inserted
        request = request.replace(messages=messages)
    return request


def tool_specs(body: bytes) -> tuple[ToolSpec, ...]:
    """The tools of a stored list, as models see them."""
    return _SPECS.decode(body)


def _settings(change: Change, asked: Settings | None) -> Settings:
    """The settings as the log has them, with the values of the agent's own headers. Those of a hook are lost."""
    given = {name: value for name, value in (change.settings or {}).items() if name in Settings.__struct_fields__}
    own = (asked and asked.extra_headers) or {}
    kept = {
        name: own[name] for name in given.pop("extra_headers", {}) if name in own and name not in change.headers
    }
    return Settings(**given, extra_headers=kept or None)


def response_of(responded: Responded) -> Response:
    """The response that an event holds, as hooks see it."""
    parts = responded.message.parts
    one = parts[0] if len(parts) == 1 else None  # mostly it is a plain reply, or one call
    if type(one) is Text:
        text, calls, thinking = one.text, (), ()
    elif type(one) is Call:
        text, calls, thinking = "", (one,), ()
    else:
        text = "".join([p.text for p in parts if type(p) is Text])
        calls = tuple([p for p in parts if type(p) is Call])
        thinking = tuple([p for p in parts if type(p) is Thinking])
    return Response(text, calls, thinking, responded.usage, responded.stop, responded.model, parts)
