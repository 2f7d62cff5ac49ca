"""A callback as a person reads it: who asks what, how it got here, and how to answer."""

from __future__ import annotations

import re
import textwrap
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import takewhile
from typing import Any, cast

import msgspec

from upcall.callbacks import Callback, Step
from upcall.hosts.terminal.layout import Piece
from upcall.observe.hidden_question import hidden_note, is_approval
from upcall.observe.path_entries import path_entries
from upcall.observe.phrases import beginning, duration
from upcall.observe.plain import escaped, is_visible, one_line, plain, shell_word, shortened, visible

PRIORITY_STYLES = {"critical": "bold red", "high": "bold yellow", "low": "dim"}
_MOST_ROWS = 20
_LABEL_WIDTH = 8
_NARROWEST = 20
QUOTE = "│ "
"""Before each row that an agent wrote, so that none of them passes for a fact of the runtime."""

_WRAP_SIZE = 20_000
"""Characters to wrap at once: wrapping a word without spaces takes quadratic time."""

LONGEST_SHOWN = 100_000
"""Characters that are shown of a message, and of all choices or facts of the asker together."""

_MOST_SHOWN = 200
"""Choices or facts of the asker that are shown. Of what is approved, everything is shown."""

_LONGEST_INDENTED = 100_000
"""Characters of JSON that are shown with a line for each value: indentation may be much longer than the values."""

_LONGEST_FACT = 20_000
"""Characters of a fact that are formatted; of most facts, 20 rows are shown."""

_HOW_TO_SEE_ALL = "`upcall inbox --json` shows everything"

_LONGEST_EDIT = 100
"""The longest arguments to offer for editing in a command, in characters."""
_ORIGINAL = "asked as"
"""The label of the original question if it was reworded. It is always shown in full."""
_APPROVED = ("pattern", "covers")
"""The labels of what else an approval may settle: shown exactly, and in full where it is answered."""

_PARTIAL_ESCAPE = re.compile(r"(?<!\\)(?:\\\\)*(\\(?:u[0-9a-f]{0,3}|U[0-9a-f]{0,7})?)\Z")


# --- the parts --------------------------------------------------------------------------


def question_rows(
    callback: Callback,
    *,
    now: float,
    width: int = 80,
    in_full: bool = True,
    waiting: int = 0,
    hidden: str = "",
) -> Iterator[list[Piece]]:
    """Format the question as rows, one after the other: those of a call may be tens of thousands.

    in_full: show long texts in full, because a person must see what they answer
    waiting: the number of questions behind it
    hidden: a note about values that are not shown
    """
    most = None if in_full else _MOST_ROWS
    yield from _head(callback, now, width, waiting)
    yield []
    if is_approval(callback):
        yield from _call(callback.args or {}, width, most)
    if callback.reworded or not is_approval(callback):
        asked = wrap(callback.reworded or callback.message, width - len(QUOTE), most)
        yield from ([Piece(QUOTE, "dim"), Piece(row, "bold")] for row in asked)
    yield from ([Piece(f"  {row}", "yellow")] for row in (wrap(hidden, width - 2) if hidden else ()))
    yield from _choices(callback.choices, width, most)
    yield []
    for name, text in _facts(callback):
        yield from _fact(name, text, width, most)
    if callback.problem:
        yield []
        yield from ([Piece(row, "red")] for row in wrap(f"invalid answer: {callback.problem}", width))


def _head(callback: Callback, now: float, width: int, waiting: int) -> list[list[Piece]]:
    """Format who asks and why, on as many rows as necessary."""
    does = f"wants to run {visible(callback.tool)}" if is_approval(callback) else "asks"
    parts = [] if is_approval(callback) else [Piece(one_line(callback.intent, 30), "dim")]
    if callback.priority != "normal":
        parts.append(Piece(callback.priority, PRIORITY_STYLES[callback.priority]))
    since = now - callback.created
    parts += [Piece(f"{_duration(since)} ago", "dim")] if callback.created and since >= 1 else []
    if callback.expires is not None:
        left = callback.expires - now
        parts.append(Piece(f"expires in {_duration(left)}" if left > 0 else "expired", "yellow"))
    parts += [Piece(f"{waiting} more wait{'s' if waiting == 1 else ''}", "dim")] if waiting > 0 else []
    rows = [[Piece(one_line(callback.agent, 40), "bold yellow"), Piece(f" {does}", "yellow")]]
    if sum(_columns(piece.text) for piece in rows[0]) > width:
        rows = [rows[0][:1], [Piece(f"  {does}", "yellow")]]
    for part in parts:
        if sum(len(piece.text) for piece in rows[-1]) + 3 + len(part.text) <= width:
            rows[-1] += [Piece(" · ", "dim"), part]
        else:
            rows.append([Piece("  "), part])
    return rows


