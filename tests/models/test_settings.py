"""Settings: what each provider is sent, who wins, and what the log keeps of them."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from upcall import (
    Agent,
    BadAgent,
    Hooks,
    ModelRefused,
    Request,
    Runtime,
    Settings,
    SetupError,
    UnknownSetting,
    tool,
)
from upcall.contracts import Model
from upcall.errors import HookFailed, RuntimeClosed
from upcall.models import Anthropic, Local, OpenAIChat, Script, call, fallback_models, openai_body
from upcall.models.local import local_body
from upcall.models.providers import Provided

from . import anthropic_wire, openai_wire
from .history import HELLO, TOOLS
from .server import Server, plain, serving

# pydantic-ai takes seconds to import, and every worker imports every test module: tests import it as they run.
if TYPE_CHECKING:
    from pydantic_ai import messages as theirs
    from pydantic_ai.models.function import AgentInfo

SECRET = "secret-tenant-key-17"
EVERYTHING = Settings(
    temperature=0.5,
    top_p=0.9,
    max_tokens=77,
    stop=["END", "STOP"],
    seed=7,
    reasoning_effort="low",
    tool_choice="look",
    parallel_tool_calls=False,
    extra_body={"user": "u-1", "nested": {"a": [1]}},
    extra_headers={"X-Tenant": SECRET},
)
BUT_SEED = EVERYTHING.replace(seed=None)
OPENAI_SENT = {
    "temperature": 0.5,
    "top_p": 0.9,
    "max_tokens": 77,
    "stop": ["END", "STOP"],
    "seed": 7,
    "reasoning_effort": "low",
    "tool_choice": {"type": "function", "function": {"name": "look"}},
    "parallel_tool_calls": False,
    "user": "u-1",
    "nested": {"a": [1]},
}
ANTHROPIC_SENT = {
    "temperature": 0.5,
    "top_p": 0.9,
    "max_tokens": 77,
    "stop_sequences": ["END", "STOP"],
    "output_config": {"effort": "low"},
    "tool_choice": {"type": "tool", "name": "look", "disable_parallel_tool_use": True},
    "user": "u-1",
    "nested": {"a": [1]},
}


@tool
def look() -> str:
    """Look around."""
    return "nothing"


@tool
def peek() -> str:
    """Look shortly."""
    return "nothing"


def openai(server: Server, **more: Any) -> OpenAIChat:
    return OpenAIChat("m", base_url=f"{server.url}/v1", retries=0, **more)


def anthropic(server: Server, **more: Any) -> Anthropic:
    return Anthropic("m", base_url=server.url, retries=0, **more)


def setting(settings: Settings) -> Hooks:
    """A hook that changes every request's settings."""
    return Hooks(before_model=[lambda session, request: request.replace(settings=settings)])


async def prompted(model: Model, **more: Any) -> None:
    arguments: dict[str, Any] = {"model": model, "tools": [look], **more}
    agent = Agent("a", **arguments)
    try:
        async with Runtime(agents=[agent]) as runtime:
            await (await runtime.start(agent)).prompt("go")
    finally:
        close: Any = getattr(model, "close", None)
        if close is not None:
            await close()


# --- both wires -------------------------------------------------------------------------


@pytest.mark.parametrize("place", ["agent", "model", "hook"])
async def test_every_setting_is_sent_to_openai_compatible_servers(place: str):
    async with serving(openai_wire.OK) as server:
        model = openai(server, settings=EVERYTHING if place == "model" else None)
        hooks = setting(EVERYTHING) if place == "hook" else Hooks()
        await prompted(model, settings=EVERYTHING if place == "agent" else None, hooks=hooks)
    body = server.asked[0].json
    assert {name: body.get(name) for name in OPENAI_SENT} == OPENAI_SENT
    rest = {"model", "messages", "stream", "stream_options", "tools"}
    assert set(body) == {*OPENAI_SENT, *rest}
    assert server.asked[0].headers["x-tenant"] == SECRET


