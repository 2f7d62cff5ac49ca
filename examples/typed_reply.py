"""A reply with a type: the model is told what is wrong with its JSON and asked again, three times at most."""

from dataclasses import dataclass
from typing import Literal

import upcall
from upcall import Agent
from upcall.models import Script


@dataclass
class Ticket:
    """What the agent promises to return."""

    title: str
    urgency: Literal["low", "high"]


agent = Agent(
    "triage",
    model=Script(
        [
            '{"title": "Login fails", "urgency": "very"}',  # not one of the two words
            '{"title": "Login fails", "urgency": "high"}',
        ]
    ),
    output=Ticket,
)

if __name__ == "__main__":
    reply = upcall.run(agent, "Nobody can log in since this morning!")
    print(reply.output)
    assert reply.output == Ticket("Login fails", "high")