class _Room:
    """Counts how many things may still be shown, and how many characters."""

    def __init__(self) -> None:
        self._things, self._left = _MOST_SHOWN, LONGEST_SHOWN

    def take(self, thing: Any) -> bool:
        """Return whether there is room for one thing, and count it."""
        if self._things <= 0 or self._left <= 0:
            return False
        self._things -= 1
        self._left -= len(thing) if isinstance(thing, str) else len(msgspec.json.encode(thing))
        return True


def _left_out(count: int, what: str) -> list[list[Piece]]:
    """Say how many things are not shown."""
    return [[Piece(f"  … and {count:,} more {what}; {_HOW_TO_SEE_ALL}", "bold yellow")]] if count else []


def _choices(choices: Sequence[str], width: int, most: int | None) -> list[list[Piece]]:
    shown = list(takewhile(_Room().take, choices))
    rows = [row for at, choice in enumerate(shown, 1) for row in _choice(at, choice, width, most)]
    return [*rows, *_left_out(len(choices) - len(shown), "choices, with the numbers that follow")]


def _choice(number: int, choice: str, width: int, most: int | None) -> list[list[Piece]]:
    first, *more = wrap(visible(choice, lines=True), width - 6, most) or [""]
    label = f"  {number}  "
    return [[Piece(label, "cyan"), Piece(first)], *([Piece(" " * len(label)), Piece(row)] for row in more)]


def _duration(seconds: float) -> str:
    return duration(seconds) if seconds >= 60 else f"{seconds:.0f} s"


def _call(args: Mapping[str, Any], width: int, most: int | None) -> Iterator[list[Piece]]:
    """Format each argument as exact JSON: the approver has to see what will run. Only a list cuts them."""
    shown = args.items() if most is None else list(takewhile(_Room().take, args.items()))
    for name, value in shown:
        *above, label = cut(visible(str(name)), max(width - 6, 20))
        if above or _columns(label) > width - 6 - _NARROWEST:
            above, label = [*above, label], ""
        yield from ([Piece(f"  {row}", "cyan")] for row in above)
        rows = json_rows(value, width - _columns(label) - 6, most, None if most is None else LONGEST_SHOWN)
        yield [Piece(f"  {label} " if label else "  ", "cyan"), Piece("= ", "dim"), Piece(next(rows))]
        yield from ([Piece(f"    {row}")] for row in rows)
    yield from _left_out(len(args) - len(shown), "arguments")
    if not args:
        yield [Piece("  without arguments", "dim")]


def _facts(callback: Callback) -> list[tuple[str, str]]:
    """Return the facts to show below the question, with their labels."""
    context = callback.context
    facts: list[tuple[str, str]] = []
    if callback.reworded:
        facts.append((_ORIGINAL, callback.message))
    facts.append(("session", visible(callback.session_id)))
    facts += [("task", str(context["task"]))] if context.get("task") else []
    if context.get("tool") and not is_approval(callback):
        facts += _calling_tool(str(context["tool"]), context.get("arguments"))
    facts += [("tags", tag_line(callback.tags))] if callback.tags else []
    facts += [("route", step) for step in route_steps(callback.path)]
    facts += [("why you", step.reason) for step in callback.path[-1:] if step.agent == "user" and step.reason]
    for name, made in callback.patterns.items():
        facts.append(("pattern", visible(f"{name}: {made}")))
        covered = callback.covers.get(name, ())
        facts += [("covers", visible(f"{one.id} {_compact(one.args)}")) for one in covered]
    others = len(callback.group) - 1
    if others > 0:
        facts.append(("equal", f"{others} more like it ({', '.join(callback.group[1:])}); one answer settles all"))
    return [*facts, *_asker_facts(callback)]


