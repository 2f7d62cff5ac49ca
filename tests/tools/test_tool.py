"""What `@tool` makes of a function, and which functions it refuses."""

from __future__ import annotations

import functools
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from upcall.agent import Agent, Kit
from upcall.contracts import Context, SessionAccess, SyncContext
from upcall.errors import BadTool
from upcall.messages import ToolSpec
from upcall.tools import BadArguments, Tool, as_tool, tool, unknown_tool_text

if TYPE_CHECKING:
    from fractions import Fraction as Missing


@tool
async def read_config(path: str, ctx: Context) -> str:
    """Read a configuration file.

    path: where it is, relative to the workspace
    """
    return f"{path} {ctx}"


def _absolute(path: str) -> bool:
    return path.startswith("/")


@tool(needs_approval=_absolute, read_only=True, repeatable=True, timeout=3, label="writes")
def write(path: str, text: str = "", *, mode: str | None = None, size: int = 3, at: Path = Path()) -> str:
    """Write."""
    return path + text + str(mode) + str(size) + str(at)


async def test_a_tool_describes_itself_to_the_model_and_still_is_its_function() -> None:
    schema = {
        "type": "object",
        "properties": {
            "path": {"type": "string", "description": "where it is, relative to the workspace"},
        },
        "required": ["path"],
        "additionalProperties": False,
    }
    assert read_config.spec == ToolSpec("read_config", "Read a configuration file.", schema)
    assert (read_config.is_async, read_config.context, read_config.inline) == (True, "ctx", False)
    call: Any = read_config
    assert await call("a", ctx="b") == "a b"


def test_the_options_are_kept_as_they_were_declared() -> None:
    assert (write.read_only, write.repeatable, write.timeout, write.label) == (True, True, 3, "writes")
    assert (write.is_async, write.context) == (False, None)


def test_a_tool_can_not_be_changed() -> None:
    with pytest.raises(AttributeError):
        write.name = "other"  # type: ignore[misc]


def test_defaults_are_in_the_schema_and_make_parameters_optional() -> None:
    properties = write.schema["properties"]
    assert {n: p.get("default", "none") for n, p in properties.items()} == {
        "path": "none",
        "text": "",
        "mode": None,
        "size": 3,
        "at": ".",
    }
    assert write.schema["required"] == ["path"]
    assert write.check({"path": "a"}) == {"path": "a"}


def test_a_default_that_is_no_json_only_makes_the_parameter_optional() -> None:
    def look(what: Any = object(), size: int = None) -> None:  # type: ignore[assignment]  # noqa: B008, RUF013
        del what, size

    schema = as_tool(look).schema
    assert "required" not in schema
    assert schema["properties"] == {"what": {}, "size": {"type": "integer"}}


def test_plain_functions_and_bound_methods_are_accepted_as_tools() -> None:
    class Desk:
        def lay(self, thing: str) -> str:
            return thing

    made = as_tool(Desk().lay)
    assert made("pen") == "pen"
    assert made.name == "lay"
    assert as_tool(made) is made
    assert Tool.from_function(made.function, name="put").name == "put"
    assert tool(made.function, name="place").spec.name == "place"