@pytest.mark.parametrize("place", ["agent", "model", "hook"])
async def test_every_setting_but_the_seed_is_sent_to_anthropic(place: str):
    async with serving(anthropic_wire.OK) as server:
        model = anthropic(server, settings=BUT_SEED if place == "model" else None)
        hooks = setting(BUT_SEED) if place == "hook" else Hooks()
        await prompted(model, settings=BUT_SEED if place == "agent" else None, hooks=hooks)
    body = server.asked[0].json
    assert {name: body.get(name) for name in ANTHROPIC_SENT} == ANTHROPIC_SENT
    assert set(body) == {*ANTHROPIC_SENT, "model", "messages", "stream", "tools"}
    assert server.asked[0].headers["x-tenant"] == SECRET


async def test_without_settings_nothing_of_them_is_sent():
    async with serving(openai_wire.OK) as server:
        await prompted(openai(server))
    assert set(server.asked[0].json) == {"model", "messages", "stream", "stream_options", "tools"}


@pytest.mark.parametrize(
    ("choice", "openai_sends", "anthropic_sends"),
    [
        ("auto", "auto", {"type": "auto"}),
        ("none", "none", {"type": "none"}),
        ("required", "required", {"type": "any"}),
        ("look", {"type": "function", "function": {"name": "look"}}, {"type": "tool", "name": "look"}),
    ],
)
async def test_each_tool_choice_is_said_in_the_provider_s_words(
    choice: str, openai_sends: Any, anthropic_sends: Any
):
    async with serving(openai_wire.OK) as one, serving(anthropic_wire.OK) as other:
        await prompted(openai(one), settings=Settings(tool_choice=choice))
        await prompted(anthropic(other), settings=Settings(tool_choice=choice))
    assert one.asked[0].json["tool_choice"] == openai_sends
    assert other.asked[0].json["tool_choice"] == anthropic_sends


async def test_several_calls_at_once_are_allowed_or_not_without_a_tool_choice():
    async with serving(anthropic_wire.OK) as server:
        await prompted(anthropic(server), settings=Settings(parallel_tool_calls=True))
        await prompted(anthropic(server), settings=Settings(parallel_tool_calls=False, tool_choice="none"))
    assert server.asked[0].json["tool_choice"] == {"type": "auto", "disable_parallel_tool_use": False}
    assert server.asked[1].json["tool_choice"] == {"type": "none"}


async def test_what_is_about_tools_is_left_out_where_there_are_none():
    settings = Settings(tool_choice="auto", parallel_tool_calls=False)
    async with serving(openai_wire.OK) as one, serving(anthropic_wire.OK) as other:
        await prompted(openai(one), settings=settings, tools=[])
        await prompted(anthropic(other), settings=settings, tools=[])
    for asked in (one.asked[0], other.asked[0]):
        assert not {"tool_choice", "parallel_tool_calls"} & set(asked.json)


def test_openai_itself_is_told_the_newer_name_of_the_token_limit():
    body = openai_body(HELLO.replace(settings=Settings(max_tokens=5)), "gpt-6")
    assert (body["max_completion_tokens"], "max_tokens" in body) == (5, False)


async def test_a_server_that_wants_the_newer_name_of_the_token_limit_gets_it():
    problem = "Unsupported parameter: 'max_tokens' is not supported. Use 'max_completion_tokens' instead."
    async with serving(plain(400, json.dumps({"error": {"message": problem}})), openai_wire.OK) as server:
        model = openai(server, settings=Settings(max_tokens=5))
        await model.respond(HELLO, None)
        await model.respond(HELLO, None)
        await model.close()
    sent = [{k: v for k, v in asked.json.items() if k.startswith("max_")} for asked in server.asked]
    assert sent == [{"max_tokens": 5}, {"max_completion_tokens": 5}, {"max_completion_tokens": 5}]


async def test_a_model_that_writes_less_than_the_settings_ask_for_is_asked_for_what_it_can():
    limit = "max_tokens: 50000 > 8192, which is the maximum allowed number of output tokens"
    refusal = plain(400, json.dumps({"error": {"type": "invalid_request_error", "message": limit}}))
    async with serving(refusal, anthropic_wire.OK) as server:
        model = anthropic(server, settings=Settings(max_tokens=50_000))
        await model.respond(HELLO, None)
        await model.respond(HELLO.replace(settings=Settings(max_tokens=100)), None)
        await model.close()
    assert [asked.json["max_tokens"] for asked in server.asked] == [50_000, 8192, 100]


