"""An agent that meets secrets wherever an agent can, and hooks that hide what no pattern knows."""

import asyncio
from pathlib import Path

from upcall import Agent, Context, Hooks, ModelUnavailable, Request, tool
from upcall.contracts import Emit
from upcall.messages import Response, Result
from upcall.models import Script, call
from upcall.models.script import Plain

SECRETS = {
    "environment": "Zx81.environment.value.93",
    "database": "pw-of-the-database-77",
    "prompt": "sk-live-prompt0123456789abcdef",
    "title": "sk-live-title0123456789abcdef",
    "tag": "tag.value.of.a.token.1234",
    "data": "data.value.of.a.password",
    "argument": "argument.value.of.a.password",
    "nested": "nested.value.of.an.api.key",
    "header": "header.value.of.authorization",
    "result": "ghp_result0123456789abcdef0123456789abcdef",
    "json": "json.value.of.a.token.5678",
    "shown": "AKIAIOSFODNN7EXAMPLE",
    "reply": "xoxb-reply-0123456789-abcdef",
    "failure": "sk-live-failure0123456789abcdef",
    "context": "context.value.of.a.secret",
    "choice": "glpat-choice0123456789abc",
    "question": "hf_question0123456789abcdefghijklmnopqr",
    "answer": "npm_answer0123456789abcdefghijklmnopqrstuv",
    "typed": "typed.answer.of.a.password",
    "steer": "sk-live-steer0123456789abcdef",
    "reason": "sk-live-reason0123456789abcdef",
    "child": "sk-live-child0123456789abcdef",
}
"""What patterns, names of fields and values of the environment hide."""

BEHIND_TOOL, BEHIND_MODEL, BEHIND_SHOW = (
    "swordfish behind the tool",
    "swordfish behind the model",
    "swordfish shown",
)
"""What only hooks know to hide."""


@tool
async def read_vault(password: str, options: dict[str, object], ctx: Context) -> str:
    """Read everything."""
    ctx.show(f"found {SECRETS['shown']} and {SECRETS['environment']}\n")
    s = SECRETS
    return (
        f"key {s['result']}, url https://admin:{s['database']}@db.example/x, env {s['environment']}\n"
        f"Authorization: Bearer {s['header']}\n"
    )


@tool
async def read_record() -> dict[str, object]:
    """Read a record."""
    return {"name": "main", "token": SECRETS["json"], "list": [{"name": "API_KEY", "value": SECRETS["json"]}]}


@tool
async def ask_person(ctx: Context) -> str:
    """Ask."""
    given = {"secret": SECRETS["context"], "plain": SECRETS["environment"]}
    choices = [SECRETS["choice"], "another"]
    said = await ctx.raise_callback(f"Is it {SECRETS['question']}?", "blocker", context=given, choices=choices)
    return f"they said {said}"


@tool
async def ask_form(ctx: Context) -> str:
    """Ask for a form."""
    schema = {"type": "object", "properties": {"password": {"type": "string", "default": SECRETS["typed"]}}}
    await ctx.raise_callback("Your login?", "blocker", schema=schema)
    return "thanks"


@tool(needs_approval=True)
async def deploy(where: str, password: str) -> str:
    """Deploy."""
    return f"deployed {where}"


@tool
async def guarded(ctx: Context) -> str:
    """Read what only a hook hides."""
    await until("tool-start")
    ctx.show(f"{BEHIND_SHOW}\n")
    return BEHIND_TOOL


async def until(name: str) -> None:
    """Wait for a file, and say that it is waited for."""
    Path(f"{name}-waits").touch()
    while not Path(name).exists():
        await asyncio.sleep(0.02)


async def hide_result(session: object, called: object, result: Result) -> Result:
    if BEHIND_TOOL in result.text:
        await until("tool-hook")
    return result.replace(text="(hidden by the tool's hook)")


async def hide_reply(session: object, response: Response) -> Response | None:
    if BEHIND_MODEL not in response.text:
        return None
    await until("model-hook")
    return Response("(hidden by the model's hook)")


class Chatty(Script):
    """A scripted model that emits its text in pieces which split secrets."""

    async def respond(self, request: Request, emit: Emit | None) -> Response:
        """Return the reply; its text is emitted seven characters at a time."""
        reply = await super().respond(request, None)
        for at in range(0, len(reply.text) if emit is not None else 0, 7):
            assert emit is not None
            emit("text", reply.text[at : at + 7])
            await asyncio.sleep(0.001)
        return reply


def play(request: Request) -> Plain:
    done = sum(len(message.results) for message in request.messages)
    s = SECRETS
    steps: list[Plain] = [
        [
            f"I use {s['reply']} now.",
            call(
                "read_vault", password=s["argument"], options={"apiKey": s["nested"], "h": f"Bearer {s['header']}"}
            ),
        ],
        call("read_record"),
        call("task", agent="helper", prompt=f"use {s['child']} and {s['environment']}"),
        call("ask_person"),
        call("ask_form"),
        call("deploy", where="x", password=s["argument"]),
    ]
    if done < len(steps):
        return steps[done]
    if "fail" in request.messages[-1].text:
        return ModelUnavailable("script", f"refused the key {s['failure']}")
    return f"All done with {s['reply']} and {s['environment']}."


def play_guarded(request: Request) -> Plain:
    return call("guarded") if request.messages[-1].role == "user" else f"It is {BEHIND_MODEL}."


def play_helper(request: Request) -> Plain:
    return f"helped with {SECRETS['child']}"


helper = Agent("helper", model=Chatty(play_helper))
keeper = Agent(
    "keeper",
    model=Chatty(play),
    tools=[read_vault, read_record, ask_person, ask_form, deploy],
    agents=[helper],
)
guard = Agent(
    "guard",
    model=Chatty(play_guarded),
    tools=[guarded],
    hooks=Hooks(after_tool=(hide_result,), post_response=(hide_reply,)),
)
