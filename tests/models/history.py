"""A rich conversation and small requests, for the tests of every adapter."""

from __future__ import annotations

from collections.abc import Sequence

from upcall.messages import Call, Image, Instruction, Message, Request, Result, Text, Thinking, ToolSpec, user

READ = ToolSpec(
    "read_config",
    "Read a file.",
    {"type": "object", "properties": {"path": {"type": "string"}}, "required": ["path"]},
)
PING = ToolSpec("ping", "", {})
DEEP = '{"path":' * 900 + "1" + "}" * 900
HELLO = Request("a", "turn", "Be brief.", (user("hi"),))
TOOLS = Request("a", "turn", "Be brief.", (user("read it"),), (READ, PING))

RICH = Request(
    "a",
    "turn",
    "Be brief.",
    (
        Message(
            "user", (Text("look"), Image(data="aGk=", media_type="image/png"), Instruction("Hurry."), Text("now"))
        ),
        Message(
            "assistant",
            (
                Thinking("hm", {"signature": "sig1"}),
                Thinking("", {"redacted": "xyz"}),
                Text("I will read."),
                Call("r0c0", "read_config", {"path": "x"}),
                Call("r0c1", "ping", {}, broken='{"a":'),
            ),
        ),
        Message("tool", (Result("r0c0", "no such file", is_error=True),)),
        Message("user", (Text("(in between)"),)),
        Message("tool", (Result("r0c1", "", images=(Image(url="https://x.test/i.png"),)),)),
        Message("assistant", (Text("Done."),)),
        Message("assistant", (Text("Really."),)),
        Message("user", (Text("   "),)),
        Message("user", (Text("Thanks."),)),
    ),
    (READ, PING),
)

BROKEN = Request(
    "a",
    "turn",
    "",
    (
        Message("assistant", (Text("hello"), Call("r0c0", "ping", {}), Call("r0c1", "ping", {}))),
        Message("tool", (Result("r0c1", "b"), Result("nobody", "lost"))),
        Message("assistant", (Call("r0c0", "ping", {}), Call("r0c0", "ping", {}))),
        Message("tool", (Result("r0c0", "first"), Result("r0c0", "second"))),
        Message("assistant", (Thinking("only a thought", {"signature": "s"}),)),
        Message("assistant", (Call("", "ping", {}),)),
    ),
    (PING,),
)


def bare(calls: Sequence[Call]) -> tuple[Call, ...]:
    """The calls without the ids that their provider gave them."""
    return tuple(call.replace(provider_id="", provider="") for call in calls)
