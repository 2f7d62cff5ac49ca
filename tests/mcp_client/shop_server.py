"""A server of the 2026 era: ordering asks for a colour. Each order is a line of a file, outside of any log of ours.

shop_server.py EFFECTS [--key KEY] [--http PORT [--token TOKEN]]: with a key, states outlive the process;
with a token, only requests that bear it are answered.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated, Any

from mcp.server.mcpserver import Context, MCPServer
from mcp.server.mcpserver.resolve import Elicit, Resolve
from mcp.server.request_state import RequestStateSecurity
from mcp_types import ToolAnnotations
from pydantic import BaseModel

effects, options = Path(sys.argv[1]), sys.argv[2:]
keys = [options[options.index("--key") + 1]] if "--key" in options else None
security = RequestStateSecurity(keys=keys, ttl=10**6) if keys else None
server = MCPServer("shop", request_state_security=security)


class Colour(BaseModel):
    colour: str


class Size(BaseModel):
    size: int


def note(line: str) -> None:
    with effects.open("a") as out:
        out.write(f"{line}\n")


async def ask_colour(item: str) -> Elicit[Colour]:
    note(f"asked {item}")
    return Elicit(f"Which colour for {item}?", Colour)


async def ask_size(item: str) -> Elicit[Size]:
    return Elicit(f"Which size for {item}?", Size)


@server.tool()
async def order(item: str, colour: Annotated[Colour, Resolve(ask_colour)]) -> str:
    """Order an item."""
    note(f"ordered {item} in {colour.colour}")
    return f"ordered {item} in {colour.colour}"


@server.tool()
async def fit(
    item: str, colour: Annotated[Colour, Resolve(ask_colour)], size: Annotated[Size, Resolve(ask_size)]
) -> str:
    """Order an item in a colour and a size."""
    note(f"ordered {item} in {colour.colour}, size {size.size}")
    return f"ordered {item} in {colour.colour}, size {size.size}"


@server.tool(annotations=ToolAnnotations(read_only_hint=True))
async def stock(item: str) -> dict[str, int]:
    """How many there are."""
    return {"count": len(item)}


@server.tool()
async def buy(item: str) -> str:
    """Buy at once."""
    note(f"bought {item}")
    return f"bought {item}"


@server.tool()
async def slowly(ctx: Context, steps: int) -> str:
    """Take a while, with progress."""
    import asyncio

    for step in range(steps):
        await ctx.report_progress(step, steps, f"step {step}")
        await asyncio.sleep(0.3)
    note("finished slowly")
    return "finished"


@server.tool()
async def grow(ctx: Context) -> str:
    """Offer one more tool from now on."""

    async def grown() -> str:
        return "grown"

    server.add_tool(grown)
    await ctx.notify_tools_changed()
    return "there is more"


@server.prompt()
def greet(name: str) -> str:
    """Greet somebody."""
    return f"Say hello to {name}."


@server.resource("shop://prices")
def prices() -> str:
    """All prices."""
    return "lamp: 12"


def guarded(app: Any, token: str) -> Any:
    """The application, for requests that bear the token."""

    async def serve(scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] == "http" and (b"authorization", f"Bearer {token}".encode()) not in scope["headers"]:
            await send({"type": "http.response.start", "status": 401, "headers": []})
            await send({"type": "http.response.body", "body": b""})
        else:
            await app(scope, receive, send)

    return serve


if __name__ == "__main__":
    if "--token" in options:
        import uvicorn

        app = guarded(server.streamable_http_app(), options[options.index("--token") + 1])
        uvicorn.run(app, port=int(options[options.index("--http") + 1]), log_level="error")
    elif "--http" in options:
        server.run("streamable-http", port=int(options[options.index("--http") + 1]))
    else:
        server.run()
