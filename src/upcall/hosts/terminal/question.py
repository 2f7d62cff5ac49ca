"""A callback as a person reads it: who asks, what, on which way it came here, and how to answer."""

from __future__ import annotations

import re
import textwrap
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, cast

import msgspec

from upcall.callbacks import Callback, Step
from upcall.hosts.terminal.phrases import lasted
from upcall.hosts.terminal.screen import Piece
from upcall.observe.plain import escaped, is_visible, one_line, plain, shell_word, visible

WORST = {"critical": "bold red", "high": "bold yellow", "low": "dim"}
_LONG = 20
_LABEL = 8
_LONG_ROW = 20_000
"""Characters that are wrapped at once: the time that a word without blanks takes grows with its square."""

_LONGEST_EDIT = 100
"""Characters of arguments that are still shown to be edited at a prompt."""
_ORIGINAL = "asked as"
"""The label of the question as it was raised, where it was reworded: always shown whole."""
_STEPS = {"skipped": "was skipped", "passed": "passed it up", "reworded": "reworded it and passed it up"}


_BEGUN_ESCAPE = re.compile(r"(?<!\\)(?:\\\\)*(\\(?:u[0-9a-f]{0,3}|U[0-9a-f]{0,7})?)\Z")


# --- the parts --------------------------------------------------------------------------


def rows(
    callback: Callback,
    *,
    now: float,
    width: int = 80,
    whole: bool = True,
    waiting: int = 0,
) -> list[list[Piece]]:
    """The question, line by line. `whole` shows all of a long text or argument: what is answered must be seen.

    `waiting` is how many wait behind it.
    """
    most = 1_000_000 if whole else _LONG
    said = [[Piece(row, "bold")] for row in wrapped(callback.reworded or callback.message, width, most)]
    body = _call(callback, width, most) if is_approval(callback) else said
    lines = [*_head(callback, now, width, waiting), [], *body]
    if is_approval(callback) and callback.reworded:
        lines += said
    lines += [row for at, choice in enumerate(callback.choices, 1) for row in _choice(at, choice, width, most)]
    facts = [row for name, text in _facts(callback) for row in _fact(name, text, width, most)]
    if callback.problem:
        refused = wrapped(f"not taken: {callback.problem}", width)
        facts += [[], *([Piece(row, "red")] for row in refused)]
    return [*lines, [], *facts] if facts else lines


def is_approval(callback: Callback) -> bool:
    """Whether it is the gate's approval of a call, and not a question."""
    return bool(callback.tool) and callback.args is not None


def _head(callback: Callback, now: float, width: int, waiting: int) -> list[list[Piece]]:
    """Who asks and what for, on as many rows as it takes."""
    does = f"wants to run {visible(callback.tool)}" if is_approval(callback) else "asks"
    parts = [] if is_approval(callback) else [Piece(one_line(callback.intent, 30), "dim")]
    if callback.priority != "normal":
        parts.append(Piece(callback.priority, WORST[callback.priority]))
    since = now - callback.created
    parts += [Piece(f"{_long(since)} ago", "dim")] if callback.created and since >= 1 else []
    if callback.expires is not None:
        left = callback.expires - now
        parts.append(Piece(f"expires in {_long(left)}" if left > 0 else "expired", "yellow"))
    parts += [Piece(f"{waiting} more wait{'s' if waiting == 1 else ''}", "dim")] if waiting > 0 else []
    rows = [[Piece(one_line(callback.agent, 40), "bold yellow"), Piece(f" {does}", "yellow")]]
    for part in parts:
        if sum(len(piece.text) for piece in rows[-1]) + 3 + len(part.text) <= width:
            rows[-1] += [Piece(" · ", "dim"), part]
        else:
            rows.append([Piece("  "), part])
    return rows


def _choice(number: int, choice: str, width: int, most: int) -> list[list[Piece]]:
    first, *more = wrapped(visible(choice, lines=True), width - 6, most) or [""]
    label = f"  {number}  "
    return [[Piece(label, "cyan"), Piece(first)], *([Piece(" " * len(label)), Piece(row)] for row in more)]


def _long(seconds: float) -> str:
    return lasted(seconds) if seconds >= 60 else f"{seconds:.0f} s"


