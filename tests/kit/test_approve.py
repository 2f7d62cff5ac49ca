"""Which calls have to be approved, in a session and in all that it starts."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from security.measuring import measured
from upcall import Agent, Approve, BadKit, Call, Hooks, Reject, Request, Runtime, SessionAccess, tool
from upcall.kit import approve
from upcall.models import Script, call
from upcall.workspace import Folder, file_tools

RAN: list[str] = []


@pytest.fixture(autouse=True)
def nothing_ran() -> None:
    RAN.clear()


@tool(read_only=True)
async def read_file(path: str) -> str:
    """Read."""
    RAN.append(f"read {path}")
    return path


@tool
async def write_file(path: str, text: str = "") -> str:
    """Write."""
    RAN.append(f"write {path}")
    return "written"


@tool
async def shell(command: str) -> str:
    """Run."""
    RAN.append(command)
    return "ran"


@tool
async def send(to: list[str]) -> str:
    """Send."""
    RAN.append(f"sent to {to}")
    return "sent"


TOOLS = [read_file, write_file, shell, send]


def agent(rules: Any, *calls: Call, name: str = "a", **more: Any) -> Agent:
    """Makes its calls one by one, then says what came of the last."""

    def decide(request: Request) -> Any:
        results = [r for m in request.messages for r in m.results]
        return calls[len(results)] if len(results) < len(calls) else results[-1].text

    return Agent(name, model=Script(decide), tools=TOOLS, kit=[approve(rules)] if rules is not None else (), **more)


async def asked_for(tmp_path: Path, rules: Any, *calls: Call) -> list[tuple[str, Any]]:
    """What had to be approved; everything is."""
    found: list[tuple[str, Any]] = []
    made = agent(rules, *calls)
    async with Runtime(tmp_path / "log.db", agents=[made]) as runtime:
        session = await runtime.start(made, "s")
        reply = await session.prompt("go")
        while reply.status == "waiting":
            (callback,) = await runtime.inbox()
            found.append((callback.tool, callback.args))
            await runtime.answer(callback.id, Approve(), by="me")
            reply = await runtime.resume("s")
    assert len(RAN) == len(calls)
    return found


ALL = [
    call("read_file", path="x"),
    call("write_file", path="x"),
    call("shell", command="ls"),
    call("send", to=["a"]),
]


@pytest.mark.parametrize(
    ("rules", "names"),
    [
        ("read_only", ["write_file", "shell", "send"]),
        ("edits_ask", ["write_file", "shell"]),
        ("all_ask", ["read_file", "write_file", "shell", "send"]),
        ({"write_file": True}, ["write_file"]),
        ({"*": True}, ["read_file", "write_file", "shell", "send"]),
        ({"*_file": True, "read_file": False}, ["write_file"]),
        ({}, []),
    ],
)
async def test_rules_and_presets_say_which_calls_are_approved(tmp_path: Path, rules: Any, names: list[str]) -> None:
    assert [tool for tool, _ in await asked_for(tmp_path, rules, *ALL)] == names


@pytest.mark.parametrize(
    ("rules", "made", "asks"),
    [
        ({"shell": {"command": "rm *"}}, call("shell", command="rm -rf /"), True),
        ({"shell": {"command": "rm *"}}, call("shell", command="rm\n*"), False),
        ({"shell": {"command": "rm *"}}, call("shell", command="rm -r a\nls"), True),
        ({"shell": {"command": "rm *"}}, call("shell", command="RM -r a"), False),
        ({"shell": {"command": "rm *"}}, call("shell", command="ls"), False),
        ({"shell": {"command": ["rm *", "mv *"]}}, call("shell", command="mv a b"), True),
        ({"write_file": {"path": "/etc/*", "text": "*root*"}}, call("write_file", path="/etc/x"), False),
        (
            {"write_file": {"path": "/etc/*", "text": "*root*"}},
            call("write_file", path="/etc/x", text="root"),
            True,
        ),
        ({"write_file": {"text": ""}}, call("write_file", path="x"), True),
        ({"write_file": {"mode": "w"}}, call("write_file", path="x"), True),
        ({"send": {"to": '*"boss"*'}}, call("send", to=["me", "boss"]), True),
        ({"send": {"to": '*"boss"*'}}, call("send", to=["me"]), False),
    ],
)
async def test_globs_look_at_the_arguments(tmp_path: Path, rules: Any, made: Call, asks: bool) -> None:
    assert bool(await asked_for(tmp_path, rules, made)) == asks


async def test_a_rejected_call_does_not_run_and_the_model_is_told(tmp_path: Path) -> None:
    made = agent("all_ask", call("shell", command="ls"))
    async with Runtime(tmp_path / "log.db", agents=[made]) as runtime:
        await (await runtime.start(made, "s")).prompt("go")
        await runtime.answer((await runtime.inbox())[0].id, Reject("not today"), by="me")
        reply = await runtime.resume("s")

    assert reply.text == "shell was not run: rejected by me: not today"
    assert RAN == []


async def test_nobody_to_approve_means_that_it_does_not_run() -> None:
    made = agent("edits_ask", call("shell", command="ls"))
    async with Runtime(agents=[made]) as runtime:
        reply = await (await runtime.start(made)).prompt("go")

    assert "nobody could approve it" in reply.text
    assert RAN == []


async def test_children_inherit_it_and_their_children_too(tmp_path: Path) -> None:
    low = agent(None, call("shell", command="rm x"), name="low")
    middle = Agent("middle", model=Script(_delegates("low")), agents=[low])
    top = Agent("top", model=Script(_delegates("middle")), agents=[middle], kit=[approve({"shell": True})])
    async with Runtime(tmp_path / "log.db", agents=[top]) as runtime:
        reply = await (await runtime.start(top, "s")).prompt("go")
        assert reply.status == "waiting"
        (callback,) = await runtime.inbox()
        assert (callback.agent, callback.tool) == ("low", "shell")
        assert RAN == []

        await runtime.answer(callback.id, Approve(), by="me")
        await runtime.resume("s")
    assert RAN == ["rm x"]


async def test_delegating_and_asking_need_no_approval_of_their_own(tmp_path: Path) -> None:
    low = Agent("low", model=Script(lambda r: "yes"))
    top = Agent("top", model=Script(_delegates("low")), agents=[low], kit=[approve("all_ask")])
    async with Runtime(tmp_path / "log.db", agents=[top]) as runtime:
        assert (await (await runtime.start(top)).prompt("go")).text == "yes"


async def test_somebody_elses_tool_called_task_is_approved_as_all_are(tmp_path: Path) -> None:
    @tool
    async def task(what: str) -> str:
        """Not the runtime's."""
        RAN.append(what)
        return what

    made = Agent("a", model=Script([call("task", what="x"), "ok"]), tools=[task], kit=[approve("all_ask")])
    async with Runtime(tmp_path / "log.db", agents=[made]) as runtime:
        assert (await (await runtime.start(made)).prompt("go")).status == "waiting"
    assert RAN == []


