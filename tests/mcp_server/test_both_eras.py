"""The SDK's own client, of both eras and over both transports, drives agents and answers what they ask."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest
from mcp_types import ElicitResult

from mcp_server.serving import accept, accepting, connected, effects, make_desk, replying, text_of

BOTH = pytest.mark.parametrize("era", ["legacy", "modern"])
EVERYWHERE = pytest.mark.parametrize(
    ("transport", "era"), [("stdio", "legacy"), ("stdio", "modern"), ("http", "legacy"), ("http", "modern")]
)
DECLINE, CANCEL = ElicitResult(action="decline"), ElicitResult(action="cancel")


@pytest.mark.slow
@EVERYWHERE
async def test_a_client_answers_a_form_and_an_approval_and_each_effect_happens_once(
    tmp_path: Path, transport: str, era: str
) -> None:
    make_desk(tmp_path)
    seen: list[tuple[str, dict[str, Any]]] = []
    ask = replying(accept(answer="Rex"), accept(decision="approve"), seen=seen)
    async with connected(tmp_path, transport, era, ask) as client:
        tools = {one.name: one for one in (await client.list_tools()).tools}
        named = await client.call_tool("desk", {"prompt": "name"})
        paid = await client.call_tool("desk", {"prompt": "pay 3 ann"})
    assert list(tools) == ["desk", "answer", "status", "inbox", "cancel"]
    assert (tools["desk"].description or "").startswith("Looks after pets.")
    assert named.structured_content["text"] == "done: registered Rex"
    assert paid.structured_content["text"] == "done: paid 3 to ann"
    assert effects(tmp_path) == ["registered Rex", "paid 3 to ann"]
    question, approval = seen
    assert "What is its name?" in question[0]
    assert 'amount = 3\n  to = "ann"' in approval[0]
    assert approval[1]["properties"]["decision"]["enum"] == ["approve", "approve for this session", "reject"]


@BOTH
async def test_every_type_of_field_becomes_a_value_of_the_schema(tmp_path: Path, era: str) -> None:
    make_desk(tmp_path)
    seen: list[tuple[str, dict[str, Any]]] = []
    filled = accept(
        name="Rex", age=3, weight=2.5, tame=True, kind="dog", size="l", likes=["fish"], chip='{"id": 7}'
    )
    async with connected(tmp_path, "memory", era, replying(filled, seen=seen)) as client:
        result = await client.call_tool("desk", {"prompt": "form"})
    fields = seen[0][1]["properties"]
    assert {name: one["type"] for name, one in fields.items()} == {
        "name": "string", "age": "integer", "weight": "number", "tame": "boolean", "kind": "string",
        "size": "string", "likes": "array", "chip": "string",
    }  # fmt: skip
    assert fields["size"]["oneOf"] == [{"const": "s", "title": "Small"}, {"const": "l", "title": "Large"}]
    assert fields["weight"]["default"] == 1.5
    assert '"chip":{"id":7}' in result.structured_content["text"]
    assert '"size":"l"' in result.structured_content["text"]


@BOTH
async def test_a_bare_yes_approves_nothing_and_the_form_is_shown_again_with_the_reason(
    tmp_path: Path, era: str
) -> None:
    make_desk(tmp_path)
    seen: list[tuple[str, dict[str, Any]]] = []
    ask = replying(accept(decision="yes"), accept(), accept(decision="reject", reason="too much"), seen=seen)
    async with connected(tmp_path, "memory", era, ask) as client:
        result = await client.call_tool("desk", {"prompt": "pay 3 ann"})
    assert "too much" in result.structured_content["text"]
    assert effects(tmp_path) == []
    assert len(seen) == 3
    assert all("choose 'approve' or 'reject'" in message for message, _ in seen[1:])


@BOTH
async def test_edited_arguments_are_those_that_the_tool_gets(tmp_path: Path, era: str) -> None:
    make_desk(tmp_path)
    ask = accepting(decision="approve", arguments='{"amount": 2, "to": "ann"}')
    async with connected(tmp_path, "memory", era, ask) as client:
        await client.call_tool("desk", {"prompt": "pay 3 ann"})
    assert effects(tmp_path) == ["paid 2 to ann"]


@BOTH
async def test_an_edit_in_a_form_that_python_calls_equal_is_an_edit(tmp_path: Path, era: str) -> None:
    make_desk(tmp_path)
    ask = accepting(decision="approve", arguments='{"state": true}')
    async with connected(tmp_path, "memory", era, ask) as client:
        await client.call_tool("desk", {"prompt": "switch"})
    assert effects(tmp_path) == ["switched to True"]


@pytest.mark.slow
@BOTH
async def test_a_declined_question_is_declined_and_a_declined_approval_is_rejected(
    tmp_path: Path, era: str
) -> None:
    make_desk(tmp_path)
    async with connected(tmp_path, "memory", era, replying(DECLINE)) as client:
        question = await client.call_tool("desk", {"prompt": "kind"})
        approval = await client.call_tool("desk", {"prompt": "pay 3 ann"})
    assert "declined" in question.structured_content["text"]
    assert "declined in the client" in approval.structured_content["text"]
    assert effects(tmp_path) == []


@BOTH
async def test_a_closed_form_settles_nothing_and_the_question_is_answered_later(tmp_path: Path, era: str) -> None:
    make_desk(tmp_path)
    async with connected(tmp_path, "memory", era, replying(CANCEL)) as client:
        left = await client.call_tool("desk", {"prompt": "name"})
        waits = left.structured_content["questions"][0]["id"]
        answered = await client.call_tool("answer", {"callback": waits, "value": "Rex"})
    assert left.structured_content["status"] == "waiting"
    assert "The form was closed" in text_of(left)
    assert answered.structured_content["text"] == "done: registered Rex"
    assert effects(tmp_path) == ["registered Rex"]


@BOTH
async def test_two_questions_of_one_turn_are_both_asked(tmp_path: Path, era: str) -> None:
    make_desk(tmp_path)

    async def ask(message: str, schema: dict[str, Any]) -> ElicitResult:
        return accept(answer="cat" if "Cat or dog?" in message else "Rex")

    async with connected(tmp_path, "memory", era, ask) as client:
        result = await client.call_tool("desk", {"prompt": "both"})
    assert result.structured_content["text"] == "done: registered Rex / cat"
    assert effects(tmp_path) == ["registered Rex"]


@BOTH
async def test_a_client_without_forms_is_told_what_waits_and_answers_with_the_tool(
    tmp_path: Path, era: str
) -> None:
    make_desk(tmp_path)
    async with connected(tmp_path, "memory", era) as client:
        asked = await client.call_tool("desk", {"prompt": "pay 3 ann"})
        waits = asked.structured_content["questions"][0]
        listed = await client.call_tool("inbox", {})
        bare = await client.call_tool("answer", {"callback": waits["id"], "value": "yes"})
        blind = await client.call_tool("answer", {"callback": waits["id"], "approve": True})
        paid = await client.call_tool(
            "answer", {"callback": waits["id"], "approve": True, "digest": waits["digest"]}
        )
        again = await client.call_tool("answer", {"callback": waits["id"], "reject": "no"})
    assert asked.structured_content["status"] == "waiting"
    assert 'amount = 3\n  to = "ann"' in text_of(asked)
    assert f"upcall answer {waits['id']} --approve" in text_of(asked)
    assert listed.structured_content["questions"] == asked.structured_content["questions"]
    assert bare.is_error
    assert blind.is_error
    assert "no call is approved unseen" in text_of(blind)
    assert waits["digest"] not in text_of(blind)
    assert paid.structured_content["text"] == "done: paid 3 to ann"
    assert again.is_error
    assert "was answered by" in text_of(again)
    assert effects(tmp_path) == ["paid 3 to ann"]


@BOTH
async def test_a_session_is_continued_with_its_id_and_other_ids_are_refused(tmp_path: Path, era: str) -> None:
    make_desk(tmp_path)
    async with connected(tmp_path, "memory", era) as client:
        first = await client.call_tool("desk", {"prompt": "hello"})
        session = first.structured_content["session"]
        second = await client.call_tool("desk", {"prompt": "count", "session": session})
        bad = await client.call_tool("desk", {"prompt": "count", "session": "not an id"})
        unknown = await client.call_tool("status", {"session": "nowhere"})
    assert second.structured_content["session"] == session
    assert second.structured_content["turn"] == 2
    assert second.structured_content["text"] == "3 messages"
    assert bad.is_error
    assert "invalid session id" in text_of(bad)
    assert unknown.is_error


@BOTH
async def test_a_prompt_to_a_session_that_waits_asks_its_question_again(tmp_path: Path, era: str) -> None:
    make_desk(tmp_path)
    async with connected(tmp_path, "memory", era) as client:
        asked = await client.call_tool("desk", {"prompt": "name"})
        again = await client.call_tool("desk", {"prompt": "more", "session": asked.structured_content["session"]})
    assert "was not given your prompt" in text_of(again)
    assert again.structured_content["questions"] == asked.structured_content["questions"]


@pytest.mark.slow
@BOTH
async def test_a_long_call_says_how_to_wait_and_status_gives_the_reply(tmp_path: Path, era: str) -> None:
    make_desk(tmp_path)
    async with connected(tmp_path, "memory", era, wait=0) as client:
        begun = await client.call_tool("desk", {"prompt": "sleep 0.3"})
        session = begun.structured_content["session"]
        looks = [await client.call_tool("status", {"session": session}) for _ in range(2)]
        async with asyncio.timeout(30):
            while looks[-1].structured_content["status"] != "done":
                await asyncio.sleep(0.01)
                looks.append(await client.call_tool("status", {"session": session}))
    assert begun.structured_content["status"] == "working"
    assert f"call `status` with session='{session}'" in text_of(begun)
    assert looks[-1].structured_content["text"] == "done: slept 0.3"


@pytest.mark.slow
@BOTH
async def test_status_waits_for_the_reply(tmp_path: Path, era: str) -> None:
    make_desk(tmp_path)
    async with connected(tmp_path, "memory", era, wait=1) as client:
        begun = await client.call_tool("desk", {"prompt": "sleep 1.5"})
        reply = await client.call_tool("status", {"session": begun.structured_content["session"]})
    assert begun.structured_content["status"] == "working"
    assert reply.structured_content["text"] == "done: slept 1.5"


@BOTH
async def test_cancel_ends_a_turn_and_withdraws_what_it_asks(tmp_path: Path, era: str) -> None:
    make_desk(tmp_path)
    async with connected(tmp_path, "memory", era) as client:
        asked = await client.call_tool("desk", {"prompt": "name"})
        session = asked.structured_content["session"]
        cancelled = await client.call_tool("cancel", {"session": session, "reason": "not needed"})
        inbox = await client.call_tool("inbox", {"session": session})
        late = await client.call_tool(
            "answer", {"callback": asked.structured_content["questions"][0]["id"], "value": "Rex"}
        )
    assert cancelled.structured_content["status"] == "cancelled"
    assert inbox.structured_content["questions"] == []
    assert late.is_error
    assert "withdrawn" in text_of(late)
    assert effects(tmp_path) == []


@BOTH
async def test_a_failed_turn_is_an_error_result_without_a_stack_trace(tmp_path: Path, era: str) -> None:
    make_desk(tmp_path)
    async with connected(tmp_path, "memory", era) as client:
        failed = await client.call_tool("desk", {"prompt": "fail"})
        empty = await client.call_tool("desk", {"prompt": "  "})
        odd = await client.call_tool("desk", {"prompt": "x", "colour": "red"})
    assert failed.is_error
    assert "the line is dead" in text_of(failed)
    assert empty.is_error
    assert odd.is_error
    assert "colour" in text_of(odd)
    assert "Traceback" not in text_of(failed)


@pytest.mark.slow
@BOTH
async def test_progress_tells_what_the_agent_does(tmp_path: Path, era: str) -> None:
    make_desk(tmp_path)
    lines: list[tuple[float, str | None]] = []

    async def note(progress: float, total: float | None, message: str | None) -> None:
        lines.append((progress, message))

    async with connected(tmp_path, "memory", era) as client:
        await client.call_tool("desk", {"prompt": "sleep 0.4"}, progress_callback=note)
    assert [done for done, _ in lines] == sorted({done for done, _ in lines})
    assert any("Sleep" in (line or "") for _, line in lines)


@BOTH
async def test_secrets_in_an_approval_are_hidden_and_the_command_that_shows_them_is_named(
    tmp_path: Path, era: str
) -> None:
    make_desk(tmp_path)
    seen: list[tuple[str, dict[str, Any]]] = []
    async with connected(tmp_path, "memory", era, replying(accept(decision="approve"), seen=seen)) as client:
        await client.call_tool("desk", {"prompt": "secret"})
    assert "hunter2" not in seen[0][0]
    assert "inbox --reveal" in seen[0][0]
    assert effects(tmp_path) == ["paid 1 to password=hunter2hunter2"]


@BOTH
async def test_arguments_too_long_for_a_form_are_approved_by_a_person_at_the_command_line(
    tmp_path: Path, era: str
) -> None:
    make_desk(tmp_path)
    async with connected(tmp_path, "memory", era, accepting(decision="approve")) as client:
        asked = await client.call_tool("desk", {"prompt": f"pay 1 {'x' * 40_000}"})
    waits = asked.structured_content["questions"][0]
    assert asked.structured_content["status"] == "waiting"
    assert f"A person has to answer at the command line: upcall answer {waits['id']} --approve" in text_of(asked)
    assert "args" not in waits
    assert len(text_of(asked)) < 2000
    assert effects(tmp_path) == []


@BOTH
async def test_questions_of_two_agents_below_are_asked_with_the_agents_that_passed_them_up(
    tmp_path: Path, era: str
) -> None:
    make_desk(tmp_path)
    seen: list[str] = []

    async def ask(message: str, schema: dict[str, Any]) -> ElicitResult:
        seen.append(message)
        return accept(decision="approve") if "wants to run pay" in message else accept(answer="Rex")

    async with connected(tmp_path, "memory", era, ask) as client:
        result = await client.call_tool("manager", {"prompt": "name / pay 3 ann / blocker"})
    assert "registered Rex" in result.structured_content["text"]
    assert "paid 3 to ann" in result.structured_content["text"]
    assert sorted(effects(tmp_path)) == ["paid 3 to ann", "registered Rex"]
    assert any("route: manager passed it up" in message for message in seen)


@BOTH
async def test_a_prompt_to_a_session_that_runs_is_told_to_wait_and_the_turn_continues(
    tmp_path: Path, era: str
) -> None:
    make_desk(tmp_path)
    async with connected(tmp_path, "memory", era, wait=0) as client:
        begun = await client.call_tool("desk", {"prompt": "sleep 0.5"})
        session = begun.structured_content["session"]
        second = await client.call_tool("desk", {"prompt": "hello", "session": session})
    async with connected(tmp_path, "memory", era) as client:
        reply = await client.call_tool("status", {"session": session})
    assert second.is_error
    assert "is running; call `status`" in text_of(second)
    assert reply.structured_content["turn"] == 1


async def test_a_client_that_never_sends_a_valid_answer_is_told_what_waits_in_the_end(tmp_path: Path) -> None:
    make_desk(tmp_path)
    seen: list[tuple[str, dict[str, Any]]] = []
    async with connected(tmp_path, "memory", "legacy", replying(accept(answer="fish"), seen=seen)) as client:
        result = await client.call_tool("desk", {"prompt": "kind"})
    assert result.structured_content["status"] == "waiting"
    assert 10 < len(seen) < 30
