"""Answers over HTTP: questions and approvals, by two people at once, with values that are hidden."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from upcall import Agent, Context, Hooks, ModelUnavailable, Runtime, tool
from upcall.events import CallbackRevealed
from upcall.messages import Result
from upcall.models import Script, call
from web.office import clerk
from web.serving import get, make_agents, post, serving, until


@pytest.mark.slow
async def test_a_session_is_started_asks_is_answered_and_ends(tmp_path: Path) -> None:
    agent = make_agents(tmp_path)
    async with serving(tmp_path, agent, "--store", "log.db") as server, server.client() as client:
        me = await get(client, "/api/me")
        assert (me["agents"], me["can_start"], me["view_only"]) == (["clerk"], True, False)

        started = await post(
            client, "/api/sessions", {"agent": "clerk", "text": "refund order-7\nquickly", "id": "s1"}
        )
        assert (started["id"], started["title"]) == ("s1", "refund order-7")
        waiting = await until(client, "/api/inbox", lambda found: found["open"])

        (card,) = waiting["open"]
        assert card["message"] == "How much for order-7\nquickly?"
        assert (card["asks"], card["why"]) == ("asks", "because clerk may ask people")
        assert card["why_key"] == "the agent clerk has can_use_host_interaction: true"
        assert (card["title"], card["root"], card["can_answer"]) == ("refund order-7", "s1", True)
        assert [step["state"] for step in card["steps"]] == ["you"]
        assert card["after"].startswith("After your answer: clerk continues")
        assert "sk-live-1234567890ab" not in str(waiting)

        settled = await post(client, f"/api/callbacks/{card['id']}/answer", {"value": 25, "digest": card["seen"]})
        assert (settled["status"], settled["answer"]["right"]) == ("answered", "token")
        assert settled["answer"]["by"] == me["user"]
        found = await until(client, "/api/sessions/s1", lambda one: one["session"]["status"] == "done")
        assert (found["session"]["text"], found["session"]["model_calls"]) == ("order-7 quickly: 25", 2)
        assert (tmp_path / "payments.txt").read_text() == "order-7\nquickly 25\n"
        settled = await until(client, "/api/inbox", lambda one: one["settled"])
        assert [one["id"] for one in settled["settled"]] == [card["id"]]


@pytest.mark.slow
async def test_of_two_tabs_that_answer_one_question_the_first_wins_and_the_other_is_told_who_was_first(
    tmp_path: Path,
) -> None:
    agent = make_agents(tmp_path)
    async with (
        serving(tmp_path, agent, "--store", "log.db") as server,
        server.client() as one,
        server.client() as two,
    ):
        await post(one, "/api/sessions", {"agent": "clerk", "text": "refund A"})
        (card,) = (await until(one, "/api/inbox", lambda found: found["open"]))["open"]
        path = f"/api/callbacks/{card['id']}/answer"

        answers = await asyncio.gather(
            one.post(path, json={"value": 1}), two.post(path, json={"value": 2}), return_exceptions=False
        )

        first, second = sorted(answers, key=lambda answer: answer.status)
        assert (first.status, second.status) == (200, 409)
        late = await second.json()
        assert (late["by"], late["status"]) == ((await first.json())["answer"]["by"], "answered")
        assert late["at"] > 0
        await until(one, "/api/sessions", lambda found: found["sessions"][0]["status"] == "done")
    assert len((tmp_path / "payments.txt").read_text().splitlines()) == 1


@pytest.mark.slow
async def test_an_approval_that_is_edited_beside_a_hidden_value_runs_with_the_real_one(tmp_path: Path) -> None:
    agent = make_agents(tmp_path)
    async with serving(tmp_path, agent, "--store", "log.db") as server, server.client() as client:
        await post(client, "/api/sessions", {"agent": "clerk", "text": "deploy staging"})
        (card,) = (await until(client, "/api/inbox", lambda found: found["open"]))["open"]
        assert (card["asks"], card["hidden"]) == ("wants to run Deploy", 1)
        assert "topsecret" not in str(card)

        path = f"/api/callbacks/{card['id']}/answer"
        wrong = {"approve": True, "args": {**card["args"], "token": "⟦hidden 21 #7⟧"}}
        assert "was hidden" in (await post(client, path, wrong, 422))["error"]
        edited = {"approve": True, "args": {**card["args"], "where": "production"}, "digest": card["seen"]}
        settled = await post(client, path, edited)

        assert settled["answer"]["value"]["approve"] is True
        assert "topsecret" not in str(settled)
        await until(client, "/api/sessions", lambda found: found["sessions"][0]["status"] == "done")
    assert (tmp_path / "deployed.txt").read_text() == "production topsecrettoken-123456\n"


@pytest.mark.slow
async def test_an_edit_on_the_page_that_python_calls_equal_is_an_edit(tmp_path: Path) -> None:
    agent = make_agents(tmp_path)
    async with serving(tmp_path, agent, "--store", "log.db") as server, server.client() as client:
        await post(client, "/api/sessions", {"agent": "clerk", "text": "switch"})
        (card,) = (await until(client, "/api/inbox", lambda found: found["open"]))["open"]
        path = f"/api/callbacks/{card['id']}/answer"

        await post(client, path, {"approve": True, "args": {"state": True}, "digest": card["seen"]})

        await until(client, "/api/sessions", lambda found: found["sessions"][0]["status"] == "done")
    assert (tmp_path / "switched.txt").read_text() == "True"


@pytest.mark.slow
async def test_an_approval_says_why_a_person_is_asked_what_happens_next_and_what_led_to_it(tmp_path: Path) -> None:
    agent = make_agents(tmp_path)
    async with serving(tmp_path, agent, "--store", "log.db") as server, server.client() as client:
        await post(client, "/api/sessions", {"agent": "clerk", "text": "deploy staging"})
        (card,) = (await until(client, "/api/inbox", lambda found: found["open"]))["open"]
    assert card["why"] == "because Deploy needs an approval"
    assert card["why_key"] == "the agent clerk has can_use_host_interaction: true"
    assert card["after"] == "After you approve, Deploy runs with these values. If you reject, clerk is told why."
    told = [(one["label"], one["text"]) for one in card["led"]]
    assert told == [("", "deploy staging"), ("Deploy", 'where="staging" token="⟦hidden 21 #1⟧"')]


@pytest.mark.slow
async def test_an_approval_whose_agents_run_elsewhere_says_how_it_continues(tmp_path: Path) -> None:
    async with Runtime(tmp_path / "log.db", agents=[clerk]) as runtime:
        await (await runtime.start("clerk")).prompt("deploy staging")
    async with serving(tmp_path, "--store", "log.db") as server, server.client() as client:
        (card,) = (await get(client, "/api/inbox"))["open"]
    assert card["after"].startswith("After you approve, Deploy runs with these values. If you reject, ")
    assert card["after"].endswith(f" is told why. {card['goes_on']}")
    assert card["goes_on"].startswith("It continues w")


@pytest.mark.slow
async def test_a_form_that_asks_for_a_password_has_a_field_for_it(tmp_path: Path) -> None:
    @tool
    async def sign_in(ctx: Context) -> str:
        """Sign in."""
        fields = {"password": {"type": "string", "title": "Password"}}
        return str(await ctx.raise_callback("Sign in?", schema={"type": "object", "properties": fields}))

    agent = Agent("porter", model=Script(lambda request: call("sign_in")), tools=[sign_in])
    async with Runtime(tmp_path / "log.db", agents=[agent]) as runtime:
        await (await runtime.start("porter")).prompt("go")
    async with serving(tmp_path, "--store", "log.db") as server, server.client() as client:
        (card,) = (await get(client, "/api/inbox"))["open"]
    assert [(field["name"], field["title"], field["type"]) for field in card["fields"]] == [
        ("password", "Password", "string")
    ]


@pytest.mark.slow
async def test_a_hidden_value_is_shown_to_whoever_may_answer_and_the_log_says_to_whom(tmp_path: Path) -> None:
    agent = make_agents(tmp_path)
    async with serving(tmp_path, agent, "--store", "log.db") as server, server.client() as client:
        await post(client, "/api/sessions", {"agent": "clerk", "text": "deploy staging"})
        (card,) = (await until(client, "/api/inbox", lambda found: found["open"]))["open"]

        shown = await get(client, f"/api/callbacks/{card['id']}?reveal=1")
        assert shown["args"] == {"where": "staging", "token": "topsecrettoken-123456"}
        assert (shown["hidden"], shown["seen"]) == (0, card["seen"])
        me = (await get(client, "/api/me"))["user"]
        rejected = await post(client, f"/api/callbacks/{card['id']}/answer", {"reject": "not today"})
        assert rejected["outcome"] == f"{me} rejected it: not today."
        later = await get(client, f"/api/callbacks/{card['id']}?reveal=1")
        assert "topsecret" not in str(later)
    async with Runtime(tmp_path / "log.db") as runtime:
        revealed = [event async for event in runtime.events() if isinstance(event, CallbackRevealed)]
    assert [(one.callback_id, one.by, one.right) for one in revealed] == [(card["id"], me, "token")]


@pytest.mark.slow
async def test_an_answer_to_something_else_than_was_seen_is_refused(tmp_path: Path) -> None:
    agent = make_agents(tmp_path)
    async with serving(tmp_path, agent, "--store", "log.db") as server, server.client() as client:
        await post(client, "/api/sessions", {"agent": "clerk", "text": "deploy staging"})
        (card,) = (await until(client, "/api/inbox", lambda found: found["open"]))["open"]

        refused = await post(
            client, f"/api/callbacks/{card['id']}/answer", {"approve": True, "digest": "something else"}, 409
        )

        assert refused["status"] == "open"
        assert (await get(client, "/api/inbox"))["open"]
    assert not (tmp_path / "deployed.txt").exists()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("body", "says"),
    [
        ({}, "exactly one of"),
        ({"value": 1, "decline": "no"}, "exactly one of"),
        ({"approve": True}, "it is a question"),
        ({"reject": "no"}, "it is a question"),
        ({"value": 1, "colour": "red"}, "colour"),
        ({"decline": 7}, "expected"),
        ([1], "expected"),
    ],
)
async def test_a_body_that_is_not_an_answer_is_refused_with_the_reason(
    body: object, says: str, tmp_path: Path
) -> None:
    agent = make_agents(tmp_path)
    async with serving(tmp_path, agent, "--store", "log.db") as server, server.client() as client:
        await post(client, "/api/sessions", {"agent": "clerk", "text": "refund A"})
        (card,) = (await until(client, "/api/inbox", lambda found: found["open"]))["open"]
        refused = await post(client, f"/api/callbacks/{card['id']}/answer", body, 422)
        assert says.lower() in refused["error"].lower()


@pytest.mark.slow
async def test_a_declined_question_says_so_and_ends_the_wait(tmp_path: Path) -> None:
    agent = make_agents(tmp_path)
    async with serving(tmp_path, agent, "--store", "log.db") as server, server.client() as client:
        await post(client, "/api/sessions", {"agent": "clerk", "text": "refund A"})
        (card,) = (await until(client, "/api/inbox", lambda found: found["open"]))["open"]
        declined = await post(client, f"/api/callbacks/{card['id']}/answer", {"decline": "ask legal"})
        assert (declined["status"], declined["can_answer"]) == ("declined", False)
        await until(client, "/api/sessions", lambda found: found["sessions"][0]["status"] == "done")
    assert not (tmp_path / "payments.txt").exists()


@pytest.mark.slow
async def test_a_conversation_is_read_with_its_calls_and_without_what_a_hook_replaced(tmp_path: Path) -> None:
    @tool
    async def read_key(name: str) -> str:
        """Read."""
        return "hunter2hunter2 is what nobody may see"

    def replace(session: Any, called: Any, result: Result) -> Result:
        return result.replace(text="(hidden by a hook)")

    script = Script(
        [["I look.", call("read_key", name="main")], "ready", ModelUnavailable("script", "line is dead")]
    )
    agent = Agent("keeper", model=script, tools=[read_key], hooks=Hooks(after_tool=(replace,)))
    async with Runtime(tmp_path / "log.db", agents=[agent]) as runtime:
        session = await runtime.start("keeper", "s1")
        await session.prompt("look, the key is sk-live-hunter3hunter3hunter3")
        with pytest.raises(ModelUnavailable):
            await session.prompt("again")
    async with serving(tmp_path, "--store", "log.db") as server, server.client() as client:
        said = await get(client, "/api/sessions/s1/conversation")
        await get(client, "/api/sessions/nope/conversation", 404)
    assert [(one["role"], one["text"]) for one in said][1:4] == [
        ("assistant", "I look."),
        ("assistant", "ready"),
        ("user", "again"),
    ]
    assert said[-1]["role"] == "note"
    assert "line is dead" in said[-1]["text"]
    (made,) = said[1]["calls"]
    assert (made["id"], made["label"], made["args"]) == ("r1c0", "Read key", {"name": "main"})
    assert (made["status"], made["result"]) == ("done", "(hidden by a hook)")
    assert "hunter" not in str(said)
