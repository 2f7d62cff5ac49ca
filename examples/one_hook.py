"""Two hooks: one keeps a tool from running, one changes what the model reads of a result."""

import upcall
from upcall import Agent, Call, Hooks, Result, SessionAccess, tool
from upcall.models import Script, call

FILES = {"notes.txt": "Call 555-0100 about the roof.", "secret.key": "do not read me"}


@tool
def read_file(path: str) -> str:
    """Read a file."""
    return FILES[path]


def guard(session: SessionAccess, call: Call) -> Result | None:
    """A before_tool hook: returning a Result means that the tool does not run."""
    if call.args.get("path", "").endswith(".key"):
        return Result(call.id, "This file is off limits.", is_error=True)
    return None


def hide_numbers(session: SessionAccess, call: Call, result: Result) -> str | None:
    """An after_tool hook: returning text replaces what the model reads."""
    return result.text.replace("555-0100", "[a number]") if "555" in result.text else None


agent = Agent(
    "reader",
    model=Script(
        [
            [call("read_file", path="secret.key"), call("read_file", path="notes.txt")],
            lambda request: " | ".join(result.text for result in request.messages[-1].results),
        ]
    ),
    tools=[read_file],
    hooks=Hooks(before_tool=[guard], after_tool=[hide_numbers]),
)

if __name__ == "__main__":
    reply = upcall.run(agent, "What do the files say?")
    print(reply.text)
    assert reply.text == "This file is off limits. | Call [a number] about the roof."