async def test_schema_and_effort_share_anthropic_s_output_config():
    schema: dict[str, Any] = {"type": "object", "properties": {}, "additionalProperties": False}
    async with serving(anthropic_wire.OK) as server:
        model = anthropic(server, settings=Settings(reasoning_effort="high"))
        await model.respond(HELLO.replace(output=schema), None)
        await model.close()
    config = server.asked[0].json["output_config"]
    assert (config["effort"], config["format"]["type"]) == ("high", "json_schema")


async def test_an_extra_header_takes_the_place_of_ours_whatever_its_case():
    async with serving(openai_wire.OK) as server:
        await prompted(
            openai(server, api_key="sk-ours", settings=Settings(extra_headers={"x-a": "model", "X-B": "model"})),
            settings=Settings(extra_headers={"authorization": "Basic abc", "X-A": "agent"}),
        )
    headers = server.asked[0].headers
    assert (headers["authorization"], headers["x-a"], headers["x-b"]) == ("Basic abc", "agent", "model")


# --- who wins ---------------------------------------------------------------------------


async def test_the_nearest_wins_field_by_field():
    own = Settings(temperature=0.1, top_p=0.1, max_tokens=1, extra_body={"a": "model", "b": "model", "c": "model"})
    agent = Settings(temperature=0.2, top_p=0.2, extra_body={"b": "agent", "c": "agent"})
    hook = Settings(temperature=0.3, extra_body={"c": "hook"})
    async with serving(openai_wire.OK) as server:
        await prompted(openai(server, settings=own), settings=agent, hooks=setting(hook))
    body = server.asked[0].json
    assert (body["temperature"], body["top_p"], body["max_tokens"]) == (0.3, 0.2, 1)
    assert (body["a"], body["b"], body["c"]) == ("model", "agent", "hook")


async def test_a_later_hook_sees_and_changes_what_an_earlier_one_set():
    seen: list[Settings | None] = []

    async def second(session: Any, request: Request) -> Request:
        seen.append(request.settings)
        return request.replace(settings=Settings(top_p=0.5))

    hooks = Hooks(before_model=[*setting(Settings(temperature=1, top_p=0.9)).before_model, second])
    async with serving(openai_wire.OK) as server:
        await prompted(openai(server), settings=Settings(seed=3), hooks=hooks)
    assert seen == [Settings(seed=3, temperature=1, top_p=0.9)]
    body = server.asked[0].json
    assert (body["seed"], body["temperature"], body["top_p"]) == (3, 1, 0.5)


async def test_a_hook_after_a_failure_may_change_settings_too():
    hooks = Hooks(model_failed=[lambda s, r, e: r.replace(settings=Settings(temperature=0))])
    async with serving(plain(503, "{}"), openai_wire.OK) as server:
        await prompted(openai(server), settings=Settings(seed=3), hooks=hooks)
    assert [asked.json.get("temperature") for asked in server.asked] == [None, 0]
    assert [asked.json["seed"] for asked in server.asked] == [3, 3]


async def test_a_hook_that_gives_no_settings_value_fails_by_name():
    with pytest.raises(HookFailed, match="settings must be a Settings value, not dict"):
        await prompted(Script(["x"]), hooks=setting({"temperature": 0}))  # pyright: ignore[reportArgumentType]


async def test_a_script_and_a_model_of_your_own_see_the_settings():
    seen: list[Request] = []

    def brain(request: Request) -> str:
        seen.append(request)
        return "done"

    await prompted(Script(brain), settings=EVERYTHING)
    assert seen[0].settings == EVERYTHING


# --- what a provider does not know --------------------------------------------------------


async def test_a_setting_that_the_provider_does_not_know_is_named_before_anything_is_sent():
    async with serving(anthropic_wire.OK) as server:
        model = anthropic(server)
        for more in ({"settings": Settings(seed=1)}, {"hooks": setting(Settings(seed=1))}):
            with pytest.raises(
                UnknownSetting, match="anthropic:m: does not support the setting seed; it supports temp"
            ) as e:
                await prompted(model, **more)
            assert e.value.names == ("seed",)
        with pytest.raises(UnknownSetting, match="anthropic:x: does not support the setting seed"):
            Anthropic("x", settings=Settings(seed=1))
        assert server.asked == []


