"""Large results lie in the workspace, whole; the model and the log have a preview."""

from __future__ import annotations

import base64
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from core.doubles import Asked, Place, log_of
from core.rules import check, check_wires
from upcall import Agent, BadKit, HookFailed, Request, Result, Runtime, tool
from upcall.contracts import Workspace
from upcall.events import ContextSet, encode
from upcall.kit import evict
from upcall.messages import Image
from upcall.models import Script, call
from upcall.workspace import Folder, InLog

WHERE = "/large_tool_results"


def giving(value: Any) -> Any:
    @tool
    async def fetch() -> Any:
        """Fetch."""
        return value

    return fetch


async def fetched(value: Any, folder: Path, tokens: int = 100, *, name: str = "s") -> Result:
    """What the model gets of a value that a tool returned."""
    asked = Asked()
    script = Script([call("fetch"), asked.then(lambda r: "ok")])
    agent = Agent("a", model=script, tools=[giving(value)], kit=[evict(tokens)], workspace=Folder(folder))
    async with Runtime(agents=[agent]) as runtime:
        await (await runtime.start(agent, name)).prompt("go")
    check_wires(asked.requests[0])
    return asked.requests[0].messages[-1].results[0]


def stored(folder: Path) -> dict[str, bytes]:
    return {p.name: p.read_bytes() for p in (folder / "large_tool_results").glob("*")}


async def test_a_large_text_is_stored_whole_and_shown_by_head_tail_size_and_path(tmp_path: Path) -> None:
    text = "begin " + "x" * 5000 + " end é"
    result = await fetched(text, tmp_path)

    assert stored(tmp_path) == {"fetch_r1c0": text.encode()}
    head, preview = result.text.split("\n", 1)
    assert head == (
        f"(This result has 5,013 bytes. All of it is stored in {WHERE}/fetch_r1c0; "
        "read what you need from that file.)"
    )
    assert preview.startswith("begin xxx")
    assert "… 4,812 characters …" in preview
    assert preview.endswith("xxx end é")
    assert len(result.text) < 400
    assert not result.is_error


async def test_a_small_result_stays_as_it_is(tmp_path: Path) -> None:
    for value in ["x" * 400, "é" * 100, b"x" * 400, {"a": [1, 2]}, None, Result("", "x", is_error=True)]:
        plain = (await fetched(value, tmp_path)).replace(call_id="")
        assert "stored" not in plain.text
    assert not (tmp_path / "large_tool_results").exists()


async def test_structure_is_stored_as_json_and_an_error_stays_one(tmp_path: Path) -> None:
    result = await fetched({"rows": list(range(500))}, tmp_path)
    assert stored(tmp_path)["fetch_r1c0"].startswith(b'{"rows":[0,1,2,')
    assert result.json is None

    failed = await fetched(Result("", "no " * 500, is_error=True), tmp_path, name="t")
    assert failed.is_error


async def test_binary_is_stored_as_it_is_and_not_as_base64(tmp_path: Path) -> None:
    data = bytes(range(256)) * 10
    result = await fetched(data, tmp_path)

    assert stored(tmp_path) == {"fetch_r1c0": data}
    assert "binary: 00 01 02" in result.text
    assert len(result.text) < 500


async def test_large_pictures_are_stored_as_pictures_and_small_ones_still_shown(tmp_path: Path) -> None:
    picture = b"\x89PNG" + b"p" * 2000
    large = Image(data=base64.b64encode(picture).decode())
    small = Image(data=base64.b64encode(b"tiny").decode())

    assert (await fetched([small, "a picture"], tmp_path)).images == (small,)
    result = await fetched(["here", large, large], tmp_path)

    assert stored(tmp_path) == {"fetch_r1c0": picture, "fetch_r1c0_2": picture}
    assert result.images == ()
    assert result.text.endswith("here")


async def test_only_the_preview_is_ever_in_the_log(tmp_path: Path, place: Place) -> None:
    script = Script([call("fetch"), "ok"])
    agent = Agent("a", model=script, tools=[giving("y" * 100_000)], kit=[evict(100)], workspace=Folder(tmp_path))
    async with Runtime(place.store(), agents=[agent]) as runtime:
        await (await runtime.start(agent, "s")).prompt("go")
        events = await log_of(runtime)

    assert sum(len(encode(e)) for e in events) < 6_000
    assert (tmp_path / "large_tool_results" / "fetch_r1c0").stat().st_size == 100_000


async def test_file_tools_cut_by_themselves_and_are_left_alone(tmp_path: Path) -> None:
    @tool
    async def read_file(path: str) -> str:
        """Read."""
        return "z" * 9000

    asked = Asked()
    script = Script([call("read_file", path="x"), asked.then(lambda r: "ok")])
    agent = Agent("a", model=script, tools=[read_file], kit=[evict(100)], workspace=Folder(tmp_path))
    async with Runtime(agents=[agent]) as runtime:
        await (await runtime.start(agent)).prompt("go")

    assert len(asked.requests[0].messages[-1].results[0].text) == 9000


