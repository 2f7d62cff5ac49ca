"""Which calls of a program are awaited is read from its text: where a value flows, not only where it is written."""

from __future__ import annotations

import pytest

from upcall.workspace.sites import awaited


def found(program: str) -> list[str]:
    """The awaited calls of `f` and `g`, as they are written."""
    body = program.encode()
    texts = [body[start:end].decode() for start, end in sorted(awaited(program))]
    return [text for text in texts if text.startswith(("f(", "g("))]


@pytest.mark.parametrize(
    ("program", "calls"),
    [
        ("x = f(1)", []),
        ("x = await f(1)", ["f(1)"]),
        ("x = await f(g(2))", ["f(g(2))"]),
        ("await gather(f(1), g(2))", ["f(1)", "g(2)"]),
        ("await asyncio.gather(*[f(p) for p in g(0)])", ["f(p)"]),
        ("t = f(1)\nprint(g(2))\nawait t", ["f(1)"]),
        ("ts = []\nfor p in g(0):\n    ts.append(f(p))\nawait asyncio.gather(*ts)", ["f(p)"]),
        ("ts = [f(1)] + [f(2)]\nfor t in ts:\n    print(await t)", ["f(1)", "f(2)"]),
        ("ts = {k: f(k) for k in 'ab'}\nfor k in ts:\n    await ts[k]", ["f(k)"]),
        ("ts = {'a': f(1)}\nawait asyncio.gather(*ts.values())", ["f(1)"]),
        ("a, b = f(1), g(2)\nawait a\nprint(b)", ["f(1)"]),
        ("x = f(1) if y else g(2)\nawait x", ["f(1)", "g(2)"]),
        ("def one(p):\n    return f(p)\nawait asyncio.gather(one(1), one(2))", ["f(p)"]),
        ("async def one(p):\n    return f(p)\nawait asyncio.gather(one(1))", []),
        ("async def one(p):\n    return await f(p)\nawait asyncio.gather(one(1))", ["f(p)"]),
        ("async def every(ts, n):\n    return await asyncio.gather(*ts)\nawait every([f(1)], g(2))", ["f(1)"]),
        ("async def every(*ts):\n    return await asyncio.gather(*ts)\nawait every(f(1), g(2))", ["f(1)", "g(2)"]),
        ("ts = []\nts += [f(1)]\nawait asyncio.gather(*list(ts))", ["f(1)"]),
        ("if (t := f(1)):\n    await t", ["f(1)"]),
        ("x: object = f(1)\nawait x", ["f(1)"]),
        ("asyncio.run(f(1))", ["f(1)"]),
        ("'é' + await f('ü')", ["f('ü')"]),
        ("x = await f(\n    1,\n)", ["f(\n    1,\n)"]),
        ("await f(1", []),
        ("(" * 500 + ")" * 500, []),
        ("x = " + "-" * 100_000 + "1", []),
        ("x = 1\x00", []),
    ],
)
def test_a_call_is_awaited_where_its_value_flows_into_an_await(program: str, calls: list[str]) -> None:
    assert found(program) == calls