def test_a_local_model_names_all_that_it_does_not_know():
    settings = Settings(reasoning_effort="low", extra_headers={"a": "b"}, seed=1)
    with pytest.raises(UnknownSetting, match="the settings reasoning_effort, extra_headers; it supports"):
        Local("model.gguf", settings=settings)


async def test_a_fallback_does_not_hide_a_setting_that_one_of_its_models_does_not_know():
    async with serving(openai_wire.OK) as server:
        both = fallback_models(Anthropic("m", base_url=server.url), openai(server))
        with pytest.raises(UnknownSetting, match="anthropic:m"):
            await prompted(both, settings=Settings(seed=1))
        assert server.asked == []


@pytest.mark.parametrize(
    ("choice", "tools", "problem"),
    [
        ("lock", [look], "requires a call to the tool 'lock', but the request has only look"),
        ("look", [], "requires a call to the tool 'look', but the request has no tools"),
        ("required", [], "requires a call to a tool, but the request has no tools"),
    ],
)
async def test_a_choice_of_a_tool_that_is_not_there_is_refused_before_anything_is_sent(
    choice: str, tools: list[Any], problem: str
):
    async with serving(openai_wire.OK) as server:
        with pytest.raises(ModelRefused, match=problem):
            await prompted(openai(server), tools=tools, settings=Settings(tool_choice=choice))
        assert server.asked == []


@pytest.mark.parametrize(
    ("wrong", "problem"),
    [
        ({"temperature": "hot"}, "temperature must be a number that is not negative, not 'hot'"),
        ({"temperature": -1}, "temperature must be"),
        ({"temperature": True}, "temperature must be"),
        ({"temperature": float("nan")}, "temperature must be"),
        ({"top_p": 2}, "top_p must be a number from 0 to 1, not 2"),
        ({"max_tokens": 0}, "max_tokens must be a positive whole number, not 0"),
        ({"stop": [""]}, "stop must be"),
        ({"stop": 5}, "stop must be"),
        ({"seed": 1.5}, "seed must be a whole number"),
        ({"seed": 2**70}, "seed must be a whole number of at most 64 bits"),
        ({"temperature": 10**400}, "temperature must be"),
        ({"reasoning_effort": ""}, "reasoning_effort must be"),
        ({"tool_choice": ["a"]}, "tool_choice must be"),
        ({"parallel_tool_calls": 1}, "parallel_tool_calls must be True or False"),
        ({"extra_body": {"a": object()}}, "extra_body must hold JSON values only"),
        ({"extra_body": {1: 2}}, "extra_body must have texts as keys"),
        ({"extra_body": [1]}, "extra_body must be a dict"),
        ({"extra_headers": {"a b": "c"}}, "extra_headers must have HTTP header names as keys, not 'a b'"),
        ({"extra_headers": {"X-Key": f"{SECRET}\r\nX: y"}}, "line breaks and control characters; X-Key has some"),
        ({"extra_headers": {"X-Key": 5}}, "X-Key has a int"),
        ({"extra_headers": {"Content-Length": "5"}}, "can't set Content-Length"),
    ],
)
def test_a_wrong_value_is_told_when_it_is_given(wrong: dict[str, Any], problem: str):
    with pytest.raises(SetupError, match=problem) as caught:
        Settings(**wrong)
    assert SECRET not in str(caught.value)


def test_an_agent_takes_a_settings_value_only():
    with pytest.raises(BadAgent, match=r"settings must be a Settings value: settings=Settings\(temperature=0\)"):
        Agent("a", settings={"temperature": 0})  # pyright: ignore[reportArgumentType]
    agent = Agent("a", settings=Settings(stop="END"))
    assert agent.replace(description="x").settings == Settings(stop=("END",))


# --- other providers ----------------------------------------------------------------------