def _call(callback: Callback, width: int, most: int) -> list[list[Piece]]:
    """Each argument as exactly as JSON says it: who approves a call has to see what will run."""
    lines: list[list[Piece]] = []
    for name, value in (callback.args or {}).items():
        label = visible(str(name))
        first, *more = exact(value, width - len(label) - 6, most)
        lines.append([Piece(f"  {label} ", "cyan"), Piece("= ", "dim"), Piece(first)])
        lines += [[Piece(f"    {row}")] for row in more]
    return lines or [[Piece("  without arguments", "dim")]]


def _facts(callback: Callback) -> list[tuple[str, str]]:
    """What stands beside the question, each with its name."""
    context = callback.context
    facts: list[tuple[str, str]] = []
    if callback.reworded:
        facts.append((_ORIGINAL, callback.message))
    facts.append(("session", visible(callback.session_id)))
    facts += [("task", str(context["task"]))] if context.get("task") else []
    if context.get("tool") and not is_approval(callback):
        facts += _inside(str(context["tool"]), context.get("arguments"))
    facts += [("tags", tag_line(callback.tags))] if callback.tags else []
    facts += [("way", step) for step in way(callback.path)]
    facts += [("here by", step.reason) for step in callback.path[-1:] if step.agent == "user" and step.reason]
    for name, made in callback.patterns.items():
        facts.append(("pattern", visible(f"{name}: {made}")))
        covered = callback.covers.get(name, ())
        facts += [("covers", visible(f"{one.id} {' '.join(exact(one.args, 10_000))}")) for one in covered]
    others = len(callback.group) - 1
    if others > 0:
        facts.append(("equal", f"{others} more like it ({', '.join(callback.group[1:])}); one answer settles all"))
    return [*facts, *_given(callback)]


def _given(callback: Callback) -> list[tuple[str, str]]:
    """What the asker says beside the question, each under the same heading: it may call its facts what it likes."""
    facts = ("task", "tool", "arguments")
    given = callback.given or {k: v for k, v in callback.context.items() if k not in facts}  # of an older log
    texts = [(name, v if isinstance(v, str) else " ".join(exact(v, 10_000))) for name, v in given.items()]
    return [("given", f"{one_line(name, 40)}: {text}") for name, text in texts]


def tag_line(tags: Mapping[str, str]) -> str:
    """Tags in one line."""
    return " ".join(f"{name}={value}" for name, value in tags.items())


def _inside(tool: str, given: Any) -> list[tuple[str, str]]:
    """The call that asks; a text of several lines, such as a program, is shown as it was written.

    In an older log the arguments may be any JSON: the asker could write its own.
    """
    args = cast("Mapping[str, Any]", given) if isinstance(given, Mapping) else {"arguments": given} if given else {}
    texts = {k: v for k, v in args.items() if isinstance(v, str) and "\n" in v.strip()}
    rest = {k: v for k, v in args.items() if k not in texts}
    name = visible(tool)
    inside = f"{name} {' '.join(exact(rest, 10_000))}" if rest else name
    shown = (f"{visible(name)}:\n{visible(text, lines=True)}" for name, text in texts.items())
    return [("in", "\n".join([inside, *shown]))]


def _fact(name: str, text: str, width: int, most: int) -> list[list[Piece]]:
    label = one_line(name, 20)
    most = 1_000_000 if name == _ORIGINAL else min(most, _LONG)
    first, *more = wrapped(text, width - max(_LABEL, len(label)) - 2, most) or [""]
    lines = [[Piece(f"{label:<{_LABEL}}  ", "dim"), Piece(first)]]
    return lines + [[Piece(" " * (max(_LABEL, len(label)) + 2)), Piece(row)] for row in more]


def way(path: Sequence[Step]) -> list[str]:
    """Whom it passed, and what each of them did with it."""
    done = {(step.agent, at) for at, step in enumerate(path)}
    steps: list[str] = []
    for at, step in enumerate(path):
        if step.step == "asked":
            follows = any(agent == step.agent and later > at for agent, later in done)
            if step.agent != "user" and not follows:
                steps.append(f"{plain(step.agent)} is asked")
            continue
        reason = f": {one_line(step.reason, 300)}" if step.reason else ""
        steps.append(f"{plain(step.agent)} {_STEPS[step.step]}{reason}")
    return steps