def test_a_wrapped_function_keeps_its_signature() -> None:
    def logged(function: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(function)
        def wrapper(*args: Any, **kwargs: Any) -> Any:
            return function(*args, **kwargs)

        return wrapper

    @tool
    @logged
    def add(a: int, b: int) -> int:
        return a + b

    assert list(add.schema["properties"]) == ["a", "b"]
    assert add(**add.check({"a": 1, "b": 2})) == 3


def test_a_context_may_be_optional() -> None:
    @tool
    def ask(what: str, ctx: SyncContext | None = None) -> str:
        return f"{what}{ctx}"

    assert ask.context == "ctx"
    assert list(ask.schema["properties"]) == ["what"]


# --- approvals ----------------------------------------------------------------------------


def test_a_rule_is_given_the_arguments_it_names_with_defaults() -> None:
    def large(size: int, **others: Any) -> bool:
        return size > 2 and "path" in others

    @tool(needs_approval=large)
    def cut(path: str, size: int = 3) -> str:
        return path + str(size)

    assert cut.asks_approval({"path": "a"})
    assert not cut.asks_approval({"path": "a", "size": 1})
    assert write.asks_approval({"path": "/a"})
    assert not write.asks_approval({"path": "a"})
    assert tool(needs_approval=True)(cut.function).asks_approval({})


def test_a_pattern_says_what_calls_have_in_common() -> None:
    def folder(path: Path) -> Path:
        return path.parent

    def in_tmp(path: Path) -> bool:
        return path.is_relative_to("/tmp")

    @tool(needs_approval=True, approve_patterns={"same folder": folder, "in tmp": in_tmp})
    def drop(path: Path) -> None:
        del path

    assert drop.patterns(drop.check({"path": "/tmp/a"})) == {"same folder": "/tmp", "in tmp": "True"}
    assert drop.patterns(drop.check({"path": "/etc/a"})) == {"same folder": "/etc"}


# --- refusals -----------------------------------------------------------------------------


def _unannotated(path) -> None:  # type: ignore[no-untyped-def]
    del path


def _many(*paths: str) -> None:
    del paths


def _named(**paths: str) -> None:
    del paths


def _positional(path: str, /) -> None:
    del path


async def _async_with_sync(ctx: SyncContext) -> None:
    del ctx


def _sync_with_async(ctx: Context) -> None:
    del ctx


async def _with_session(ctx: SessionAccess) -> None:
    del ctx


async def _two(ctx: Context, other: Context) -> None:
    del ctx, other


def _impossible(number: complex) -> None:
    del number


def _callback(call: Callable[[int], int]) -> None:
    del call


def _missing(number: Missing) -> None:
    del number


def _yields(n: int) -> Any:
    yield n


async def _async_yields(n: int) -> Any:
    yield n


class _Thing:
    def method(self, n: int) -> int:
        return n


REFUSED: list[tuple[Any, str]] = [
    (_unannotated, "'path' has no annotation; write its type: `path: str`"),
    (_many, "write `paths: list[str]`"),
    (_named, "write `paths: dict[str, str]`"),
    (_positional, "remove the `/`"),
    (_async_with_sync, "write `ctx: Context`, or make it a plain def for a SyncContext"),
    (_sync_with_async, "write `ctx: SyncContext`, or make it an async def for a Context"),
    (_with_session, "write `ctx: Context`"),
    (_two, "'ctx' and 'other' are both declared as the tool's context"),
    (_impossible, "number: complex can't come from JSON"),
    (_callback, "can't come from JSON"),
    (_missing, "refers to 'Missing', which is not defined"),
    (_yields, "can't yield"),
    (_async_yields, "can't yield"),
    (_Thing.method, "tool(thing.method)"),
    (3, "make a tool from a typed function"),
    (len, "make a tool from a typed function"),
    (lambda: 0, "1 to 64 characters"),
]


@pytest.mark.parametrize(("function", "says"), REFUSED)
def test_what_can_not_be_a_tool_is_refused_with_the_right_way(function: Any, says: str) -> None:
    with pytest.raises(BadTool) as caught:
        as_tool(function)
    assert says in str(caught.value)


@pytest.mark.parametrize("name", ["", "a b", "é", "a" * 65, "a.b", "a\n"])
def test_a_name_that_providers_would_not_take_is_refused(name: str) -> None:
    with pytest.raises(BadTool, match="1 to 64 characters"):
        tool(write.function, name=name)


OPTIONS: list[tuple[Any, dict[str, Any], str]] = [
    (read_config.function, {"inline": True}, "an async tool runs on the loop anyway"),
    (lambda: 0, {"name": "x", "timeout": 0}, "not a positive number"),
    (lambda: 0, {"name": "x", "needs_approval": "yes"}, "a plain function"),
    (lambda: 0, {"name": "x", "needs_approval": _absolute}, "can't take 'path'"),
    (lambda: 0, {"name": "x", "approve_patterns": {"a": _many}}, "can't take 'paths'"),
    (lambda: 0, {"name": "x", "approve_patterns": ["a*"]}, "a dict of functions"),
    (
        lambda: 0,
        {"name": "x", "need_approval": True},
        "@tool takes no need_approval; did you mean 'needs_approval'?",
    ),
    (lambda: 0, {"name": "x", "zzz": 1}, "@tool takes no zzz; it takes: needs_approval, approve_patterns, "),
    (read_config, {}, "is already a tool"),
]


@pytest.mark.parametrize(("function", "options", "says"), OPTIONS)
def test_options_that_can_not_work_are_refused(function: Any, options: dict[str, Any], says: str) -> None:
    with pytest.raises(BadTool) as caught:
        tool(function, **options)
    assert says in str(caught.value)


def test_an_async_rule_is_refused_because_it_would_always_hold() -> None:
    async def rule(path: str) -> bool:
        return path == ""

    with pytest.raises(BadTool, match="plain function"):
        tool(write.function, needs_approval=rule)


def test_an_inline_tool_has_no_context_that_could_block_the_loop() -> None:
    def ask(ctx: SyncContext) -> None:
        del ctx

    with pytest.raises(BadTool, match="would block the loop"):
        tool(ask, inline=True)
    assert tool(write.function, inline=True).inline


# --- checking -----------------------------------------------------------------------------


def test_all_that_is_wrong_is_said_at_once() -> None:
    with pytest.raises(BadArguments) as caught:
        write.check({"pth": "a", "text": 1, "size": "x" * 200})
    assert caught.value.problems == (
        "pth: unknown argument; did you mean 'path'?",
        "text: expected string, got 1",
        'size: expected integer, got "' + "x" * 78 + "…",
        "path: missing; expected string",
    )
    assert str(caught.value).startswith("write did not run, because its arguments are wrong:\n- pth")


def test_a_name_that_is_like_no_other_is_shown_all_of_them() -> None:
    with pytest.raises(BadArguments, match="it takes: path, text, mode, size, at"):
        write.check({"path": "", "zzzzzz": 1})


def test_the_problem_inside_an_argument_is_located() -> None:
    def plan(steps: list[dict[str, int]]) -> None:
        del steps

    with pytest.raises(BadArguments) as caught:
        as_tool(plan).check({"steps": [{"a": 1}, {"a": "b"}]})
    assert caught.value.problems == ('steps[1][...]: expected `int`, got `str`, in [{"a": 1}, {"a": "b"}]',)


def test_a_check_leaves_the_given_arguments_alone() -> None:
    args = {"path": "a"}
    assert write.check(args) is not args


def test_an_unknown_tool_is_answered_with_the_closest_names() -> None:
    said = unknown_tool_text("read_confg", ["write", "read_config"])
    assert (
        said
        == "there is no tool called 'read_confg'; did you mean 'read_config'? The tools are: read_config, write"
    )
    assert unknown_tool_text("zzz", []) == "there is no tool called 'zzz'. The tools are: none"


def test_a_function_that_makes_a_tool_or_a_kit_is_refused_until_it_is_called() -> None:
    def reader() -> Tool:
        raise AssertionError

    with pytest.raises(BadTool, match=r"returns a .*Tool.*; call it: reader\(\)"):
        Agent("a", tools=[reader])
    with pytest.raises(BadTool, match=r"a Kit goes into kit="):
        Agent("a", tools=[Kit()])  # pyright: ignore[reportArgumentType]