@pytest.mark.slow
async def test_every_setting_goes_through_the_providers_extra_to_an_openai_server():
    from pydantic_ai.models.openai import OpenAIChatModel
    from pydantic_ai.providers.openai import OpenAIProvider

    async with (
        serving(openai_wire.OK) as server,
        OpenAIProvider(base_url=f"{server.url}/v1", api_key="k") as provider,
    ):
        model = Provided(OpenAIChatModel("o9", provider=provider, profile={"supports_thinking": True}))
        await prompted(model, tools=[look, peek], settings=EVERYTHING.replace(temperature=None, top_p=None))
        model = Provided(
            OpenAIChatModel("gpt-4o", provider=provider), settings=Settings(temperature=0.5, top_p=0.9)
        )
        await prompted(model)
    sent = server.asked[0].json
    expected = {k: v for k, v in OPENAI_SENT.items() if k not in ("temperature", "top_p", "max_tokens")}
    assert {name: sent.get(name) for name in expected} == expected
    assert sent["max_completion_tokens"] == 77
    assert server.asked[0].headers["x-tenant"] == SECRET
    assert (server.asked[1].json["temperature"], server.asked[1].json["top_p"]) == (0.5, 0.9)


@pytest.mark.slow
async def test_every_setting_goes_through_the_providers_extra_to_an_anthropic_server():
    from pydantic_ai.models.anthropic import AnthropicModel
    from pydantic_ai.providers.anthropic import AnthropicProvider

    async with (
        serving(anthropic_wire.OK) as server,
        AnthropicProvider(base_url=server.url, api_key="k") as provider,
    ):
        model = Provided(AnthropicModel("claude-sonnet-4-6", provider=provider))
        await prompted(model, tools=[look, peek], settings=BUT_SEED.replace(reasoning_effort=None))
        with pytest.raises(UnknownSetting, match="anthropic:claude-sonnet-4-6: does not support the setting seed"):
            await prompted(model, settings=Settings(seed=1))
    sent = server.asked[0].json
    expected = {k: v for k, v in ANTHROPIC_SENT.items() if k != "output_config"}
    assert {name: sent.get(name) for name in expected} == expected
    assert server.asked[0].headers["x-tenant"] == SECRET
    assert len(server.asked) == 1


@asynccontextmanager
async def their_model(**profile: Any) -> AsyncGenerator[tuple[Provided, list[AgentInfo]], None]:
    from pydantic_ai.models.function import FunctionModel

    seen: list[AgentInfo] = []

    async def answer(messages: list[theirs.ModelMessage], info: AgentInfo) -> AsyncIterator[str]:
        seen.append(info)
        yield "done"

    yield Provided(FunctionModel(stream_function=answer, profile=profile)), seen  # pyright: ignore[reportArgumentType]


async def test_other_providers_are_given_settings_by_their_own_names():
    async with their_model(supports_thinking=True) as (model, seen):
        await prompted(model, settings=EVERYTHING)
    assert seen[0].model_settings == {
        "temperature": 0.5,
        "top_p": 0.9,
        "max_tokens": 77,
        "stop_sequences": ["END", "STOP"],
        "seed": 7,
        "tool_choice": ["look"],
        "parallel_tool_calls": False,
        "extra_body": {"user": "u-1", "nested": {"a": [1]}},
        "extra_headers": {"X-Tenant": SECRET},
    }
    assert seen[0].model_request_parameters.thinking == "low"


@pytest.mark.parametrize(
    ("profile", "settings", "problem"),
    [
        ({}, Settings(reasoning_effort="low"), "does not support the setting reasoning_effort"),
        (
            {"supports_thinking": True},
            Settings(reasoning_effort="huge"),
            "reasoning_effort='huge'; it supports none, min",
        ),
        (
            {"openai_unsupported_model_settings": ("temperature",)},
            Settings(temperature=1),
            "the setting temperature",
        ),
        ({"anthropic_disallows_sampling_settings": True}, Settings(top_p=1), "does not support the setting top_p"),
    ],
)
async def test_what_pydantic_ai_would_leave_out_silently_is_an_error(
    profile: dict[str, Any], settings: Settings, problem: str
):
    async with their_model(**profile) as (model, seen):
        with pytest.raises(ModelRefused, match=problem):
            await prompted(model, settings=settings)
        assert seen == []


