"""Logging: a hook that tells Python's logging what begins and which tools are called."""

import logging

import upcall
from upcall import Agent, Call, Hooks, SessionAccess, tool
from upcall.models import Script, call

logging.basicConfig(level=logging.INFO, format="%(message)s")
logger = logging.getLogger("calls")


@tool
def add(a: int, b: int) -> int:
    """Add two numbers."""
    return a + b


def begins(session: SessionAccess) -> None:
    logger.info("%s begins", session.agent)


def calls(session: SessionAccess, call: Call) -> None:
    logger.info("%s calls %s(%s)", session.agent, call.name, call.args)


script = Script([call("add", a=2, b=3), lambda request: f"It is {request.messages[-1].results[0].text}."])
agent = Agent("clerk", model=script, tools=[add], hooks=Hooks(begin_session=[begins], before_tool=[calls]))
print(upcall.run(agent, "What is 2 + 3?").text)
