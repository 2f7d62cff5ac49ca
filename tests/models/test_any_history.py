"""Whatever a hook leaves of a conversation makes valid bodies; however bytes are cut, they read alike."""

from __future__ import annotations

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from upcall.messages import Call, Image, Instruction, Message, Part, Request, Result, Text, Thinking
from upcall.models import anthropic_body, openai_body
from upcall.models.local import local_body
from upcall.models.sse import Feed

from .history import PING
from .rules import check_anthropic, check_openai

ids = st.sampled_from(["", "r0c0", "r0c1", "r1c0", "a:b"])
words = st.sampled_from(["", " ", "x", "é 🙂"])
images = st.builds(Image, data=st.sampled_from(["", "aGk="]), url=st.sampled_from(["", "https://x.test/i.png"]))
KEPT: list[dict[str, Any]] = [
    {},
    {"signature": "s"},
    {"redacted": "r"},
    {"field": "reasoning_content"},
    {"next": {}},
]
opaque = st.sampled_from(KEPT)
OWN = ("call_0", "functions.ping:1", "toolu_01AbC", "A1b2C3d4E")
calls = st.builds(
    Call,
    ids,
    st.sampled_from(["ping", "functions.ping", "", "ping ping", "é" * 70, "ping\n"]),
    st.just({"a": 1}),
    st.sampled_from(["", "{"]),
    st.sampled_from(["", *OWN]),
    st.sampled_from(["", "own", "other"]),
)
results = st.builds(Result, ids, words, st.booleans(), images=st.lists(images, max_size=1).map(tuple))
parts: st.SearchStrategy[Part] = st.one_of(
    st.builds(Text, words),
    st.builds(Instruction, words),
    images,
    st.builds(Thinking, words, opaque),
    calls,
    results,
)
messages = st.builds(
    Message, st.sampled_from(["user", "assistant", "tool"]), st.lists(parts, max_size=4).map(tuple)
)


@given(st.lists(messages, max_size=8), st.booleans(), st.sampled_from([None, 2000, "adaptive"]))
def test_every_history_makes_valid_bodies(history: list[Message], tools: bool, thinking: int | None):
    request = Request("a", "turn", "", history, (PING,) if tools else ())
    check_openai(openai_body(request, "m", provider="own")["messages"], OWN)
    check_anthropic(anthropic_body(request, "m", thinking=thinking, provider="own"), OWN)
    check_openai(openai_body(request, "m", provider="new")["messages"])
    check_anthropic(anthropic_body(request, "m", thinking=thinking, provider="new"))
    assert all(m["content"] for m in local_body(request)["messages"])


@given(st.lists(messages, max_size=6), st.lists(messages, max_size=3))
def test_what_was_sent_before_is_sent_alike_again(history: list[Message], more: list[Message]):
    """Caches of prompts hold only while their beginning stays the same."""
    history = [*history, Message("user", (Text("x"),))]
    before = openai_body(Request("a", "turn", "", history), "m")["messages"]
    after = openai_body(Request("a", "turn", "", [*history, *more]), "m")["messages"]
    if not any(isinstance(p, Call) for m in history for p in m.parts):
        assert after[: len(before)] == before


@given(
    st.lists(st.sampled_from(["x", "é🙂", '{"a": 1}', " "]), max_size=6),
    st.sampled_from([b"\n", b"\r\n", b"\r"]),
    st.lists(st.integers(1, 9), min_size=1, max_size=20),
)
def test_every_cut_of_a_stream_reads_alike(texts: list[str], end: bytes, sizes: list[int]):
    lines = [b": hello", b"", *(line for t in texts for line in (b"event: e", b"data: " + t.encode(), b""))]
    data = b"".join(line + end for line in lines)
    feed, events, at = Feed(), list[bytes](), 0
    while at < len(data):
        for size in sizes:
            events += feed.take(data[at : at + size])
            at += size
    assert [e.decode() for e in events + feed.end()] == texts