# --- local models ---------------------------------------------------------------------------


def test_a_local_model_is_sent_its_settings_and_a_grammar_of_the_tools_it_may_call():
    settings = EVERYTHING.replace(reasoning_effort=None, extra_headers=None, tool_choice="ping")
    body = local_body(TOOLS.replace(settings=settings))
    sent = ("temperature", "top_p", "max_tokens", "stop", "seed", "user")
    assert [body[name] for name in sent] == [0.5, 0.9, 77, ("END", "STOP"), 7, "u-1"]
    options = {
        choice: [
            option["properties"].get("name", {"const": "a reply"})["const"]
            for option in local_body(TOOLS.replace(settings=Settings(tool_choice=choice)))["response_format"][
                "json_schema"
            ]["schema"]["oneOf"]
        ]
        for choice in ("auto", "none", "required", "ping")
    }
    assert options == {
        "auto": ["a reply", "read_config", "ping"],
        "none": ["a reply"],
        "required": ["read_config", "ping"],
        "ping": ["ping"],
    }


# --- side turns, summaries ------------------------------------------------------------------


async def test_a_forced_tool_is_forced_in_turns_only():
    seen: list[tuple[str, Settings | None]] = []

    def brain(request: Request) -> Any:
        seen.append((request.purpose, request.settings))
        return "done" if request.purpose != "turn" or request.messages[-1].results else call("look")

    async def aside(session: Any, reply: Any) -> None:
        await session.prompt("In one word?")
        await session.trigger_compaction(keep_last=1)

    settings = Settings(temperature=0, tool_choice="look", max_tokens=5, stop="x", parallel_tool_calls=False)
    await prompted(Script(brain), settings=settings, hooks=Hooks(end_turn=[aside]))
    assert dict(seen) == {
        "turn": settings,
        "side_turn": settings.replace(tool_choice=None),
        "summary": Settings(temperature=0),
    }


async def test_a_model_s_own_forced_tool_is_forced_in_turns_only():
    async with serving(openai_wire.OK) as server:
        model = openai(server, settings=Settings(tool_choice="ping"))
        for purpose in ("turn", "side_turn", "summary"):
            await model.respond(TOOLS.replace(purpose=purpose), None)
        await model.close()
    assert ["tool_choice" in asked.json for asked in server.asked] == [True, False, False]


# --- the log ----------------------------------------------------------------------------------


def everything_in(folder: Path) -> bytes:
    return b"".join(file.read_bytes() for file in folder.iterdir())


async def test_the_log_keeps_settings_once_and_never_a_header_s_value(tmp_path: Path):
    agent = Agent("a", model=Script(["one", "two", "three"]), tools=[look], settings=EVERYTHING)
    async with Runtime(tmp_path / "log.db", agents=[agent]) as runtime:
        session = await runtime.start(agent, "s")
        await session.prompt("go")
        await session.prompt("again")
        started = [e async for e in runtime.events("s") if e.type == "model_started"]
        first, second = (getattr(event, "options") for event in started)  # noqa: B009
        kept = json.loads(await runtime.store.blob(first))
    assert second == ""
    assert kept["settings"]["temperature"] == 0.5
    assert kept["settings"]["extra_headers"] == {"X-Tenant": "(not kept)"}
    async with Runtime(tmp_path / "log.db", agents=[agent.replace(settings=None)]) as runtime:
        await (await runtime.load("s")).prompt("without")
        await (await runtime.load("s")).trigger_compaction()
        started = [e async for e in runtime.events("s") if e.type == "model_started"]
    assert getattr(started[2], "options") == "none"  # noqa: B009
    assert SECRET.encode() not in everything_in(tmp_path)
    assert SECRET not in repr(agent.settings)


