"""What plays the models of the two agents: `script:models.py` takes the attribute `script`."""

from upcall import Request
from upcall.models import Script, call
from upcall.models.script import Plain


def play(request: Request) -> Plain:
    """Decide from the request alone who speaks and what has happened."""
    if request.purpose == "side_turn":
        return call("answer_callback", value="dark green")
    results = [result for message in request.messages for result in message.results]
    if results:
        return results[-1].text
    if request.agent == "manager":
        return call("task", agent="developer", prompt="Write the login page.")
    return call("write_page", name="login")


script = Script(play)
