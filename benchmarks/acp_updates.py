"""What one session update costs: ours beside the official Python SDK's.

Both send 20,000 chunks of 100 characters through a pipe that a thread empties. Run it with the project's own
environment, which has the SDK:  .venv/bin/python benchmarks/acp_updates.py
"""

import asyncio
import os
import threading
import time

UPDATES = 20_000
TEXT = "x" * 100


def drain(fd):
    while os.read(fd, 1 << 20):
        pass


def pipe():
    reading, writing = os.pipe()
    threading.Thread(target=drain, args=(reading,), daemon=True).start()
    return writing


async def ours():
    from upcall.jsonrpc.peer import Peer
    from upcall.jsonrpc.stdio import LineWriter

    writer = LineWriter(pipe(), lambda: None)
    peer = Peer(writer.send, None, most=1 << 20)
    before = time.process_time()
    for number in range(UPDATES):
        update = {
            "sessionUpdate": "agent_message_chunk",
            "content": {"type": "text", "text": TEXT},
            "messageId": "m",
        }
        peer.notify("session/update", {"sessionId": "s", "update": update})
        if number % 50 == 0:
            await asyncio.sleep(0)
        if writer.is_full:
            await writer.drained()
    await writer.flushed(60)
    return time.process_time() - before


async def folded():
    """The whole path of text: a delta, hidden secrets, the update, its line."""
    from upcall.contracts import Delta
    from upcall.events import ModelStarted, SessionStarted, TurnStarted, stamp
    from upcall.hosts.acp.protocol import Client
    from upcall.hosts.acp.tool_calls import ToolCalls
    from upcall.hosts.acp.updates import Updates
    from upcall.jsonrpc.peer import Peer
    from upcall.jsonrpc.stdio import LineWriter
    from upcall.messages import user
    from upcall.observe.labels import Labels
    from upcall.observe.redact import Redactor

    writer = LineWriter(pipe(), lambda: None)
    peer = Peer(writer.send, None, most=1 << 20)
    updates = Updates("s", Client(), ToolCalls(Redactor(), Labels(), "/"))
    for number, event in enumerate([SessionStarted("a"), TurnStarted(1, user("go")), ModelStarted(1)], 1):
        updates.feed(stamp(event, "s", number, number, 0.0))
    sent, before = 0, time.process_time()
    for number in range(UPDATES):
        made, _ = updates.delta(Delta("s", "word " * 19 + "more\n"))
        sent += len(made)
        for session, update in made:
            peer.notify("session/update", {"sessionId": session, "update": update})
        if writer.is_full:
            await writer.drained()
    await writer.flushed(60)
    return time.process_time() - before, sent


async def sdk():
    from acp import update_agent_message_text
    from acp.agent.connection import AgentSideConnection

    loop = asyncio.get_running_loop()
    transport, protocol = await loop.connect_write_pipe(
        asyncio.streams.FlowControlMixin, os.fdopen(pipe(), "wb", 0)
    )
    writer = asyncio.StreamWriter(transport, protocol, None, loop)
    reader = asyncio.StreamReader()
    connection = AgentSideConnection(lambda client: object(), writer, reader)
    before = time.process_time()
    for _ in range(UPDATES):
        await connection.session_update("s", update_agent_message_text(TEXT))
    spent = time.process_time() - before
    transport.close()
    return spent


def main():
    mine = asyncio.run(ours()) / UPDATES * 1e6
    spent, sent = asyncio.run(folded())
    theirs = asyncio.run(sdk()) / UPDATES * 1e6
    print(f"upcall, one update and its line:             {mine:6.1f} µs")
    print(f"upcall, 100 characters from model to line:   {spent / UPDATES * 1e6:6.1f} µs ({sent} updates)")
    print(f"agent-client-protocol (Python SDK), an update: {theirs:4.1f} µs, {theirs / mine:.1f} times ours")


if __name__ == "__main__":
    main()
