"""Settings of a model call: those of an agent, a model or a hook."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Self, cast

import msgspec

from upcall.errors import SetupError
from upcall.safety.bounds import brief

NOT_KEPT = "(not kept)"
"""The text in the log instead of a header's value."""

_TOKEN = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")
_FRAMING = ("content-length", "transfer-encoding", "connection", "host")


class Settings(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, gc=False):
    """The options of a model call. None leaves a setting to the next level, and in the end to the provider.

    A hook's settings count before the agent's, and the agent's before the model's own: field by field, and in
    `extra_body` and `extra_headers` entry by entry. A setting that a provider does not know is UnknownSetting.

    temperature: randomness; 0 for as little as possible
    top_p: choose among the likeliest tokens that make up this share, from 0 to 1
    max_tokens: the most tokens of one response
    stop: texts at which the model stops writing
    seed: a number that makes responses repeatable, as far as the provider can
    reasoning_effort: how much the model thinks, in the provider's words, such as "low" or "high"
    tool_choice: "auto", "none", "required", or the name of the one tool that must be called
    parallel_tool_calls: whether one response may call several tools
    extra_body: more fields for the body of the request; they are kept in the log
    extra_headers: more HTTP headers; their values are not kept in the log
    """

    temperature: float | None = None
    top_p: float | None = None
    max_tokens: int | None = None
    stop: Sequence[str] | None = None
    seed: int | None = None
    reasoning_effort: str | None = None
    tool_choice: str | None = None
    parallel_tool_calls: bool | None = None
    extra_body: Mapping[str, Any] | None = None
    extra_headers: Mapping[str, str] | None = None

    def __post_init__(self) -> None:
        for name in self.__struct_fields__:
            value = getattr(self, name)
            if value is not None and (problem := setting_problem(name, value)):
                raise SetupError(f"Settings: {name} {problem}")
        put = msgspec.structs.force_setattr
        if self.stop is not None:
            put(self, "stop", (self.stop,) if isinstance(self.stop, str) else tuple(self.stop))
        for name in ("extra_body", "extra_headers"):
            if (given := getattr(self, name)) is not None:
                put(self, name, dict(given))

    def __repr__(self) -> str:
        given = self.given()
        if self.extra_headers:
            given["extra_headers"] = dict.fromkeys(self.extra_headers, "***")
        return f"Settings({', '.join(f'{name}={value!r}' for name, value in given.items())})"

    def replace(self, **changes: Any) -> Self:
        """Return a copy with these settings changed."""
        return msgspec.structs.replace(self, **changes)

    def given(self) -> dict[str, Any]:
        """Return the settings that are not None, by name."""
        found = ((name, getattr(self, name)) for name in self.__struct_fields__)
        return {name: value for name, value in found if value is not None}

    def over(self, further: Settings | None) -> Settings:
        """Return these settings, with those of `further` where these are None."""
        if further is None:
            return self
        given = self.given()
        if self.extra_body and further.extra_body:
            given["extra_body"] = {**further.extra_body, **self.extra_body}
        if self.extra_headers and further.extra_headers:
            given["extra_headers"] = joined_headers(further.extra_headers, self.extra_headers)
        return further.replace(**given)

    def for_log(self) -> Settings:
        """Return the same without the values of headers, which may be keys."""
        return (
            self.replace(extra_headers=dict.fromkeys(self.extra_headers, NOT_KEPT)) if self.extra_headers else self
        )


def joined_headers(first: Mapping[str, str], last: Mapping[str, str]) -> dict[str, str]:
    """Merge headers. If names differ only in case, the last value is used."""
    names = {name.lower() for name in last}
    return {**{name: value for name, value in first.items() if name.lower() not in names}, **last}


# --- checks -----------------------------------------------------------------------------


def setting_problem(name: str, value: Any) -> str:
    """Return what is wrong with the value of a setting, or "". A header's value is never shown."""
    if name == "extra_headers":
        return _headers_problem(value)
    if name == "extra_body":
        return _body_problem(value)
    fits, words = _RULES[name]
    return "" if fits(value) else f"must be {words}, not {brief(value)}"


def _number(least: float, most: float) -> Callable[[Any], bool]:
    return lambda value: type(value) in (int, float) and least <= value <= most


def _whole(least: int) -> Callable[[Any], bool]:
    return lambda value: type(value) is int and least <= value < 2**63


def _word(value: Any) -> bool:
    return isinstance(value, str) and bool(value.strip())


def _words(value: Any) -> bool:
    if isinstance(value, str):
        return bool(value)
    return isinstance(value, list | tuple) and all(isinstance(v, str) and v for v in cast("list[Any]", value))


_RULES: dict[str, tuple[Callable[[Any], bool], str]] = {
    "temperature": (_number(0, 1_000), "a number that is not negative"),
    "top_p": (_number(0, 1), "a number from 0 to 1"),
    "max_tokens": (_whole(1), "a positive whole number"),
    "stop": (_words, "a text, or a list of texts that are not empty"),
    "seed": (_whole(-(2**63)), "a whole number of at most 64 bits"),
    "reasoning_effort": (_word, 'a word of the provider, such as "low" or "high"'),
    "tool_choice": (_word, '"auto", "none", "required", or the name of a tool'),
    "parallel_tool_calls": (lambda value: type(value) is bool, "True or False"),
}


def _body_problem(value: Any) -> str:
    if not isinstance(value, Mapping):
        return f"must be a dict of JSON values, not {brief(value)}"
    body = dict(cast("Mapping[Any, Any]", value))
    if wrong := [key for key in body if not isinstance(key, str)]:
        return f"must have texts as keys, not {brief(wrong[0])}"
    try:
        msgspec.json.encode(body)
    except (TypeError, ValueError, OverflowError, RecursionError) as error:
        return f"must hold JSON values only: {error}"
    return ""


def _headers_problem(value: Any) -> str:
    if not isinstance(value, Mapping):
        return f"must be a dict of names and texts, not a {type(value).__name__}"
    for name, text in cast("Mapping[Any, Any]", value).items():
        if not isinstance(name, str) or not _TOKEN.fullmatch(name):
            return f"must have HTTP header names as keys, not {brief(name)}"
        if name.lower() in _FRAMING:
            return f"can't set {name}: the connection sets it itself"
        if not isinstance(text, str):
            return f"must have texts as values; {name} has a {type(text).__name__}"
        if not text.isprintable():
            return f"must have values without line breaks and control characters; {name} has some"
    return ""
