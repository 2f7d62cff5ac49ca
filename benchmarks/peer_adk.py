"""Google ADK: LlmAgent + Runner, callbacks, request_confirmation, SqliteSessionService, single_turn sub-agents."""

from __future__ import annotations

import itertools
import logging
import os
import warnings

warnings.filterwarnings("ignore")
os.environ.setdefault("OTEL_SDK_DISABLED", "true")
logging.disable(logging.WARNING)

from google.adk.agents import LlmAgent
from google.adk.agents.run_config import RunConfig, StreamingMode
from google.adk.models.base_llm import BaseLlm
from google.adk.models.llm_response import LlmResponse
from google.adk.runners import Runner
from google.adk.sessions import InMemorySessionService
from google.adk.tools import FunctionTool, ToolContext
from google.genai import types

from common import ANSWER, C, CHUNKS, NA, PROMPT, QUESTION, SUB_REPLY, WORD, Peer, main, sub_model_call

CONFIRM = "adk_request_confirmation"
USER = "u"


def content(*parts) -> types.Content:
    return types.Content(role="model", parts=list(parts))


def say(text: str) -> LlmResponse:
    return LlmResponse(content=content(types.Part(text=text)))


def call(name: str, args: dict) -> types.Part:
    return types.Part(function_call=types.FunctionCall(name=name, args=args))


class Fake(BaseLlm):
    model: str = "fake"
    tool_name: str = "echo"
    args: dict = {"x": WORD}

    async def generate_content_async(self, llm_request, stream=False):
        C["model"] += 1
        yield self.reply(llm_request)

    def reply(self, request):
        last = request.contents[-1].parts[-1]
        if last.function_response:
            return say(f"final: {last.function_response.response['result']}")
        return LlmResponse(content=content(call(self.tool_name, self.args)))


class FakeParent(Fake):
    fan: int = 1

    def reply(self, request):
        got = [p.function_response for p in request.contents[-1].parts if p.function_response]
        if got:
            return say(f"final: {got[-1].response['result']} x{len(got)}")
        return LlmResponse(content=content(*(call("helper", {"request": PROMPT}) for _ in range(self.fan))))


class FakeSub(Fake):
    async def generate_content_async(self, llm_request, stream=False):
        await sub_model_call()
        yield say(SUB_REPLY)


class FakeStream(Fake):
    async def generate_content_async(self, llm_request, stream=False):
        C["model"] += 1
        assert stream
        parts = []
        for i in range(CHUNKS):
            parts.append(f"w{i} ")
            yield LlmResponse(content=content(types.Part(text=parts[-1])), partial=True)
        yield LlmResponse(content=content(types.Part(text="".join(parts))), partial=False)


async def echo(x: str) -> dict:
    """Echo x."""
    C["tool"] += 1
    return {"result": x}


def echo_sync(x: str) -> dict:
    """Echo x."""
    C["tool"] += 1
    return {"result": x}


echo_sync.__name__ = "echo"


async def ask_human(question: str, tool_context: ToolContext) -> dict:
    """Ask the human a question."""
    C["tool_entry"] += 1
    got = tool_context.tool_confirmation
    if got is None:
        tool_context.request_confirmation(hint=question, payload={"answer": ""})
        # As require_confirmation=True does; without it the model is called on the placeholder.
        tool_context.actions.skip_summarization = True
        return {"result": "waiting"}
    C["tool"] += 1
    return {"result": got.payload["answer"]}


def hook(key: str):
    async def h(*a, **k):
        C[key] += 1

    return h


HOOKS = {
    "before_model_callback": hook("before_model"),
    "after_model_callback": hook("after_model"),
    "before_tool_callback": hook("before_tool"),
    "after_tool_callback": hook("after_tool"),
}


def user(text: str = PROMPT) -> types.Content:
    return types.Content(role="user", parts=[types.Part(text=text)])


