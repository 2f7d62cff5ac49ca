"""An agent's own to-do list: the tools `write_todos` and `read_todos`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

import msgspec

from upcall.contracts import Context
from upcall.errors import UpcallError
from upcall.events import TODOS
from upcall.messages import Value
from upcall.tools import tool

_MOST = 1_000
_MARKS = {"pending": "[ ]", "in_progress": "[>]", "completed": "[x]"}


class Todo(Value, frozen=True):
    """One item of the list."""

    content: str
    status: Literal["pending", "in_progress", "completed"] = "pending"


@tool(repeatable=True)
async def write_todos(todos: list[Todo], ctx: Context) -> str:
    """Write your list of things to do for a task of several steps, in place of the one before. Keep it up to date.

    todos: all of them, each with its content and its status: pending, in_progress or completed
    """
    if len(todos) > _MOST:
        raise UpcallError(f"there are {len(todos)} things to do; write at most {_MOST}")
    ctx.set_context(TODOS, msgspec.to_builtins(todos))
    open_items = [todo for todo in todos if todo.status != "completed"]
    ctx.set_context("pinned.todos", f"What is still to do:\n{_format(open_items)}" if open_items else "")
    return _format(todos) or "(nothing to do)"


@tool(read_only=True, repeatable=True)
async def read_todos(ctx: Context) -> str:
    """Read your list of things to do."""
    stored: list[dict[str, Any]] = ctx.get_context(TODOS, [])
    return _format(msgspec.convert(stored, list[Todo])) or "(nothing to do)"


def _format(todos: Sequence[Todo]) -> str:
    return "\n".join(f"{_MARKS[todo.status]} {todo.content}" for todo in todos)