@pytest.mark.slow
async def test_no_error_shows_a_header_s_value(tmp_path: Path):
    from pydantic_ai.models.openai import OpenAIChatModel
    from pydantic_ai.providers.openai import OpenAIProvider

    refusal = plain(400, json.dumps({"error": {"message": f"the tenant {SECRET} is not known"}}))
    async with (
        serving(refusal) as server,
        OpenAIProvider(base_url=f"{server.url}/v1", api_key="k") as provider,
    ):
        for model in (openai(server), anthropic(server)):
            with pytest.raises(ModelRefused, match=r"the tenant \*\*\* is not known"):
                await prompted(model, settings=Settings(extra_headers={"X-Tenant": SECRET}))
        with pytest.raises(ModelRefused, match=r"the tenant \*\*\* is not known"):
            await prompted(
                Provided(OpenAIChatModel("gpt-4o", provider=provider)),
                settings=Settings(extra_headers={"X-Tenant": SECRET}),
            )


@asynccontextmanager
async def interrupted(tmp_path: Path, hooks: Hooks) -> AsyncGenerator[tuple[Server, Agent], None]:
    """A session whose runtime was closed while its model was being asked, and the server that answers now."""
    asked = asyncio.Event()

    async def hang(writer: asyncio.StreamWriter) -> None:
        asked.set()
        await asyncio.Event().wait()

    async with serving(hang, openai_wire.OK) as server:
        model = openai(server)
        agent = Agent("a", model=model, settings=Settings(seed=1, extra_headers={"X-Agent": "a"}), hooks=hooks)
        async with Runtime(tmp_path / "log.db", agents=[agent]) as runtime:
            turn = asyncio.ensure_future((await runtime.start(agent, "s")).prompt("go"))
            await asyncio.wait_for(asked.wait(), 10)
            await runtime.close()
            with pytest.raises(RuntimeClosed):
                await turn
        yield server, agent
        await model.close()


async def test_a_request_that_was_interrupted_has_the_same_settings_and_its_hooks_do_not_run_again(tmp_path: Path):
    ran: list[int] = []

    def change(session: Any, request: Request) -> Request:
        ran.append(1)
        return request.replace(
            settings=Settings(temperature=0.3, extra_body={"n": len(ran)}), output={"type": "object"}
        )

    async with (
        interrupted(tmp_path, Hooks(before_model=[change])) as (server, agent),
        Runtime(tmp_path / "log.db", agents=[agent]) as runtime,
    ):
        await runtime.resume("s")
    assert ran == [1]
    assert server.asked[0].body == server.asked[1].body
    assert server.asked[1].json["temperature"] == 0.3
    assert "response_format" in server.asked[1].json
    assert [asked.headers["x-agent"] for asked in server.asked] == ["a", "a"]


async def test_a_request_that_lost_the_headers_of_a_hook_is_not_sent_without_them(tmp_path: Path):
    hooks = setting(Settings(extra_headers={"X-Tenant": SECRET}))
    async with (
        interrupted(tmp_path, hooks) as (server, agent),
        Runtime(tmp_path / "log.db", agents=[agent]) as runtime,
    ):
        with pytest.raises(ModelRefused, match=r"values are not kept in the log \(X-Tenant\). Resume once more"):
            await runtime.resume("s")
        assert len(server.asked) == 1
        assert (await runtime.resume("s")).status == "done"
    assert [asked.headers["x-tenant"] for asked in server.asked] == [SECRET, SECRET]
    assert [asked.headers["x-agent"] for asked in server.asked] == ["a", "a"]
    assert SECRET.encode() not in everything_in(tmp_path)


@pytest.mark.parametrize("adds", [False, True], ids=["without them", "with new ones"])
async def test_a_hook_may_send_a_request_that_lost_its_headers_only_with_new_ones(tmp_path: Path, adds: bool):
    given = Settings(extra_headers={"X-Tenant": SECRET})

    def again(session: Any, request: Request, error: Exception) -> Request:
        return request.replace(settings=given) if adds else request

    hooks = setting(given) + Hooks(model_failed=[again])
    async with (
        interrupted(tmp_path, hooks) as (server, agent),
        Runtime(tmp_path / "log.db", agents=[agent]) as runtime,
    ):
        if adds:
            assert (await runtime.resume("s")).status == "done"
        else:
            with pytest.raises(ModelRefused, match=r"not kept in the log \(X-Tenant\)"):
                await runtime.resume("s")
        assert [asked.headers.get("x-tenant") for asked in server.asked] == [SECRET] * (2 if adds else 1)