class ADK(Peer):
    name = "adk"
    dists = ("google-adk", "google-genai")
    imports = "from google.adk.agents import LlmAgent; from google.adk.runners import Runner; from google.adk.sessions import InMemorySessionService"
    notes = {
        "W3": "tool_context.request_confirmation with the answer in its payload",
        "W3d": "SqliteSessionService: a new connection for every operation",
        "W7": "the recommended mode='single_turn' sub-agent, not AgentTool",
        "W7p": "the recommended mode='single_turn' sub-agent, not AgentTool",
    }
    sids = itertools.count()

    def agent(self, model, tools, **kw):
        return LlmAgent(name="bot", model=model, instruction="You are a bot.", tools=tools, **kw)

    def runner(self, agent, service=None):
        return Runner(app_name="bench", agent=agent, session_service=service or InMemorySessionService())

    async def open(self, runner, sid):
        await runner.session_service.create_session(app_name="bench", user_id=USER, session_id=sid)

    async def say(self, runner, sid, message):
        text = None
        async for e in runner.run_async(user_id=USER, session_id=sid, new_message=message):
            if e.is_final_response() and e.content and e.content.parts:
                text = e.content.parts[0].text
        return text

    async def turn(self, hooks=False, sync_tool=False, session=False):
        if session:
            raise NA("same as W1: a Runner always has a session service")
        agent = self.agent(Fake(), [echo_sync if sync_tool else echo], **(HOOKS if hooks else {}))
        runner = self.runner(agent)

        async def run():
            sid = f"s{next(self.sids)}"
            await self.open(runner, sid)
            text = await self.say(runner, sid, user())
            await runner.session_service.delete_session(app_name="bench", user_id=USER, session_id=sid)
            return text

        return run

    def ask_agent(self):
        return self.agent(Fake(tool_name="ask_human", args={"question": QUESTION}), [FunctionTool(ask_human)])

    async def start(self, runner, sid):
        await self.open(runner, sid)
        asked = None
        async for e in runner.run_async(user_id=USER, session_id=sid, new_message=user()):
            for fc in e.get_function_calls():
                if fc.name == CONFIRM:
                    asked = fc
        assert asked.args["toolConfirmation"]["hint"] == QUESTION, asked
        C["asked"] += 1
        return asked.id

    async def finish(self, runner, sid, fid):
        r = types.FunctionResponse(
            id=fid, name=CONFIRM, response={"confirmed": True, "payload": {"answer": ANSWER}}
        )
        return await self.say(runner, sid, types.Content(role="user", parts=[types.Part(function_response=r)]))

    def sqlite(self, db):
        from google.adk.sessions.sqlite_session_service import SqliteSessionService

        return SqliteSessionService(str(db))

    async def ask(self, db):
        agent = self.ask_agent()
        if db is None:
            runner = self.runner(agent)

            async def run():
                sid = f"s{next(self.sids)}"
                return await self.finish(runner, sid, await self.start(runner, sid))

            return run
        box = [self.runner(agent, self.sqlite(db))]

        async def run():
            sid = f"s{next(self.sids)}"
            fid = await self.start(box[0], sid)
            box[0] = self.runner(agent, self.sqlite(db))
            return await self.finish(box[0], sid, fid)

        return run

    async def growth(self, db):
        runner = self.runner(self.agent(Fake(), [echo]), self.sqlite(db))
        await self.open(runner, "one")

        async def run():
            return await self.say(runner, "one", user())

        async def close():
            s = await runner.session_service.get_session(app_name="bench", user_id=USER, session_id="one")
            return len(s.events)

        return run, close, "sqlite"

    async def wait(self, db):
        runner = self.runner(self.ask_agent(), self.sqlite(db) if db else None)
        held = {}

        async def park(i):
            held[i] = await self.start(runner, i)

        async def answer(i):
            return await self.finish(runner, i, held.pop(i))

        async def close():
            held.clear()

        return park, answer, close

    async def sub(self, fan):
        child = LlmAgent(
            name="helper", model=FakeSub(), instruction="You help.", description="Helps.", mode="single_turn"
        )
        agent = self.agent(FakeParent(fan=fan), [], sub_agents=[child])
        return self.fresh(agent)

    def fresh(self, agent):
        runner = self.runner(agent)

        async def run():
            sid = f"s{next(self.sids)}"
            await self.open(runner, sid)
            text = await self.say(runner, sid, user())
            await runner.session_service.delete_session(app_name="bench", user_id=USER, session_id=sid)
            return text

        return run

    async def stream(self):
        runner = self.runner(self.agent(FakeStream(), []))
        config = RunConfig(streaming_mode=StreamingMode.SSE)

        async def run():
            sid = f"s{next(self.sids)}"
            await self.open(runner, sid)
            seen, parts = 0, []
            async for e in runner.run_async(user_id=USER, session_id=sid, new_message=user(), run_config=config):
                if e.partial:
                    seen += 1
                    parts.append(e.content.parts[0].text)
            return seen, "".join(parts)

        return run


if __name__ == "__main__":
    main(ADK)