async def test_no_hook_can_slip_a_call_past_the_rules(tmp_path: Path) -> None:
    def sneaks(session: SessionAccess, call: Call) -> Call:
        return call.replace(name="shell", args={"command": "rm -rf /"})

    made = agent({"shell": {"command": "rm *"}}, call("read_file", path="x"), hooks=Hooks(before_tool=[sneaks]))
    async with Runtime(tmp_path / "log.db", agents=[made]) as runtime:
        assert (await (await runtime.start(made, "s")).prompt("go")).status == "waiting"
    assert RAN == []


async def test_edited_arguments_replace_the_old_ones_so_that_one_can_be_removed(tmp_path: Path) -> None:
    made = agent("all_ask", call("write_file", path="x", text="secret"))
    async with Runtime(tmp_path / "log.db", agents=[made]) as runtime:
        await (await runtime.start(made, "s")).prompt("go")
        await runtime.answer((await runtime.inbox())[0].id, Approve(args={"path": "y"}), by="me")
        reply = await runtime.resume("s")

        assert reply.status == "done"
        assert '{"path":"y"}' in reply.text
    assert RAN == ["write y"]


@pytest.mark.parametrize(
    ("rules", "says"),
    [
        ("everything", "'everything' is not a preset; use one of read_only, edits_ask, all_ask"),
        ({"shell": "rm *"}, "'shell': give True, False, or a dict of arguments and globs"),
        ({"shell": {}}, "'shell': give True, False, or a dict of arguments and globs"),
        ({"shell": {"command": 3}}, "'command': 3 is neither a glob nor a list of globs"),
        ({"shell": {"command": []}}, "is neither a glob nor a list of globs"),
        ({3: True}, "3 is not a valid tool name"),
        (["shell"], "give a dict of rules"),
    ],
)
def test_wrong_rules_are_refused_when_they_are_given(rules: Any, says: str) -> None:
    with pytest.raises(BadKit, match="approve: ") as caught:
        approve(rules)
    assert says in str(caught.value)


def _delegates(to: str) -> Any:
    def decide(request: Request) -> Any:
        results = request.messages[-1].results
        return results[0].text if results else call("task", agent=to, prompt="go")

    return decide


