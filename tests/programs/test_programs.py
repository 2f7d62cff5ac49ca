"""What a program is: calls of the agent's tools under their rules, what it printed, a value, an error to act on."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from callbacks.doubles import Desk, Person
from programs.doubles import Files, outcome, programmer, through, told
from upcall import Agent, Approve, Call, Context, Delta, Hooks, Limits, Reject, Request, Result, tool
from upcall.errors import BadTool, HookFailed
from upcall.events import CallbackRaised, InnerCalled, ToolEnded, ToolStarted
from upcall.kit import evict
from upcall.models import Script, call
from upcall.observe.story import Story
from upcall.workspace import InLog, run_python


@pytest.fixture
def files(tmp_path: Path) -> Files:
    return Files(tmp_path)


# --- what it comes to ---------------------------------------------------------------------


@pytest.mark.parametrize(
    ("program", "text"),
    [
        ("1 + 1", "2"),
        ("print('a', 1)\nprint('b')", "a 1\nb\n"),
        ("print('a', end='')\n'b'", "a\n'b'"),
        ("x = 1", "done; it printed nothing, and its last line has no value"),
        ("import json, re, math\njson.dumps([re.findall('a', 'aba'), math.floor(2.5)])", '\'[["a", "a"], 2]\''),
        ("{'a': (1, 2.5, None, True)}", "{'a': (1, 2.5, None, True)}"),
        ("x = 'é'\r\nprint(x)\r\nx", "é\n'é'"),
    ],
)
async def test_a_result_is_what_was_printed_and_the_last_value(program: str, text: str) -> None:
    result = await outcome(program)
    assert (result.text, result.is_error) == (text, False)


async def test_what_is_printed_is_shown_while_it_is_printed(files: Files) -> None:
    agent = programmer("print('one')\nread_file('a')\nprint('two')", tools=[files.read_file])
    async with Desk().runtime(agent) as runtime:
        session = await runtime.start(agent)
        items = [item async for item in session.stream("go")]
    shown = [i if isinstance(i, Delta) else i.type for i in items if isinstance(i, Delta | ToolStarted)]
    assert [i.text if isinstance(i, Delta) else i for i in shown] == [
        "tool_started", "one\n", "tool_started", "two\n", "over",
    ]  # fmt: skip
    assert {i.call_id for i in shown if isinstance(i, Delta) and i.kind == "output"} == {"r1c0"}


async def test_an_error_names_the_line_as_the_model_wrote_it() -> None:
    result = await outcome("def half(x):\n    return x / 0  # here\n\nprint('before')\nhalf(3)")
    assert result.is_error
    assert result.text.startswith("before\nTraceback")
    assert 'File "program", line 5, in <module>' in result.text
    assert 'File "program", line 2, in half\n    return x / 0  # here' in result.text
    assert result.text.endswith("ZeroDivisionError: division by zero")


async def test_a_program_that_is_not_valid_python_says_where() -> None:
    result = await outcome("x = 1\nprint(x x)")
    assert result.is_error
    assert 'File "program", line 2' in result.text
    assert "SyntaxError" in result.text


async def test_a_program_that_is_too_long_does_not_run() -> None:
    result = await outcome("x = 1\n" * 40_000)
    assert result.is_error
    assert "a program may have at most 50000 characters" in result.text


async def test_variables_and_functions_stay_for_later_programs_of_the_turn_and_no_longer(files: Files) -> None:
    first = "x = [1]\ndef load(p):\n    return read_file(p)"
    agent = programmer(first, "x.append(2)\nload('a')", "x + [load('b')]", tools=[files.read_file])
    desk = Desk()
    await desk.prompt(agent)
    assert [r.text for r in await told(desk, agent)][1:] == ["'<a>'", "[1, 2, '<b>']"]
    async with desk.runtime(second := programmer("x", "x", "x", "x")) as runtime:
        await (await runtime.load("s")).prompt("go on")
    assert "NameError: name 'x' is not defined" in (await told(desk, second))[-1].text


async def test_variables_survive_an_error(files: Files) -> None:
    result = await outcome("x = 5\n1 / 0", "x")
    assert result.text == "5"


async def test_programs_of_one_response_start_alike_and_the_last_ones_variables_stay() -> None:
    plan: list[Any] = [
        call("run_python", code="x = 1"),
        [call("run_python", code="x += 10\nx"), call("run_python", code="x += 100\nx")],
        call("run_python", code="x"),
        "over",
    ]
    agent, desk = Agent("developer", model=Script(plan), tools=[run_python()]), Desk()
    await desk.prompt(agent)
    assert [r.text for r in await told(desk, agent)][1:] == ["11", "101", "101"]


# --- calls out ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    "program",
    [
        "read_file('a')",
        "read_file(path='a')",
        "await read_file('a')",
        "import asyncio\n(await asyncio.gather(read_file('a')))[0]",
        "import asyncio\ntasks = [read_file(p) for p in ['a']]\n(await asyncio.gather(*tasks))[0]",
        "later = read_file('a')\nawait later",
        "import asyncio\nasync def main():\n    return await read_file('a')\nasyncio.run(main())",
        "read = read_file\nread('a')",
        "eval(\"read_file('a')\")",
        "[read_file(p) for p in ['a']][0]",
        "class Reader:\n    def get(self): return read_file('a')\nReader().get()",
    ],
)
async def test_a_tool_is_called_plainly_awaited_or_gathered(program: str, files: Files) -> None:
    result = await outcome(program, tools=[files.read_file])
    assert (result.text, files.noted) == ("'<a>'", ["read a"])


async def test_gathered_calls_run_at_once() -> None:
    both = asyncio.Event()
    here: list[str] = []

    @tool
    async def meet(name: str) -> str:
        """Wait for the other one."""
        here.append(name)
        if len(here) == 2:
            both.set()
        await both.wait()
        return name

    result = await outcome("import asyncio\nawait asyncio.gather(meet('a'), meet('b'))", tools=[meet])
    assert result.text == "['a', 'b']"


async def test_values_cross_as_json_both_ways() -> None:
    seen: list[Any] = []

    @tool
    async def echo(value: Any) -> Any:
        """Give it back."""
        seen.append(value)
        return value

    result = await outcome("echo({'a': [1, 2.5, None, 'é', (1,)]})['a'][3:]", tools=[echo])
    assert (result.text, seen) == ("['é', [1]]", [{"a": [1, 2.5, None, "é", [1]]}])
    for bad in ("lambda: 1", "10 ** 30", "object", "[[" * 3 + "]]" * 3):
        await outcome(f"echo({bad})", tools=[echo])
    result = await outcome("class A: pass\necho(A())", tools=[echo])
    assert result.is_error
    assert "TypeError: echo() takes only JSON values" in result.text


@pytest.mark.parametrize(
    ("program", "problem"),
    [
        ("read_file('a', 'b')", "TypeError: read_file() takes 1 arguments and got 2"),
        ("read_file('a', path='b')", "TypeError: read_file() got several values for 'path'"),
        ("read_file()", "read_file did not run, because its arguments are wrong"),
        ("read_file(path=5)", "read_file did not run, because its arguments are wrong"),
        ("write_file('a')", "NameError: name 'write_file' is not defined"),
        ("read_file('none')", "RuntimeError: read_file failed: FileNotFoundError: none"),
        ("run_python('1')", "NameError: name 'run_python' is not defined"),
    ],
)
async def test_a_wrong_call_raises_in_the_program(program: str, problem: str, files: Files) -> None:
    result = await outcome(program, tools=[files.read_file])
    assert result.is_error
    assert problem in result.text
    caught = f"try:\n    {program}\nexcept Exception as error:\n    print('caught', type(error).__name__)\n7"
    assert (await outcome(caught, tools=[files.read_file])).text.endswith("7")


async def test_a_call_left_running_ends_with_the_program(files: Files) -> None:
    stopped: list[str] = []

    @tool
    async def hang(ctx: Context) -> str:
        """Never end."""
        try:
            return str(await ctx.raise_callback("?", "blocker"))
        finally:
            stopped.append("hang")

    agent, desk = (
        programmer("late = hang()\nif False: await late\nread_file('a')", tools=[hang, files.read_file]),
        Desk(),
    )
    reply = await desk.prompt(agent)
    assert (reply.status, stopped) == ("done", ["hang"])
    ends = [e for e in await desk.log(agent) if isinstance(e, ToolEnded)]
    assert [(e.call_id, e.how) for e in ends] == [("r1c0.2", "ran"), ("r1c0.1", "cancelled"), ("r1c0", "ran")]
    assert await desk.inbox(agent) == []


async def test_each_call_out_is_an_event_below_the_program_and_stays_out_of_the_conversation(files: Files) -> None:
    agent, desk = programmer("read_file('a')\nread_file('b')", tools=[files.read_file]), Desk()
    await desk.prompt(agent)
    log = await desk.log(agent)
    inner = [(e.parent, e.call.id, e.call.args["path"]) for e in log if isinstance(e, InnerCalled)]
    assert inner == [("r1c0", "r1c0.1", "a"), ("r1c0", "r1c0.2", "b")]
    messages = await desk.messages(agent)
    assert [c.name for m in messages for c in m.calls] == ["run_python"]
    assert len([r for m in messages for r in m.results]) == 1
    story = Story()
    told = [(line.label, line.depth) for e in log for line in story.feed(e) if line.kind == "tool"]
    assert told == [
        ("run_python", 0),
        ("read_file", 1),
        ("read_file", 1),
        ("run_python", 0),
    ]  # its beginning and end


async def test_hooks_stand_around_every_call_out(files: Files) -> None:
    seen: list[str] = []

    def before(_: Any, call: Call) -> Call | Result | None:
        seen.append(f"before {call.name}")
        if call.args.get("path") == "secret":
            return Result(call.id, "not for you", is_error=True)
        return call.replace(args={"path": "b"}) if call.args.get("path") == "a" else None

    def after(_: Any, call: Call, result: Result) -> str | None:
        seen.append(f"after {call.name}")
        return f"{result.text}!" if call.name == "read_file" else None

    hooks = Hooks(before_tool=[before], after_tool=[after])
    result = await outcome("read_file('a')", tools=[files.read_file], hooks=hooks)
    assert (result.text, files.noted) == ("'<b>!'", ["read b"])
    assert seen == ["before run_python", "before read_file", "after read_file", "after run_python"]
    result = await outcome("read_file('secret')", tools=[files.read_file], hooks=hooks)
    assert result.is_error
    assert "RuntimeError: not for you" in result.text
    assert files.noted == ["read b"]


async def test_a_hook_that_raises_at_a_call_out_fails_the_turn_and_the_tool_does_not_run(files: Files) -> None:
    def guard(_: Any, call: Call) -> None:
        if call.name == "read_file":
            raise RuntimeError("no")

    agent = programmer("read_file('a')", tools=[files.read_file], hooks=Hooks(before_tool=[guard]))
    with pytest.raises(HookFailed):
        await Desk().prompt(agent)
    assert files.noted == []


@pytest.mark.slow
async def test_limits_of_the_agent_hold_for_calls_out() -> None:
    @tool
    async def slow() -> str:
        """Take long."""
        await asyncio.Event().wait()
        return ""

    @tool
    async def long() -> str:
        """Say much."""
        return "x" * 1000

    limits = Limits(tool_seconds=1, result_chars=400)
    python = run_python().replace(timeout=60.0)  # the limit is for what it calls, not for how fast it begins
    result = await outcome("slow()", tools=[slow], python=python, limits=limits)
    assert "slow was stopped after 1 s" in result.text
    result = await outcome("print(len(long()))", tools=[long], python=python, limits=limits)
    assert int(result.text) < 500


async def test_a_program_gets_a_large_result_whole_where_the_model_would_get_a_preview() -> None:
    @tool
    async def rows() -> list[int]:
        """All rows."""
        return list(range(1000))

    result = await outcome("len(rows())", tools=[rows], kit=[evict(100)], workspace=InLog())
    assert result.text == "1000"


async def test_a_program_delegates_to_agents_below(files: Files) -> None:
    def work(request: Request) -> str:
        return f"did {request.messages[0].text}"

    below = Agent("helper", model=Script(work), description="helps")
    program = "import asyncio\nawait asyncio.gather(*[task('helper', p) for p in ['one', 'two']])"
    agent, desk = programmer(program, agents=[below]), Desk()
    await desk.prompt(agent)
    assert (await told(desk, agent))[0].text == "['did one', 'did two']"
    assert "- task(agent, prompt: str)" in _description(agent, desk)


def _description(agent: Agent, desk: Desk) -> str:
    runtime = desk.runtime(agent)
    return runtime.agents.prepared(agent, Hooks(), asks=False).toolbox["run_python"].description


# --- asking -------------------------------------------------------------------------------


async def test_a_program_asks_in_the_middle_and_continues_at_that_line(place: Desk, files: Files) -> None:
    program = (
        "a = read_file('a')\nprint('asking')\nb = raise_callback('which?', 'blocker')\nprint(a, b, read_file('c'))"
    )
    agent = programmer(program, tools=[files.read_file])
    reply = await through(place, agent, "this one")
    assert reply.status == "done"
    assert (await told(place, agent))[0].text == "asking\n<a> this one <c>\n"
    assert files.noted == ["read a", "read c"]


async def test_a_question_from_a_program_has_all_that_one_from_a_tool_has(desk: Desk) -> None:
    more = "choices=['red', 'blue'], priority='high', context={'n': 1}"
    program = f"raise_callback('which colour?', 'clarification', {more})"
    agent = programmer(program)
    await desk.prompt(agent)
    (callback,) = await desk.inbox(agent)
    assert (callback.message, callback.intent, callback.priority) == ("which colour?", "clarification", "high")
    assert callback.choices == ("red", "blue")
    assert callback.context == {"task": "go", "tool": "run_python", "arguments": {"code": program}, "n": 1}
    raised = next(e for e in await desk.log(agent) if isinstance(e, CallbackRaised))
    assert (raised.origin, raised.given) == ("r1c0.1", {"n": 1})
    await desk.settle(agent, "red")
    await desk.resume(agent)
    assert (await told(desk, agent))[0].text == "'red'"


@pytest.mark.parametrize("value", ["yes", 3, 2.5, True, None, [1, {"a": None}], {"answer": 1}])
async def test_an_answer_reaches_the_program_as_it_was_given(value: Any) -> None:
    agent = programmer("raise_callback('?')")
    await Desk().prompt(agent, host=Person(lambda _: value if value is not None else "none"))
    desk = Desk()
    await desk.prompt(agent)
    await desk.settle(agent, value)
    await desk.resume(agent)
    assert (await told(desk, agent))[0].text == (repr(value) if value is not None else _NOTHING)


_NOTHING = "done; it printed nothing, and its last line has no value"


async def test_nobody_to_ask_gives_none_for_a_query_and_raises_for_a_blocker() -> None:
    alone: dict[str, Any] = {"can_query_caller": False, "can_use_host_interaction": False}
    assert (await outcome("raise_callback('?') is None", **alone)).text == "True"
    result = await outcome("raise_callback('help', 'blocker')", **alone)
    assert result.is_error
    assert "nobody may answer the blocker 'help'" in result.text


async def test_a_wrong_question_raises_in_the_program() -> None:
    result = await outcome("raise_callback('which?', choices='yes')")
    assert "raise_callback did not run, because its arguments are wrong" in result.text
    result = await outcome("raise_callback('which?', kind='shout')")
    assert "kind='shout' is not one of" in result.text


async def test_a_person_who_is_there_answers_while_the_program_stays_in_memory(files: Files) -> None:
    person = Person(lambda c: f"to {c.message}")
    agent, desk = programmer("raise_callback('one') + raise_callback('two')"), Desk()
    reply = await desk.prompt(agent, host=person)
    assert reply.status == "done"
    assert (await told(desk, agent))[0].text == "'to oneto two'"


async def test_gathered_questions_are_answered_in_any_order(place: Desk) -> None:
    program = "import asyncio\nawait asyncio.gather(*[raise_callback(f'q{n}') for n in range(3)])"
    agent = programmer(program)
    await place.prompt(agent)
    for n in (2, 0, 1):
        await place.settle(agent, n, message=f"q{n}")
        reply = await place.resume(agent)
    assert reply.status == "done"
    assert (await told(place, agent))[0].text == "[0, 1, 2]"


async def test_what_is_gathered_beside_a_question_continues_while_that_waits(desk: Desk, files: Files) -> None:
    @tool(name="read_file")
    def read_in_a_thread(path: str) -> None:
        """Read a file."""
        files.note(f"read {path}")

    reads = "async def reads():\n    for name in ['a', 'b', 'c']:\n        await read_file(name)"
    program = f"import asyncio\n{reads}\nawait asyncio.gather(reads(), raise_callback('really?', 'blocker'))"
    agent = programmer(program, tools=[read_in_a_thread])
    assert (await desk.prompt(agent)).status == "waiting"
    assert files.noted == ["read a", "read b", "read c"]
    await desk.settle(agent, "yes")
    assert (await desk.resume(agent)).status == "done"
    assert files.noted == ["read a", "read b", "read c"]


async def test_what_a_hook_asked_about_a_call_out_is_withdrawn_when_the_program_ends_without_it(
    desk: Desk, files: Files
) -> None:
    asked = asyncio.Event()

    async def guard(session: Any, made: Call) -> None:
        if made.name == "read_file":
            await session.raise_callback("may it read?", "blocker")

    @tool
    async def fails() -> None:
        """Fail."""
        await asked.wait()
        raise ValueError("no")

    async def looks(_: Any) -> None:
        asked.set()
        await asyncio.Event().wait()

    program = "import asyncio\nawait asyncio.gather(read_file('a'), fails())"
    agent = programmer(program, tools=[files.read_file, fails], hooks=Hooks(before_tool=[guard]))
    reply = await desk.prompt(agent, host=Person(looks))
    assert reply.status == "done"
    assert [c.status for c in reply.callbacks] == ["withdrawn"]
    assert (await desk.inbox(agent), files.noted) == ([], [])


async def test_a_tool_that_asks_is_waited_for_where_the_program_called_it(place: Desk, files: Files) -> None:
    agent = programmer(
        "read_file('a')\nprint(asking('colour'))\nread_file('b')", tools=[files.asking, files.read_file]
    )
    await through(place, agent, "red")
    assert (await told(place, agent))[0].text == "colour: red\n'<b>'"
    assert files.noted == ["read a", "asking colour", "asking colour", "read b"]


async def test_a_call_out_that_needs_an_approval_waits_for_it_with_its_exact_arguments(
    place: Desk, files: Files
) -> None:
    program = "print(delete_file('x'))\ntry:\n    delete_file('y')\nexcept RuntimeError as error:\n    print(error)"
    agent = programmer(program, tools=[files.delete_file])
    await place.prompt(agent)
    (callback,) = await place.inbox(agent)
    assert (callback.intent, callback.tool, callback.args) == ("approval", "delete_file", {"path": "x"})
    assert files.noted == []
    await place.settle(agent, Approve(args={"path": "z"}))
    await place.resume(agent)
    assert files.noted == ["delete z"]
    await place.settle(agent, Reject("keep it"))
    await place.resume(agent)
    text = (await told(place, agent))[0].text
    assert "changed the arguments to" in text
    assert text.endswith("delete_file was not run: rejected by ops: keep it\n")
    assert files.noted == ["delete z"]


async def test_in_a_side_turn_a_program_may_read_and_neither_write_nor_ask(files: Files) -> None:
    @tool
    async def write_file(path: str) -> str:
        """Write."""
        files.note(f"write {path}")
        return "written"

    programs = ["read_file('a')", "write_file('b')"]
    said: list[str] = []

    def decide(request: Request) -> Any:
        if request.purpose == "turn":
            done = [r for m in request.messages for r in m.results]
            return "over" if done else call("task", agent="below", prompt="ask")
        newest = [r.text for m in request.messages for r in m.results if m is request.messages[-1]]
        said.extend(newest)
        return call("run_python", code=programs.pop(0)) if programs else call("answer_callback", value="ok")

    @tool
    async def ask_up(ctx: Context) -> str:
        """Ask."""
        return await ctx.raise_callback("well?")

    script = Script([call("ask_up"), "over"])
    below = Agent("below", model=script, tools=[ask_up])
    tools = [run_python(), files.read_file, write_file]
    manager = Agent("manager", model=Script(decide), agents=[below], tools=tools)
    reply = await Desk().prompt(manager)
    assert reply.status == "done"
    assert said[0] == "'<a>'"
    assert "write_file can't be used while you answer a callback: only read-only tools can be used" in said[1]
    assert files.noted == ["read a"]


# --- the declaration ----------------------------------------------------------------------


def test_the_description_names_the_agents_own_tools_with_their_arguments(files: Files) -> None:
    @tool(name="look-up")
    async def look_up(word: str, most: int = 3, near: list[str] | None = None) -> str:
        """Look a word up.

        word: the word
        """
        return word

    agent = Agent("developer", tools=[run_python(seconds=2, memory=8_000_000, calls=9), look_up, files.read_file])
    said = agent.toolbox["run_python"].description
    assert "- look_up(word: str, most: int = 3, near = None): Look a word up.\n" in said
    assert "- read_file(path: str): Read a file.\n" in said
    assert "use at most 2 s, 8 MB, 20000 characters of output and 9 calls" in said
    assert agent.toolbox["run_python"].spec.description == said
    assert "read_file" not in Agent("other", tools=[run_python()]).toolbox["run_python"].description


async def test_a_tool_whose_name_is_not_valid_in_python_is_called_by_one_that_is() -> None:
    @tool(name="look-up")
    async def look_up(word: str) -> str:
        """Look a word up."""
        return word * 2

    assert (await outcome("look_up('a')", tools=[look_up])).text == "'aa'"


def test_two_tools_with_one_name_in_python_are_refused() -> None:
    @tool(name="look-up")
    async def one() -> str:
        """One."""
        return ""

    @tool(name="look_up")
    async def two() -> str:
        """Two."""
        return ""

    with pytest.raises(BadTool, match="rename one of them"):
        Agent("developer", tools=[run_python(), one, two])


@pytest.mark.parametrize("name", ["seconds", "memory", "output", "calls"])
def test_a_limit_that_is_not_a_positive_number_is_refused(name: str) -> None:
    for value in (0, -1, True):
        with pytest.raises(BadTool, match=f"{name}="):
            run_python(**{name: value})


async def test_several_runtimes_run_programs_beside_each_other(files: Files) -> None:
    async def one(n: int) -> str:
        return (await outcome(f"read_file('{n}')", tools=[files.read_file])).text

    assert await asyncio.gather(*[one(n) for n in range(4)]) == [f"'<{n}>'" for n in range(4)]


# --- what was changed on the way ----------------------------------------------------------


@pytest.mark.parametrize("value", ["40", 40, {"price": "40"}])
async def test_a_program_gets_the_value_itself_where_an_approver_changed_the_arguments(value: Any) -> None:
    @tool(needs_approval=True)
    def price(item: str) -> Any:
        """Look a price up."""
        return value

    agent, desk = programmer(f"price('a') == {value!r}", tools=[price]), Desk()
    await through(desk, agent, Approve({"item": "b"}))
    (result,) = await told(desk, agent)
    assert result.text == '(The approver changed the arguments to {"item":"b"}.)\nTrue'


@pytest.mark.parametrize("value", ["SECRET", {"key": "SECRET"}, ["SECRET"]])
async def test_a_program_gets_what_a_hook_made_of_a_result(value: Any) -> None:
    @tool
    def look() -> Any:
        """Look."""
        return value

    def hide(_: Any, made: Call, result: Result) -> Result | None:
        return result.replace(text="hidden") if made.name == "look" else None

    agent, desk = programmer("look()", tools=[look], hooks=Hooks(after_tool=[hide])), Desk()
    await desk.prompt(agent)
    (result,) = await told(desk, agent)
    assert result.text == "'hidden'"
    assert not [event for event in await desk.log(agent, None) if "SECRET" in repr(event)]


async def test_a_program_gets_none_from_a_tool_that_returns_none(place: Desk) -> None:
    @tool
    async def save(name: str) -> None:
        """Save."""

    @tool
    async def say() -> str:
        """Say it."""
        return "done"

    agent = programmer("raise_callback('go?')\n(save('x'), say())", tools=[save, say])
    await through(place, agent, "yes")
    assert (await told(place, agent))[0].text == "(None, 'done')"


async def test_a_model_reads_done_where_a_tool_returns_none() -> None:
    @tool
    async def save() -> None:
        """Save."""

    agent = Agent("a", model=Script([call("save"), "over"]), tools=[save])
    desk = Desk()
    await desk.prompt(agent)
    assert (await told(desk, agent))[0].text == "done"
