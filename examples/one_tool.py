"""The smallest agent with a tool: a script plays the model, so it runs offline."""

import upcall
from upcall import Agent, tool
from upcall.models import Script, call


@tool
def add(a: int, b: int) -> int:
    """Add two numbers.

    a: the first number
    b: the second number
    """
    return a + b


# Each entry is one reply of the model: first a call of the tool, then the text that ends the turn.
agent = Agent(
    "clerk",
    instructions="You calculate. Use the tools, never your head.",
    model=Script([call("add", a=2, b=40), "The sum is 42."]),
    tools=[add],
)

if __name__ == "__main__":
    reply = upcall.run(agent, "What is 2 plus 40?")
    print(reply.status, "-", reply.text)
    assert reply.text == "The sum is 42."
