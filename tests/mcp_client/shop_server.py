"""A server of the 2026 era: ordering asks for a colour. Each order is a line of a file, outside of any log of ours.

shop_server.py EFFECTS [--key KEY] [--http PORT [--token TOKEN] [--legacy]]: with a key, states outlive the process;
with a token, only requests that bear it are answered; --legacy answers only the era before 2026.
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


def only(app: Any, *, token: str, legacy: bool) -> Any:
    """The application, for requests that bear the token, if there is one; or of the legacy era."""

    async def refuse(send: Any, status: int) -> None:
        await send({"type": "http.response.start", "status": status, "headers": []})
        await send({"type": "http.response.body", "body": b""})

    async def serve(scope: Any, receive: Any, send: Any) -> None:
        headers = dict(scope.get("headers", ()))
        if scope["type"] == "http" and token and headers.get(b"authorization") != f"Bearer {token}".encode():
            await refuse(send, 401)
        elif legacy and headers.get(b"mcp-protocol-version") == b"2026-07-28":
            await refuse(send, 400)
        else:
            await app(scope, receive, send)

    return serve


if __name__ == "__main__":
    if "--http" in options:
        import uvicorn

        token = options[options.index("--token") + 1] if "--token" in options else ""
        app = only(server.streamable_http_app(), token=token, legacy="--legacy" in options)
        uvicorn.run(app, port=int(options[options.index("--http") + 1]), log_level="error")
    else:
        server.run()
