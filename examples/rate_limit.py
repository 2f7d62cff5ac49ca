"""Rate limiting: a hook that refuses a tool which is called again too soon. The log remembers when it was."""

import time

import upcall
from upcall import Agent, Call, Hooks, Result, SessionAccess, tool
from upcall.models import Script, call

SECONDS = 60.0


@tool
def fetch(page: str) -> str:
    """Fetch a page."""
    return f"{page}: hello"


def rate_limit(session: SessionAccess, call: Call) -> Result | None:
    last, now = session.get_context(f"last {call.name}", 0.0), time.time()
    if now - last < SECONDS:
        return Result(call.id, f"Rate limited: wait {last + SECONDS - now:.0f} s.", is_error=True)
    session.set_context(f"last {call.name}", now)
    return None


calls = [call("fetch", page="a"), call("fetch", page="b")]
script = Script([calls, lambda request: " / ".join(r.text for r in request.messages[-1].results)])
print(upcall.run(Agent("reader", model=script, tools=[fetch], hooks=Hooks(before_tool=[rate_limit])), "Go.").text)
