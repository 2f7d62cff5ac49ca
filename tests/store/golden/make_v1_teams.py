"""How `v1.teams.jsonl` and `v1.teams.expected.json` were made: a team whose first plan is refused.
It plans anew after a failure, has a chain as a role, waits for a person and is steered; then a second prompt.
They were made once; what a version has written never changes.

    PYTHONPATH=tests python -m store.golden.make_v1_teams
"""

from __future__ import annotations

import asyncio
import json
from typing import Any

import msgspec

from store.golden.make_v1 import FOLDER, summary
from store.golden.make_v1_callbacks import Clock, Kept
from upcall import Agent, Context, Request, Runtime, Team, chain, tool
from upcall.models import Script, call
from upcall.teams import branch, fan_out


def entry(role: str, task: str, sequence: int = 1, **more: str) -> dict[str, Any]:
    return {"role": role, "task": task, "sequence": sequence, **more}


PLANS: list[list[dict[str, Any]]] = [
    [entry("boss", "rule")],
    [entry("developer", "ask", caller="manager"), entry("developer", "fail"), entry("writer", "text", 2)],
    [entry("writer", "poem", caller="manager")],
    [entry("developer", "work")],
]


@tool
async def asks(ctx: Context) -> str:
    """Ask the one above, who does not know."""
    return str(await ctx.raise_callback("Which way?", "blocker"))


def manage(request: Request) -> Any:
    if request.purpose == "side_turn":
        return call("pass_up_callback", reason="the owner knows")
    return json.dumps(PLANS[sum(m.role == "assistant" for m in request.messages)])


def work(request: Request) -> Any:
    said = [r.text for m in request.messages for r in m.results]
    task = request.messages[0].text
    if task == "fail":
        return RuntimeError("it can't be done")
    return call("asks") if task == "ask" and not said else f"{request.agent}: {task} {' '.join(said)}"


def says(name: str) -> Agent:
    return Agent(name, model=Script(lambda r: f"{name}({r.messages[-1].text})"))


def team() -> Team:
    ways = branch(lambda reply: "short", {"long": says("cut"), "short": says("keep")})
    line = chain(
        says("draft"), ways, fan_out([says("one"), says("two")], join=lambda rs: " ".join(r.text for r in rs))
    )
    developer = Agent("developer", model=Script(work), tools=[asks])
    reviewer = Agent("reviewer", model=Script(lambda r: f"reviewed {len(r.messages)}"))
    manager = Agent("manager", model=Script(manage))
    return Team(manager, {"developer": developer, "writer": line}, reviewer, on_failure="replan")


async def main() -> None:
    declared = team()
    async with Runtime(Kept(Clock()), agents=[declared]) as runtime:
        session = await runtime.start(declared, id="golden")
        assert (await session.prompt("go")).status == "waiting"
        await runtime.steer("golden", "be brief", by="ops")
        (callback,) = await runtime.inbox()
        await runtime.answer(callback.id, "left", by="ops")
        assert (await runtime.resume("golden")).text == "reviewed 1"
        assert (await (await runtime.load("golden")).prompt("again")).text == "reviewed 3"
        events = await runtime.store.read_all(0, 10_000)
    name = "v1.teams"
    (FOLDER / f"{name}.jsonl").write_bytes(b"".join(msgspec.json.encode(e) + b"\n" for e in events))
    (FOLDER / f"{name}.expected.json").write_text(json.dumps(summary(events), indent=1, ensure_ascii=False) + "\n")


if __name__ == "__main__":
    asyncio.run(main())