# --- text -------------------------------------------------------------------------------


def wrapped(text: str, width: int, most: int = 1_000_000) -> list[str]:
    """A text in rows, its own line breaks kept."""
    made: list[str] = []
    for row in plain(text).expandtabs(4).strip().splitlines():
        for at in range(0, max(len(row), 1), _LONG_ROW):
            made += textwrap.wrap(row[at : at + _LONG_ROW], max(width, 20), break_on_hyphens=False) or [""]
    return _at_most(made, most)


def exact(value: Any, width: int, most: int = 1_000_000) -> list[str]:
    """JSON in rows, with whatever can't be seen written as what it is."""
    body = msgspec.json.encode(value)
    text = body.decode("utf-8", "replace")
    if len(text) > width and isinstance(value, dict | list):
        text = msgspec.json.format(body, indent=2).decode("utf-8", "replace")
    text = visible(text, lines=True)
    room = max(width, 20)
    return _at_most([part for row in text.split("\n") for part in _cut(row, room)], most)


def _cut(row: str, room: int) -> Iterator[str]:
    """A row in parts of at most `room` characters, none of which ends inside an escape."""
    at = 0
    while len(row) - at > room:
        part = row[at : at + room]
        begun = _BEGUN_ESCAPE.search(part)
        part = part[: begun.start(1)] if begun and begun.start(1) else part
        yield part
        at += len(part)
    yield row[at:]


def _at_most(lines: list[str], most: int) -> list[str]:
    if len(lines) <= most:
        return lines
    return [*lines[: most - 1], f"… and {len(lines) - most + 1} more lines"]


# --- how to answer ----------------------------------------------------------------------


def command(callback: Callback, store: str = "", program: str = "upcall") -> str:
    """What to type to answer it from any terminal; an answer in capitals is to be put in."""
    return commands(callback, store, program)[0]


def commands(callback: Callback, store: str = "", program: str = "upcall") -> list[str]:
    """Each way to answer it from any terminal: to edit and reject a call, or to decline a question, too."""
    where = f" --store {shell_word(store)}" if store else ""
    ways = [_example(callback)]
    if is_approval(callback):
        ways += [f"--edit {_editable(callback.args or {})}"] if callback.args else []
        ways += ["--reject 'WHY'"]
    else:
        ways += ["--decline 'WHY'"]
    return [f"{program} answer {shell_word(callback.id)} {way}{where}" for way in ways]


def _editable(args: Mapping[str, Any]) -> str:
    """The arguments to change and paste; a file's name where they are too long for that."""
    text = msgspec.json.encode(args).decode("utf-8", "replace")
    return shell_word(escaped(text)) if len(text) <= _LONGEST_EDIT else "ARGUMENTS.json"


def _example(callback: Callback) -> str:
    if is_approval(callback):
        return "--approve"
    if callback.choices:
        return _first_choice(callback.choices)
    if callback.schema is not None:
        return _of_schema(callback.schema)
    return "'YOUR ANSWER'"


def _first_choice(choices: Sequence[str]) -> str:
    """How to give the first choice as VALUE: by its text, or by its number where that is not easily typed."""
    first = choices[0]
    by_text = is_visible(first) and len(first) <= _LONGEST_EDIT and not first.startswith("-")
    return shell_word(first) if by_text else "1"


def _of_schema(schema: dict[str, Any]) -> str:
    fields = schema.get("properties")
    if schema.get("type") == "object" and isinstance(fields, dict):
        needed = cast("list[str]", schema.get("required") or [])
        named = sorted(cast("dict[str, Any]", fields), key=lambda name: name not in needed)
        names = named[: max(len(needed), 2)]
        shown = ", ".join(f"{msgspec.json.encode(name).decode()}: …" for name in names)
        return shell_word(escaped("{" + shown + "}")) if len(shown) <= _LONGEST_EDIT else "'JSON'"
    kinds = {"integer": "NUMBER", "number": "NUMBER", "boolean": "true"}
    return kinds.get(str(schema.get("type")), "'JSON'")


def settled_as(value: Any) -> str:
    """An answer in a few words."""
    if isinstance(value, str):
        return one_line(visible(value[:_LONG_ROW], lines=True), 60)
    return one_line(" ".join(exact(value, 200)), 60)