def _asker_facts(callback: Callback) -> list[tuple[str, str]]:
    """Return the asker's own facts. They share one label, because the asker chooses their names."""
    facts = ("task", "tool", "arguments")
    # logs of older versions
    context = callback.given or {k: v for k, v in callback.context.items() if k not in facts}
    shown = list(takewhile(_Room().take, context.items()))
    texts = [(name, v if isinstance(v, str) else _json_text(v)) for name, v in shown]
    left = len(context) - len(shown)
    more = [("context", f"… and {left:,} more; {_HOW_TO_SEE_ALL}")] if left else []
    return [*(("context", f"{one_line(name, 40)}: {text}") for name, text in texts), *more]


def _json_text(value: Any) -> str:
    """Format JSON for a fact."""
    return " ".join(json_rows(value, 10_000, longest=_LONGEST_FACT))


def tag_line(tags: Mapping[str, str]) -> str:
    """Format tags on one line."""
    return " ".join(f"{name}={value}" for name, value in tags.items())


def _calling_tool(tool: str, arguments: Any) -> list[tuple[str, str]]:
    """Describe the call that asks. Texts with several lines, such as programs, are shown as written.

    In logs of older versions the arguments may be any JSON.
    """
    args = (
        cast("Mapping[str, Any]", arguments)
        if isinstance(arguments, Mapping)
        else {"arguments": arguments}
        if arguments
        else {}
    )
    texts = {k: v for k, v in args.items() if isinstance(v, str) and "\n" in v.strip()}
    rest = {k: v for k, v in args.items() if k not in texts}
    name = visible(tool)
    inside = f"{name} {_json_text(rest)}" if rest else name
    parts = takewhile(_Room().take, texts.items())
    shown = (
        f"{visible(name[:_LONGEST_FACT])}:\n{visible(text[:_LONGEST_FACT], lines=True)}" for name, text in parts
    )
    return [("in", "\n".join([inside, *shown]))]


def _fact(name: str, text: str, width: int, most: int | None) -> Iterator[list[Piece]]:
    label = one_line(name, 20)
    room = width - max(_LABEL_WIDTH, len(label)) - 2
    if name in _APPROVED:
        rows = _limit_rows(cut(text, room), most)
    elif name == _ORIGINAL:
        rows = wrap(text, room)
    else:
        rows = wrap(shortened(text, _LONGEST_FACT), room, _MOST_ROWS)
    named = f"{label:<{_LABEL_WIDTH}}  "
    for number, row in enumerate(rows or [""]):
        yield [Piece(" " * len(named)) if number else Piece(named, "dim"), Piece(row)]


def route_steps(path: Sequence[Step]) -> list[str]:
    """Describe each step of the route so far, without the person."""
    steps: list[str] = []
    for entry in path_entries(path):
        if entry.agent == "user":
            continue
        reason = f": {one_line(entry.reason, 300)}" if entry.reason and entry.step != "asked" else ""
        steps.append(f"{plain(entry.agent)} {entry.done}{reason}")
    return steps


# --- text -------------------------------------------------------------------------------


def wrap(text: str, width: int, most: int | None = None) -> list[str]:
    """Wrap a text into rows, keeping its line breaks; a last row says what is left out of a very long one."""
    room = max(width, _NARROWEST)
    made: list[str] = []
    for row in plain(text[:LONGEST_SHOWN]).expandtabs(4).strip().splitlines():
        for at in range(0, max(len(row), 1), _WRAP_SIZE):
            parts = textwrap.wrap(row[at : at + _WRAP_SIZE], room, break_on_hyphens=False) or [""]
            made += [fitting for part in parts for fitting in cut(part, room)]
    return [*_limit_rows(made, most), *_cut_off(len(text) - LONGEST_SHOWN)]


def json_rows(
    value: Any, width: int, most: int | None = None, longest: int | None = LONGEST_SHOWN
) -> Iterator[str]:
    """Format JSON as rows, with invisible characters escaped; a last row says what is left out after `longest`."""
    body = msgspec.json.encode(value)
    text = body.decode("utf-8", "replace")
    left_out = 0 if longest is None else len(text) - longest
    if left_out > 0:
        text = text[:longest]
    elif width < len(text) <= _LONGEST_INDENTED and isinstance(value, dict | list):
        text = msgspec.json.format(body, indent=2).decode("utf-8", "replace")
    rows = (part for row in visible(text, lines=True).split("\n") for part in cut(row, width))
    yield from _limit_rows(rows, most)
    yield from _cut_off(left_out)


def _compact(value: Any) -> str:
    return msgspec.json.encode(value).decode("utf-8", "replace")


def _cut_off(count: int) -> list[str]:
    return [f"… and {count:,} more characters; {_HOW_TO_SEE_ALL}"] if count > 0 else []