async def test_sessions_that_share_a_workspace_do_not_overwrite_each_other(tmp_path: Path) -> None:
    await fetched("1" * 500, tmp_path, name="one")
    result = await fetched("2" * 500, tmp_path, name="two")
    assert sorted(stored(tmp_path).values()) == [b"1" * 500, b"2" * 500]
    path = result.text.split(f"{WHERE}/")[1].split(";")[0]
    assert stored(tmp_path)[path] == b"2" * 500


async def test_children_that_run_side_by_side_do_not_either(tmp_path: Path) -> None:
    def low(name: str) -> Agent:
        script = Script([call("fetch"), "ok"])
        return Agent(name, model=script, tools=[giving(name * 500)], kit=[kit])

    kit = evict(100)
    names = ["a", "b", "c"]
    script = Script([[call("task", agent=n, prompt="go") for n in names], "ok"])
    top = Agent("top", model=script, agents=[low(n) for n in names], workspace=Folder(tmp_path))
    async with Runtime(agents=[top]) as runtime:
        assert (await (await runtime.start(top)).prompt("go")).text == "ok"

    assert sorted(stored(tmp_path).values()) == [n.encode() * 500 for n in names]


async def test_what_can_not_be_stored_is_told_and_the_rest_of_the_turn_continues(tmp_path: Path) -> None:
    (tmp_path / "large_tool_results").write_text("in the way")
    result = await fetched("q" * 5000, tmp_path)

    assert "bytes and can't be stored: /large_tool_results/fetch_r1c0" in result.text
    assert "qqq" in result.text


async def test_without_a_workspace_no_session_begins() -> None:
    agent = Agent("a", model=Script(["ok"]), kit=[evict()])
    async with Runtime(agents=[agent]) as runtime:
        with pytest.raises(HookFailed, match=r"evict: a has no workspace.*Folder"):
            await runtime.start(agent)
    with pytest.raises(BadKit, match="evict: tokens=0"):
        evict(0)


values = st.one_of(
    st.text(max_size=300).map(lambda t: t * 3),
    st.binary(max_size=900),
    st.lists(st.integers(), max_size=120),
    st.binary(min_size=1, max_size=700).map(lambda b: Image(data=base64.b64encode(b).decode())),
    st.tuples(st.text(max_size=200), st.binary(min_size=1, max_size=500)).map(
        lambda t: [t[0], Image(data=base64.b64encode(t[1]).decode())]
    ),
)


@pytest.mark.slow
@given(st.lists(st.lists(values, min_size=1, max_size=3), min_size=1, max_size=4), st.integers(1, 80))
async def test_any_history_stays_valid_and_small_and_what_is_gone_is_found_by_its_path(
    rounds: list[list[Any]], tokens: int
) -> None:
    left, requests = dict[str, Any](), list[Request]()

    @tool
    async def fetch(number: str) -> Any:
        """Fetch."""
        return left[number]

    def decide(request: Request) -> Any:
        requests.append(request)
        number = sum(bool(m.calls) for m in request.messages)
        if number >= len(rounds):
            return "ok"
        left.update({f"{number}.{index}": value for index, value in enumerate(rounds[number])})
        return [call("fetch", number=f"{number}.{index}") for index in range(len(rounds[number]))]

    place: Workspace = InLog()
    agent = Agent("a", model=Script(decide), tools=[fetch], kit=[evict(tokens)], workspace=place)
    async with Runtime(agents=[agent]) as runtime:
        await (await runtime.start(agent, "s")).prompt("go")
        events = await log_of(runtime)
    for request in requests:
        check(request.messages)
        check_wires(request)
    written = {e.key for e in events if isinstance(e, ContextSet)}
    for result in [r for m in requests[-1].messages for r in m.results]:
        for line in result.text.splitlines():
            if line.startswith("(This result has"):
                assert f"files:{line.split('stored in ')[1].split(';')[0]}" in written


BIG = """
import asyncio, resource, sys
from upcall import Agent, Runtime, tool
from upcall.kit import evict
from upcall.models import Script, call
from upcall.workspace import Folder

MB = 1024 * 1024

def giving(value):
    @tool
    async def fetch() -> object:
        "Fetch."
        return value()
    return fetch

async def once(name, value):
    script = Script([call("fetch"), "ok"])
    agent = Agent(name, model=script, tools=[giving(value)], kit=[evict(1000)], workspace=Folder(sys.argv[1]))
    async with Runtime(sys.argv[1] + "/log.db", agents=[agent]) as runtime:
        await (await runtime.start(agent, name)).prompt("go")

asyncio.run(once("small", lambda: KIND("x") * 100_000))
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
asyncio.run(once("big", lambda: KIND("x") * (50 * MB)))
print((resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) * 1024 / MB)
"""


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["str", "(lambda c: c.encode())"], ids=["text", "bytes"])
def test_fifty_megabytes_take_at_most_twice_their_memory(tmp_path: Path, kind: str) -> None:
    done = subprocess.run(
        [sys.executable, "-c", BIG.replace("KIND", kind), str(tmp_path)],
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    sizes = sorted(p.stat().st_size for p in (tmp_path / "large_tool_results").iterdir())
    assert sizes == [100_000, 50 * 1024 * 1024]
    assert (tmp_path / "log.db").stat().st_size < 1024 * 1024
    assert float(done.stdout) < 105
