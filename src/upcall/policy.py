"""The sidecar: what one agent may ask of whom, read strictly, with every mistake found at once.

In Python (`Agent(...)`) an agent may ask its caller and the person unless told otherwise; in a sidecar *file*
a missing right is no right. Nothing is coerced: the string "false" is a mistake, not a truth.

May import: errors, messages.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal, NamedTuple, cast

from upcall.errors import BadAgent
from upcall.messages import Value

USER = "user"
FAIL = "fail"
RESERVED = (USER, FAIL)
"""Words of `fallback_target`, so no agent may have them as its name."""

SIDE_TURN_MODEL_CALLS = 4
"""Enough to look something up with a read-only tool and then answer; a side turn is no second task."""


class Problem(Value, frozen=True):
    """One mistake or doubt about an agent file. `line` counts from 1; 0 is the whole file."""

    file: str
    line: int
    key: str
    text: str
    severity: Literal["error", "warning"] = "error"

    def __str__(self) -> str:
        where = f"{self.file}:{self.line}" if self.line else self.file
        key = f"{self.key}: " if self.key else ""
        return f"{where}: {key}{self.text}"


class CallbackPolicy(Value, frozen=True):
    """The sidecar's `callback_policy`. An empty `fallback_target` is one that was not written."""

    passthrough_child_callbacks: bool = False
    max_bubble_hops: int | None = None
    fallback_target: str = ""
    may_approve: tuple[str, ...] = ()
    timeout: float | None = None
    side_turn_model_calls: int = SIDE_TURN_MODEL_CALLS


class Policy(Value, frozen=True):
    """A sidecar. `given` are the keys that were written; `source` is the file, "" for Python.

    `absent` says that the file was looked for and is not there: then both rights are missing.
    """

    can_query_caller: bool = True
    can_use_host_interaction: bool = True
    callback_policy: CallbackPolicy = CallbackPolicy()
    given: tuple[str, ...] = ()
    source: str = ""
    absent: bool = False

    @classmethod
    def build(
        cls,
        can_query_caller: Any = True,
        can_use_host_interaction: Any = True,
        callback_policy: Mapping[str, Any] | None = None,
        *,
        agent: str = "",
    ) -> Policy:
        """From an Agent's arguments; BadAgent names every wrong key and what it may be."""
        keys: dict[str, Any] = {
            "can_query_caller": can_query_caller,
            "can_use_host_interaction": can_use_host_interaction,
        }
        if callback_policy is not None:
            keys["callback_policy"] = callback_policy
        found = mistakes(keys)
        if found:
            raise BadAgent(agent, "; ".join(f"{key}: {text}" for key, text in found))
        return policy_from(keys, source="")

    @classmethod
    def closed(cls, file: str) -> Policy:
        """What an agent file without its sidecar has: no rights."""
        return cls(False, False, source=file, absent=True)

    def alone(self, worker: str, asks: bool) -> Policy:
        """What is left below a worker that may ask nobody: approvals, and, if it `asks`, who is in between."""
        rest = self.callback_policy.replace(fallback_target="")
        missing = f"plan entry with a caller for {worker}"
        return Policy(asks and self.can_query_caller, False, rest, source=missing, absent=True)

    def has(self, key: str) -> bool:
        """Whether the key (dotted, as in `callback_policy.timeout`) was written at all."""
        return key in self.given

    def says(self, key: str, agent: str) -> str:
        """What this sidecar has under a key, as a sentence's main part that names where to change it."""
        value = self
        for name in key.split("."):
            value = getattr(value, name)
        said = shown(value)
        if self.absent:
            return f"there is no {self.source}, which means {key}: {said}"
        if not self.source:
            return f"the agent {agent} has {key}: {said}"
        if key not in self.given:
            return f"{self.source} has no {key}, which means {said}"
        return f"{self.source} has {key}: {said}"

    def where(self, agent: str) -> str:
        """Where a key of this sidecar would be written."""
        return self.source or f"Agent({agent!r}, ...)"


def name_problem(name: str) -> str:
    """Why this can't be an agent's name, or ""."""
    if name in RESERVED:
        return f"no agent may be called {name!r}: fallback_target uses the words {' and '.join(RESERVED)}"
    if len(name) > 100 or not re.fullmatch(r"\w[\w.-]*", name):
        return f"{name!r} is no agent's name; use letters, digits, '_', '-' and '.', at most 100 of them"
    return ""