def cut(row: str, width: int) -> Iterator[str]:
    """Cut a row into parts of at most `width` columns, but at least 20, and never inside an escape sequence."""
    room, at = max(width, _NARROWEST), 0
    while True:
        part = _beginning(row[at : at + room], room)
        if at + len(part) >= len(row):
            yield part
            return
        begun = _PARTIAL_ESCAPE.search(part)
        part = part[: begun.start(1)] if begun and begun.start(1) else part
        yield part
        at += len(part)


def _beginning(part: str, room: int) -> str:
    """Return as much of a text as fits into `room` columns; some letters take two of them."""
    left = room
    for at, letter in enumerate("" if part.isascii() else part):
        left -= _columns(letter)
        if left < 0:
            return part[:at]
    return part


def _columns(text: str) -> int:
    """Return the columns that a text takes on a screen."""
    if text.isascii():
        return len(text)
    from rich.cells import cell_len

    return cell_len(text)


def _limit_rows(rows: Iterable[str], most: int | None) -> Iterable[str]:
    if most is None:
        return rows
    lines = list(rows)
    return lines if len(lines) <= most else [*lines[: most - 1], f"… and {len(lines) - most + 1} more lines"]


# --- how to answer ----------------------------------------------------------------------


def answer_command(callback: Callback, store: str = "", program: str = "upcall") -> str:
    """Return the shortest command that answers it from any terminal; capitals mark what to replace."""
    return answer_commands(callback, store, program)[0]


def answer_commands(callback: Callback, store: str = "", program: str = "upcall") -> list[str]:
    """Return the commands that answer it from any terminal, including those that edit, reject or decline."""
    where = f" --store {shell_word(store)}" if store else ""
    options = [_example_answer(callback)]
    if is_approval(callback):
        options += [f"--edit {_editable(callback.args or {})}"] if callback.args else []
        options += ["--reject 'WHY'"]
    else:
        options += ["--decline 'WHY'"]
    return [f"{program} answer {shell_word(callback.id)} {option}{where}" for option in options]


def reveal_note(callback: Callback, count: int, store: str = "", program: str = "upcall") -> str:
    """Say how many values of a question are hidden, and the command that shows them; "" if none is."""
    if not count:
        return ""
    where = f" --store {shell_word(store)}" if store else ""
    how = f"{program} inbox --reveal {shell_word(callback.id)}{where}"
    return f"{hidden_note(count)}; to see {'it' if count == 1 else 'them'}: {how}"


def _editable(args: Mapping[str, Any]) -> str:
    """Return the arguments to edit in a command, or a file name if they are too long."""
    text = msgspec.json.encode(args).decode("utf-8", "replace")
    return shell_word(escaped(text)) if len(text) <= _LONGEST_EDIT else "ARGUMENTS.json"


def _example_answer(callback: Callback) -> str:
    if is_approval(callback):
        return "--approve"
    if callback.choices:
        return _first_choice(callback.choices)
    if callback.schema is not None:
        return _example_for_schema(callback.schema)
    return "'YOUR ANSWER'"


def _first_choice(choices: Sequence[str]) -> str:
    """Return the first choice as a VALUE: its text, or its number if the text is hard to type."""
    first = choices[0]
    by_text = is_visible(first) and len(first) <= _LONGEST_EDIT and not first.startswith("-")
    return shell_word(first) if by_text else "1"


def _example_for_schema(schema: dict[str, Any]) -> str:
    fields = schema.get("properties")
    if schema.get("type") == "object" and isinstance(fields, dict):
        needed = cast("list[str]", schema.get("required") or [])
        named = sorted(cast("dict[str, Any]", fields), key=lambda name: name not in needed)
        names = named[: max(len(needed), 2)]
        shown = ", ".join(f"{msgspec.json.encode(name).decode()}: …" for name in names)
        return shell_word(escaped("{" + shown + "}")) if len(shown) <= _LONGEST_EDIT else "'JSON'"
    kinds = {"integer": "NUMBER", "number": "NUMBER", "boolean": "true"}
    return kinds.get(str(schema.get("type")), "'JSON'")


def value_text(value: Any) -> str:
    """Format an answer, shortened."""
    if isinstance(value, str):
        return one_line(visible(value[:_WRAP_SIZE], lines=True), 60)
    return one_line(" ".join(json_rows(beginning(value, _LONGEST_FACT), 200)), 60)
