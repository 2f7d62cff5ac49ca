"""upcall.teams.deep_agent: the preset that deepagents' create_deep_agent is measured beside."""

from __future__ import annotations

from common import C, NA, PROMPT, WORD, expect, main
from peer_upcall import Fake, FakeSub, Upcall
from upcall import Call, Hooks, Request, Response, Runtime
from upcall.teams import deep_agent

HELPER = {"name": "helper", "description": "Helps.", "instructions": "You help.", "model": FakeSub(), "tools": []}


class FakeDeep:
    """Writes a file, reads it, gives a task away, and repeats what came back."""

    name = "fake-deep"

    async def respond(self, request: Request, emit) -> Response:
        C["model"] += 1
        last = request.messages[-1]
        match request.messages[-2].calls[0].name if last.results else "":
            case "write_file":
                return self.calls("read_file", path="/notes.txt")
            case "read_file":
                expect("file", WORD in last.results[0].text, True)
                C["read"] += 1
                return self.calls("task", agent="helper", prompt=PROMPT)
            case "task":
                return Response(f"final: {last.results[0].text}")
        return self.calls("write_file", path="/notes.txt", content=WORD)

    def calls(self, name, **args):
        return Response(calls=(Call("", name, args),))


class Deep(Upcall):
    name = "upcall-deep"
    imports = "from upcall.teams import deep_agent"
    notes = {"W7": "the built-in task tool", "W7p": "the built-in task tool"}

    def agent(self, model, tools=(), hooks=Hooks(), agents=()):
        return deep_agent(
            model, tools, instructions="You are a bot.", subagents=agents, extra_hooks=hooks, name="bot"
        )

    async def sub(self, fan):
        agent = self.agent(Fake("task", {"agent": "helper", "prompt": PROMPT}, fan, counted=True), agents=[HELPER])
        return await self.asked(agent)

    async def deep(self):
        return await self.asked(self.agent(FakeDeep(), agents=[HELPER]))

    async def kits(self, folder):
        raise NA("measured with upcall")

    async def code(self, db):
        raise NA("measured with upcall")

    async def asked(self, agent):
        runtime = await Runtime(":memory:", agents=[agent]).__aenter__()

        async def run():
            s = await runtime.start(agent)
            return (await s.prompt(PROMPT)).text

        return run


if __name__ == "__main__":
    main(Deep)
