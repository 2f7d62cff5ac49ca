"""Arguments of very many objects are checked against a tool's types without holding the event loop."""

from __future__ import annotations

from typing import Any

import pytest

from security.measuring import measured
from upcall import Agent, Hooks, Runtime, tool
from upcall.messages import Call, Value
from upcall.models import Script, call
from upcall.workspace import todo_tools


class Item(Value, frozen=True):
    """One of many; it may hold others."""

    name: str = ""
    items: list[Item] | None = None


@tool
async def count(items: list[Item]) -> int:
    """Count them."""
    return len(items)


@tool
async def count_named(items: dict[str, Item]) -> int:
    """Count them by name."""
    return len(items)


def many(kind: str) -> Call:
    match kind:
        case "todos":
            return call("write_todos", todos=[{"content": str(one), "status": "pending"} for one in range(33_000)])
        case "empty":
            return call("count", items=[{} for _ in range(99_000)])
        case "nested":
            return call("count", items=[{"items": [{}]} for _ in range(33_000)])
        case _:
            return call("count_named", items={str(one): {} for one in range(49_000)})


@pytest.mark.slow
@pytest.mark.parametrize("hooked", [False, True], ids=["as called", "changed by a hook"])
@pytest.mark.parametrize("kind", ["todos", "empty", "nested", "named"])
async def test_arguments_of_very_many_objects_are_checked_without_stalling_the_loop(
    kind: str, hooked: bool
) -> None:
    asked = many(kind)

    async def enlarge(session: Any, call: Call) -> Call:
        return call.replace(args=asked.args)

    first = call(asked.name) if hooked else asked
    hooks = Hooks(before_tool=[enlarge]) if hooked else Hooks()
    agent = Agent("a", model=Script([first, "done"]), tools=[count, count_named], hooks=hooks, kit=[todo_tools()])
    async with Runtime(agents=[agent]) as runtime:
        session = await runtime.start(agent)
        async with measured() as cost:
            await session.prompt("go")
        (result,) = [one for message in session.get_messages() for one in message.results]

    cost.check(growth=200_000_000)
    said = {"todos": "write at most 1000", "empty": "99000", "nested": "33000", "named": "49000"}
    assert said[kind] in result.text


@pytest.mark.parametrize("size", [10, 20_000])
async def test_a_field_that_no_class_has_is_refused_among_few_and_many_objects(size: int) -> None:
    items: list[Any] = [{"name": "x"} for _ in range(size)]
    items[-1] = {"items": [{"nam": "x"}]}
    agent = Agent("a", model=Script([call("count", items=items), "done"]), tools=[count])
    async with Runtime(agents=[agent]) as runtime:
        session = await runtime.start(agent)
        await session.prompt("go")
        (result,) = [one for message in session.get_messages() for one in message.results]

    assert result.is_error
    assert f"items[{size - 1}].items[0]" in result.text
    assert "`nam`" in result.text
