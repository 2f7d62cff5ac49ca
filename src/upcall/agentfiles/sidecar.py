"""Read sidecar files: a policy in JSON, with every mistake and its line."""

from __future__ import annotations

import json
import re
from collections import Counter
from typing import Any, Literal, NoReturn

from upcall.core.error_texts import shown
from upcall.core.routing.policy import TOP, Policy, mistakes, policy_from
from upcall.messages import Value

MAX_BYTES, _MAX_KEYS = 20_000, 100
"""The most bytes of a sidecar, and the most keys that are checked."""


class Problem(Value, frozen=True):
    """One error or warning about an agent file. `line` counts from 1; 0 is the whole file."""

    file: str
    line: int
    key: str
    text: str
    severity: Literal["error", "warning"] = "error"

    def __str__(self) -> str:
        where = f"{self.file}:{self.line}" if self.line else self.file
        key = f"{self.key}: " if self.key else ""
        return f"{where}: {key}{self.text}"


def read_sidecar(raw: bytes, file: str) -> tuple[Policy | None, list[Problem]]:
    """Return the policy in a sidecar's bytes, or None with every mistake in it, each with its line and key.

    `file` is the sidecar's name in errors and routes.
    """
    try:
        text = raw.decode("utf-8-sig")
        keys = json.loads(text, object_pairs_hook=_Pairs, parse_constant=_no_constant)
    except UnicodeDecodeError as error:
        return None, [Problem(file, raw.count(b"\n", 0, error.start) + 1, "", "this is not UTF-8 text")]
    except json.JSONDecodeError as error:
        return None, [Problem(file, error.lineno, "", json_problem(error))]
    except (ValueError, RecursionError) as error:
        return None, [Problem(file, 1, "", f"this JSON can't be read: {error}")]
    if not isinstance(keys, _Pairs):
        text = f"must be an object with the keys {', '.join(TOP)}, not {shown(keys)}"
        return None, [Problem(file, 1, "", text)]
    if len(keys) > _MAX_KEYS:
        return None, [Problem(file, 1, "", f"has {len(keys)} keys; allowed are {', '.join(TOP)}")]
    lines = key_lines(text)
    problems = [Problem(file, lines.get(key, 1), key, "is written twice") for key in _repeated_keys(keys)]
    problems += [Problem(file, lines.get(key, 1), key, text) for key, text in mistakes(keys)]
    problems.sort(key=lambda problem: problem.line)
    return (None if problems else policy_from(keys, source=file)), problems


def json_problem(error: json.JSONDecodeError) -> str:
    """Return what is wrong with a text that should be JSON, at which column, and what to write instead."""
    before, here = error.doc[: error.pos].rstrip(), error.doc[error.pos :].lstrip(",\n\r\t ")
    word = next(iter(re.findall(r"^\w+", here)), "")
    if not here:
        advice = (
            "it ends too early; close all open brackets and quotes" if before else "it is empty; write at least {}"
        )
    elif word in _PYTHON:
        advice = f"write {_PYTHON[word]}, not {word}"
    elif here.startswith(("#", "//", "/*")):
        advice = "take out the comment; JSON has none"
    elif here[0] in "}]" and (before.endswith(",") or "trailing comma" in error.msg):
        advice = f"take out the comma before {here[0]}"
    elif here[0] in "'‘“" or "property name" in error.msg:
        advice = "write keys and texts in double quotes"
    elif "delimiter" in error.msg:
        advice = f"a {'comma' if ',' in error.msg else 'colon'} is missing before this"
    else:
        advice = f"{here[:20]!r} is not a valid value" if error.msg == "Expecting value" else error.msg
    return f"this is not JSON, at column {error.colno}: {advice}"


class _Pairs(dict[str, Any]):
    """An object that remembers which keys were written twice."""

    def __init__(self, pairs: list[tuple[str, Any]]) -> None:
        super().__init__(pairs)
        self.repeated = [name for name, count in Counter(name for name, _ in pairs).items() if count > 1]


def _repeated_keys(keys: _Pairs) -> list[str]:
    policy = keys.get("callback_policy")
    repeated = policy.repeated if isinstance(policy, _Pairs) else []
    return [*keys.repeated, *(f"callback_policy.{name}" for name in repeated)]


def _no_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not a JSON value")


_PYTHON = {"True": "true", "False": "false", "None": "null"}
_TOKEN = re.compile(r'"(?:[^"\\]++|\\.)*+"?|[{}\[\],:]')


def key_lines(text: str) -> dict[str, int]:
    """Return the line of every key, dotted, of a valid JSON text; the last line of a repeated key."""
    lines: dict[str, int] = {}
    path: list[str] = []
    inside: list[str] = []
    last = ""
    line, seen = 1, 0
    for token in _TOKEN.finditer(text):
        symbol = token.group()
        line, seen = line + text.count("\n", seen, token.start()), token.start()
        if symbol == ":" and inside[-1] == "{":
            path[len(inside) - 1 :] = [json.loads(last)]
            lines[".".join(path)] = line
        elif symbol in "{[":
            inside.append(symbol)
            path[len(inside) - 1 :] = []
            path.extend("" for _ in range(len(inside) - 1 - len(path)))
        elif symbol in "}]":
            inside.pop()
        last = symbol
    return lines
