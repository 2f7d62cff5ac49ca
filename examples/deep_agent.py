"""A deep agent: it writes down what to do, hands work out, and what its helper found lies in their files."""

import upcall
from upcall import Call, Request
from upcall.models import Script, call
from upcall.teams import deep_agent


def think(request: Request) -> str | Call:
    said = [result.text for message in request.messages for result in message.results]
    if request.agent == "searcher":
        return (
            "It is in /found.md." if said else call("write_file", path="/found.md", content="the keys: in the car")
        )
    steps = [
        call("write_todos", todos=[{"content": "find the keys", "status": "in_progress"}]),
        call("task", agent="searcher", prompt="Find the keys. Write what you find to /found.md."),
        call("read_file", path="/found.md"),
    ]
    return steps[len(said)] if len(said) < len(steps) else f"I know: {said[-1].strip()}"


agent = deep_agent(Script(think), subagents=[{"name": "searcher", "description": "Searches."}])
print(upcall.run(agent, "Where are my keys?").text)