PATHS = (
    "/secrets/x",
    "secrets/x",
    "//secrets/x",
    "/a/../secrets/x",
    "/./secrets/x",
    "secrets//x",
    "a/./../secrets/x",
)


@pytest.mark.parametrize("glob", ["/secrets/*", "secrets/*"])
@pytest.mark.parametrize("path", PATHS)
async def test_a_rule_for_a_path_counts_however_the_path_is_written(path: str, glob: str, tmp_path: Path) -> None:
    workspace = tmp_path / "work"
    (workspace / "secrets").mkdir(parents=True)
    agent = Agent(
        "a",
        model=Script(
            [call("write_file", path=path, content="x"), call("write_file", path="/b", content="x"), "end"]
        ),
        kit=[file_tools(), approve({"write_file": {"path": [glob]}})],
        workspace=Folder(workspace),
    )
    async with Runtime(tmp_path / "log.db", agents=[agent], hold=0.0) as runtime:
        waiting = await (await runtime.start(agent, id="s")).prompt("go")
        assert waiting.status == "waiting"
        assert not (workspace / "secrets" / "x").exists()
        await runtime.answer((await runtime.inbox())[0].id, Approve())
        assert (await runtime.resume("s")).status == "done"
    assert (workspace / "secrets" / "x").exists()
    assert (workspace / "b").exists()


@pytest.mark.parametrize("rule", ["/cafe\u0301/*", "/caf\u00e9/*"])
@pytest.mark.parametrize("path", ["/cafe\u0301/x", "/caf\u00e9/x"])
async def test_a_rule_covers_a_path_however_either_writes_its_accents(rule: str, path: str, tmp_path: Path) -> None:
    agent = Agent(
        "writer",
        model=Script([call("write_file", path=path, content="x"), "done"]),
        kit=[file_tools(), approve({"write_file": {"path": rule}})],
        workspace=Folder(tmp_path),
    )
    async with Runtime(tmp_path / "log.db", agents=[agent], hold=0.0) as runtime:
        assert (await (await runtime.start("writer")).prompt("go")).status == "waiting"


async def test_a_path_too_long_for_any_file_needs_approval_without_being_compared(tmp_path: Path) -> None:
    path = "\u0315" * 24_000 + "\u0300" * 24_000  # putting such characters in order takes seconds
    agent = Agent(
        "writer",
        model=Script([call("write_file", path=path, content="x"), "done"]),
        kit=[file_tools(), approve({"write_file": {"path": "/secret/*"}})],
        workspace=Folder(tmp_path),
    )
    async with Runtime(tmp_path / "log.db", agents=[agent], hold=0.0) as runtime:
        session = await runtime.start("writer")
        async with measured() as cost:
            assert (await session.prompt("go")).status == "waiting"
    cost.check()


@tool
def run(command: Any = "", where: str = "") -> str:
    """Run."""
    return "ran"


WORDS = ("rm", "sudo", "curl", "wget", "ssh", "push", "dd", "mkfs", "chmod", "chown", "kill", "reboot", ">")
GLOBS = [f"*{word}*" for word in WORDS]


async def status_of(folder: Path, condition: dict[str, Any], **args: Any) -> str:
    """How a turn ends that calls `run` where this condition requires an approval; the event loop is not held."""
    agent = Agent("a", model=Script([call("run", **args), "done"]), tools=[run], kit=[approve({"run": condition})])
    async with Runtime(folder / "log.db", agents=[agent], hold=0.0) as runtime:
        session = await runtime.start("a")
        async with measured() as cost:
            status = (await session.prompt("go")).status
    cost.check()
    return status


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["text", "list", "object"])
async def test_an_argument_too_long_to_be_compared_needs_approval(kind: str, tmp_path: Path) -> None:
    long: dict[str, Any] = {
        "text": "a" * 1_990_000,
        "list": ["a" * 1_000] * 1_900,
        "object": {"a": "a" * 1_990_000},
    }

    assert await status_of(tmp_path, {"command": GLOBS}, command=long[kind]) == "waiting"
    assert (
        await status_of(tmp_path, {"command": GLOBS, "where": "live*"}, command=long[kind], where="test") == "done"
    )


async def test_an_argument_is_compared_up_to_the_bound(tmp_path: Path) -> None:
    assert await status_of(tmp_path, {"command": GLOBS}, command="a" * 100_000) == "done"
    assert await status_of(tmp_path, {"command": GLOBS}, command="a" * 99_996 + " rm ") == "waiting"
    assert await status_of(tmp_path, {"command": GLOBS}, command="a" * 100_001) == "waiting"