# --- what each key may hold -------------------------------------------------------------


_LONGEST = 1e9
"""Thirty years; times beyond it would not add up with a clock's."""


class _Rule(NamedTuple):
    allowed: str
    accepts: Callable[[Any], bool]


def _is_bool(value: Any) -> bool:
    return value is True or value is False


def _is_object(value: Any) -> bool:
    return isinstance(value, Mapping)


def _is_hops(value: Any) -> bool:
    return value is None or (type(value) is int and value >= 0)


def _is_calls(value: Any) -> bool:
    return type(value) is int and value >= 1


def _is_target(value: Any) -> bool:
    return isinstance(value, str) and (value in RESERVED or not name_problem(value))


def _is_seconds(value: Any) -> bool:
    return value is None or (type(value) in (int, float) and 0 < value <= _LONGEST)


def _is_names(value: Any) -> bool:
    # a bare string is a sequence of letters, which nobody means
    return isinstance(value, list | tuple) and all(
        isinstance(name, str) and name for name in cast("Sequence[Any]", value)
    )


TOP: dict[str, _Rule] = {
    "can_query_caller": _Rule("true or false", _is_bool),
    "can_use_host_interaction": _Rule("true or false", _is_bool),
    "callback_policy": _Rule("an object of keys", _is_object),
}
_UNDER: dict[str, _Rule] = {
    "passthrough_child_callbacks": _Rule("true or false", _is_bool),
    "max_bubble_hops": _Rule("a whole number from 0 on, or null for no limit", _is_hops),
    "fallback_target": _Rule('"user", "fail" or an agent\'s name', _is_target),
    "may_approve": _Rule("a list of tools' names", _is_names),
    "timeout": _Rule("seconds above 0 and up to 1e9, or null for no limit", _is_seconds),
    "side_turn_model_calls": _Rule("a whole number from 1 on", _is_calls),
}
KEYS = (*(key for key in TOP if key != "callback_policy"), *(f"callback_policy.{key}" for key in _UNDER))
"""Every key of a sidecar, dotted."""


def mistakes(keys: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Each wrong key, dotted, with what is wrong and what is allowed."""
    found = _against(keys, TOP, prefix="")
    under = keys.get("callback_policy")
    if isinstance(under, Mapping):
        found += _against(cast("Mapping[str, Any]", under), _UNDER, prefix="callback_policy.")
    return found


def _against(keys: Mapping[str, Any], rules: Mapping[str, _Rule], prefix: str) -> list[tuple[str, str]]:
    found: list[tuple[str, str]] = []
    for key, value in keys.items():
        rule = rules.get(key)
        if rule is None:
            found.append((f"{prefix}{key}", _unknown(key, rules, prefix)))
        elif not rule.accepts(value):
            found.append((f"{prefix}{key}", f"must be {rule.allowed}, not {shown(value)}"))
    return found


def _unknown(key: str, rules: Mapping[str, _Rule], prefix: str) -> str:
    elsewhere = " It belongs under callback_policy." if not prefix and key in _UNDER else ""
    if prefix and key in TOP:
        elsewhere = " It belongs beside callback_policy, not under it."
    return f"unknown key; allowed are {', '.join(rules)}.{elsewhere}"


def shown(value: Any) -> str:
    """A value as a message shows it."""
    if value is None or isinstance(value, bool):  # nearly always, and every route says some
        return "null" if value is None else str(value).lower()
    try:
        text = json.dumps(value, ensure_ascii=False)
    except (TypeError, ValueError, RecursionError):
        text = repr(value)
    return text if len(text) <= 80 else text[:79] + "…"


def policy_from(keys: Mapping[str, Any], source: str) -> Policy:
    """From keys without mistakes. What a file leaves out is no right."""
    under = dict(keys.get("callback_policy", {}))
    given = (*(key for key in keys if key != "callback_policy"), *(f"callback_policy.{key}" for key in under))
    if "may_approve" in under:
        under["may_approve"] = tuple(under["may_approve"])
    return Policy(
        can_query_caller=keys.get("can_query_caller", False),
        can_use_host_interaction=keys.get("can_use_host_interaction", False),
        callback_policy=CallbackPolicy(**under),
        given=given,
        source=source,
    )
