"""A throw-away toolset: a shelf of tools that somebody else fills and empties."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from upcall import Context, SessionReads, Tool

TEXT = {"type": "object", "properties": {"text": {"type": "string"}}, "required": ["text"]}


class Shelf:
    """A toolset whose list the test changes; it notes which sessions asked for it."""

    def __init__(self, *tools: Tool, name: str = "shelf") -> None:
        self.name, self.tools, self.asked = name, list(tools), list[str]()

    async def list_tools(self, session: SessionReads) -> Sequence[Tool]:
        self.asked.append(f"{session.id} {session.purpose}")
        return [*self.tools]


def echo(name: str, **options: Any) -> Tool:
    async def call(arguments: dict[str, Any]) -> str:
        return f"{name} says {arguments['text']}"

    return Tool.from_schema(name, TEXT, call, **options)


def asks(name: str) -> Tool:
    """A tool that waits for a person."""

    async def call(arguments: dict[str, Any], ctx: Context) -> str:
        return f"{name} was told {await ctx.raise_callback(arguments['text'], 'blocker')}"

    return Tool.from_schema(name, TEXT, call)
