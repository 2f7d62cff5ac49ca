"""The tool that developer.md names as `pages:write_page`."""

from upcall import Context, tool


@tool
async def write_page(name: str, ctx: Context) -> str:
    """Write a web page."""
    colour = await ctx.raise_callback(f"Which colour should the {name} page have?", "blocker")
    return f"{name} page written in {colour}"
