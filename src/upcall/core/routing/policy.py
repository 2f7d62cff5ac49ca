"""The sidecar: what one agent may ask of whom, read strictly, with every mistake found at once.

In Python (`Agent(...)`) an agent may ask its caller and the person unless told otherwise; in a sidecar *file*
a missing right is no right. Nothing is coerced: the string "false" is a mistake, not a truth.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from itertools import islice
from typing import Annotated, Any, cast

import msgspec
from msgspec import Meta

from upcall.core.error_texts import did_you_mean, nearest, shown
from upcall.errors import BadAgent
from upcall.messages import Value

USER = "user"
FAIL = "fail"
RESERVED = (USER, FAIL)
"""Words of `fallback_target`, so no agent may have them as its name."""

_NAME = r"^\w[\w.-]*\Z"
_LONGEST_NAME = 100
_MOST_KEYS = 100
"""Keys of one object of which mistakes are told."""


class CallbackPolicy(Value, frozen=True):
    """The sidecar's `callback_policy`. An empty `fallback_target` is one that was not written.

    A `timeout` is at most thirty years: times beyond that would not add up with a clock's. A side turn is no second
    task: its model calls are enough to look something up with a read-only tool and then answer.
    """

    passthrough_child_callbacks: bool = False
    max_bubble_hops: Annotated[int, Meta(ge=0)] | None = None
    fallback_target: Annotated[str, Meta(pattern=_NAME, max_length=_LONGEST_NAME)] = ""
    may_approve: tuple[Annotated[str, Meta(min_length=1)], ...] = ()
    timeout: Annotated[int, Meta(gt=0, le=10**9)] | Annotated[float, Meta(gt=0, le=1e9)] | None = None
    side_turn_model_calls: Annotated[int, Meta(ge=1)] = 4


class Policy(Value, frozen=True):
    """A sidecar. `given` are the keys that were written; `source` is the file, "" for Python.

    `absent` says that the file was looked for and is not there: then both rights are missing.
    `without_caller_of` is the team's worker whose plan names no caller, where that takes rights away.
    """

    can_query_caller: bool = True
    can_use_host_interaction: bool = True
    callback_policy: CallbackPolicy = CallbackPolicy()
    given: tuple[str, ...] = ()
    source: str = ""
    absent: bool = False
    without_caller_of: str = ""

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
        under = {} if callback_policy is None else {"callback_policy": callback_policy}
        keys = {"can_query_caller": can_query_caller, "can_use_host_interaction": can_use_host_interaction, **under}
        found = mistakes(keys)
        if found:
            raise BadAgent(agent, "; ".join(f"{key}: {text}" for key, text in found))
        return policy_from(keys, source="")

    @classmethod
    def closed(cls, file: str) -> Policy:
        """The policy of an agent file without a sidecar: no rights."""
        return cls(False, False, source=file, absent=True)

    def without_caller(self, worker: str, asks: bool) -> Policy:
        """The policy of a team's worker that has no caller, or of an agent below that worker.

        It allows approvals only; with `asks`, also questions to the agents between the two.
        """
        rest = self.callback_policy.replace(fallback_target="")
        missing = f"plan entry with a caller for {worker}"
        return Policy(
            asks and self.can_query_caller, False, rest, source=missing, absent=True, without_caller_of=worker
        )

    def has(self, key: str) -> bool:
        """Tell whether a key is set (dotted, as in `callback_policy.timeout`)."""
        return key in self.given

    def describe(self, key: str, agent: str) -> str:
        """The value of a key as a clause that also says where to change it."""
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

    def remedy(self, key: str, agent: str) -> str:
        """The setting that would grant a right: the key, or the caller that a team's plan does not name."""
        if self.without_caller_of:
            return f"a `caller` in the plan's entry for {self.without_caller_of}"
        return f"{key}: true in {self.where(agent)}"

    def where(self, agent: str) -> str:
        """The place where a key of this sidecar is set."""
        return self.source or f"Agent({agent!r}, ...)"


def name_problem(name: str, what: str = "agent") -> str:
    """Why this can't be the name of an agent, or of a role, or ""."""
    if name in RESERVED:
        return f"no {what} may be called {name!r}: fallback_target uses the words {' and '.join(RESERVED)}"
    if len(name) > _LONGEST_NAME or not re.match(_NAME, name):
        use = f"use letters, digits, '_', '-' and '.', at most {_LONGEST_NAME} of them"
        return f"{name!r} is not a valid {what} name; {use}"
    return ""


# --- what each key may hold -------------------------------------------------------------


TOP = {
    "can_query_caller": "true or false",
    "can_use_host_interaction": "true or false",
    "callback_policy": "an object of keys",
}
_UNDER = {
    "passthrough_child_callbacks": "true or false",
    "max_bubble_hops": "a whole number of 0 or more, or null for no limit",
    "fallback_target": '"user", "fail" or an agent\'s name',
    "may_approve": "a list of tools' names",
    "timeout": "seconds above 0 and up to 1e9, or null for no limit",
    "side_turn_model_calls": "a whole number of 1 or more",
}
KEYS = (*(key for key in TOP if key != "callback_policy"), *(f"callback_policy.{key}" for key in _UNDER))
"""Every key of a sidecar, dotted."""


def mistakes(keys: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Each wrong key, dotted, with what is wrong and what is allowed."""
    under = keys.get("callback_policy")
    if not isinstance(under, Mapping):
        return _against(keys, Policy, TOP, prefix="")
    found = _against({**keys, "callback_policy": {}}, Policy, TOP, prefix="")
    return found + _against(cast("Mapping[str, Any]", under), CallbackPolicy, _UNDER, prefix="callback_policy.")


def _against(
    keys: Mapping[str, Any], kind: type[Value], allowed: Mapping[str, str], prefix: str
) -> list[tuple[str, str]]:
    found: list[tuple[str, str]] = []
    for key, value in islice(keys.items(), _MOST_KEYS):
        if key not in allowed:
            found.append((f"{prefix}{key}", _unknown(key, allowed, prefix)))
            continue
        try:
            msgspec.convert({key: value}, kind)
        except msgspec.ValidationError:
            found.append((f"{prefix}{key}", f"must be {allowed[key]}, not {shown(value)}"))
    return found


def _unknown(key: str, allowed: Mapping[str, str], prefix: str) -> str:
    there = TOP if prefix else _UNDER  # a key of the other level may have been meant
    place = " It belongs beside callback_policy, not under it." if prefix else " It belongs under callback_policy."
    near = nearest(key, (*allowed, *there))
    said = f"unknown key; allowed are {', '.join(allowed)}."
    return f"{said}{did_you_mean(key, (*allowed, *there))}{place if near in there else ''}"


def policy_from(keys: Mapping[str, Any], source: str) -> Policy:
    """From keys without mistakes. What a file leaves out is no right."""
    under = keys.get("callback_policy", {})
    given = (*(key for key in keys if key != "callback_policy"), *(f"callback_policy.{key}" for key in under))
    rights = keys.get("can_query_caller", False), keys.get("can_use_host_interaction", False)
    return Policy(*rights, msgspec.convert(under, CallbackPolicy), given, source)
