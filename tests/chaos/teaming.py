"""Teams, a chain and a bridge to be killed: the casts of `asking`'s program when it is run as `chaos.teaming`.

What a worker builds is one line outside the store. A build that was interrupted is looked at before it is repeated,
as a careful model would.
"""

from __future__ import annotations

import asyncio
import json
import re
import sys
from typing import Any

from chaos import asking
from chaos.asking import Cast
from chaos.driver import say
from upcall import Agent, Context, Hooks, Request, Team, chain, tool
from upcall.messages import user
from upcall.models import Script, call
from upcall.teams import bridge
from upcall.tools import Tool

ASKS_MANAGER = ("part1", "part4", "part6")
ASKS_PERSON = ("part0", "part2", "part3", "part7")


def entry(role: str, part: int, sequence: int) -> dict[str, Any]:
    return {"role": role, "task": f"make part{part}", "sequence": sequence, "caller": "manager"}


PLAN = [
    *(entry("developer", part, 1) for part in range(3)),
    *(entry("developer", part, 2) for part in range(3, 6)),
    *(entry("tester", part, 3) for part in (6, 7)),
]
SECOND = [entry("developer", 8, 1), entry("tester", 6, 2), entry("tester", 7, 2)]


class Works:
    """The tools and models of workers that note what they do."""

    def __init__(self, cast: Cast, *, fails: str = "", person: bool = False) -> None:
        self.place, self.effects = cast.place, cast.effects
        self.fails, self.person = fails, person

    def tools(self) -> list[Tool]:
        place, effects = self.place, self.effects

        @tool(repeatable=True)
        async def ask_way(part: str, ctx: Context) -> str:
            """Ask how a part is made."""
            if part in ASKS_MANAGER:
                return str(await ctx.raise_callback(f"how is {part} made?", "blocker"))
            return str(await ctx.raise_callback(f"may {part} be made?", "blocker", kind="request_user_input"))

        @tool
        async def build(part: str, ctx: Context) -> str:
            """Build a part."""
            await asyncio.sleep(0.001)
            effects.note("built", part, ctx.id)
            await asyncio.sleep(0.001)
            return "built"

        @tool(repeatable=True, read_only=True)
        async def look(part: str) -> str:
            """Look whether a part is there."""
            return "yes" if any(words[:2] == ["built", part] for words in place.noted()) else "no"

        return [ask_way, build, look]

    def decide(self, request: Request) -> Any:
        part = re.findall(r"part\d+", request.messages[0].text)[-1]
        if part == self.fails:
            return RuntimeError(f"{part} can't be made")
        called = [c.name for m in request.messages for c in m.calls]
        said = [r.text for m in request.messages for r in m.results]
        asks = part in ASKS_MANAGER or (self.person and part in ASKS_PERSON)
        if asks and not called:
            return call("ask_way", part=part)
        if "build" not in called or said[-1] == "no":
            return call("build", part=part)
        if said[-1].startswith("interrupted"):
            return call("look", part=part)
        return f"{part} is there: {said[0] if asks else 'as usual'}"

    def agent(self, name: str) -> Agent:
        return Agent(name, model=Script(self.decide), tools=self.tools())


def team(cast: Cast, *, fails: str = "", person: bool = False) -> Team:
    """Eight workers in three sequences; with `fails`, that one's failure is planned around."""

    async def manage(request: Request) -> Any:
        if request.purpose == "side_turn":
            return call("answer_callback", value="as planned")
        if len(request.messages) == 1:
            return json.dumps(PLAN)
        say("replanning")
        if cast.place.gate("slow").exists():
            await cast.place.passing("plan2")
        return "Again:\n```json\n" + json.dumps(SECOND) + "\n```"

    works = Works(cast, fails=fails, person=person)
    roles = {"developer": works.agent("developer"), "tester": works.agent("tester")}
    reviewer = Agent("reviewer", model=Script(lambda r: "REPORT\n" + r.messages[-1].text))
    return Team(Agent("manager", model=Script(manage)), roles, reviewer, on_failure="replan")


def line(cast: Cast) -> Agent:
    """Three hops, each of which builds a part."""
    works = Works(cast)

    def hop(name: str, part: str) -> Agent:
        def decide(request: Request) -> Any:
            told = request.messages[0].text
            out = works.decide(request.replace(messages=[user(f"make {part}"), *request.messages[1:]]))
            return f"{name}({told})" if isinstance(out, str) else out

        return Agent(name, model=Script(decide), tools=works.tools())

    return chain(hop("a", "part0"), hop("b", "part2"), hop("c", "part3"), name="line")


def bridged(cast: Cast) -> Agent:
    """The first two of them, wired by hand."""
    first, second, _ = line(cast).agents
    return first.replace(hooks=Hooks(end_turn=[bridge(second)]))


asking.CASTS |= {
    "team": team,
    "replanned": lambda cast: team(cast, fails="part4"),
    "person": lambda cast: team(cast, person=True),
    "line": line,
    "bridged": bridged,
}

if __name__ == "__main__":
    asyncio.run(asking.main(*sys.argv[1:]))
