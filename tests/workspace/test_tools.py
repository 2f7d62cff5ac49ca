"""The tools for files, through agents that call them: what they show, change and refuse."""

from __future__ import annotations

import base64
import tempfile
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from core.doubles import Place
from store.disks import disk
from upcall import Agent, Runtime
from upcall.contracts import Workspace
from upcall.models import Script, call
from upcall.workspace import Folder, InLog, Mounts, file_tools, todo_tools
from upcall.workspace.files import Window
from workspace.doubles import played, results

PIXEL = base64.b64decode(
    "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg=="
)


@pytest.fixture(params=["folder", "in log", "mounted"])
def workspace(request: pytest.FixtureRequest, tmp_path: Path) -> Workspace:
    kind: Any = request.param
    (tmp_path / "work").mkdir()
    kinds = {"folder": Folder(tmp_path / "work"), "in log": InLog()}
    return kinds.get(kind) or Mounts(InLog(), {"/src": Folder(tmp_path / "work")})


# --- reading ----------------------------------------------------------------------------


async def test_what_was_read_is_noted_where_no_workspace_keeps_its_files() -> None:
    write = call("write_file", path="a", content="one\n")
    out = await played(InLog("read"), file_tools(), write, call("read_file", path="a"))
    assert out[1].text == "     1\tone"


async def test_a_file_is_written_listed_read_and_edited(workspace: Workspace) -> None:
    out = await played(
        workspace,
        file_tools(),
        call("write_file", path="src/a.py", content="one\ntwo\n"),
        call("ls", path="/src"),
        call("read_file", path="/src/a.py"),
        call("edit_file", path="/src/a.py", old_string="two", new_string="three"),
        call("read_file", path="src/a.py"),
        call("ls"),
    )

    assert [r.text for r in out] == [
        "wrote /src/a.py, 8 bytes",
        "a.py  8 bytes",
        "     1\tone\n     2\ttwo",
        "edited /src/a.py: replaced 1 occurrence",
        "     1\tone\n     2\tthree",
        "src/",
    ]
    assert not any(r.is_error for r in out)


async def test_a_part_of_a_file_says_where_it_continues(tmp_path: Path) -> None:
    (tmp_path / "long.txt").write_text("".join(f"line {n}\n" for n in range(1, 5001)) + "the last, without an end")

    first, part, last, beyond = await played(
        Folder(tmp_path),
        file_tools(),
        call("read_file", path="long.txt"),
        call("read_file", path="long.txt", offset=2000, limit=2),
        call("read_file", path="long.txt", offset=4999),
        call("read_file", path="long.txt", offset=9000),
    )

    assert first.text.endswith("\n  2000\tline 2000\n… lines 1 to 2000 of 5001; continue with offset=2000")
    assert (
        part.text == "  2001\tline 2001\n  2002\tline 2002\n… lines 2001 to 2002 of 5001; continue with offset=2002"
    )
    assert last.text == "  5000\tline 5000\n  5001\tthe last, without an end"
    assert beyond.text == "(it has 5001 lines; nothing is left after offset=9000)"


@given(
    lines=st.lists(st.text(st.sampled_from("ab\ré"), max_size=4), max_size=12),
    ends=st.booleans(),
    offset=st.integers(0, 14),
    limit=st.integers(1, 14),
    block=st.integers(1, 9),
)
def test_lines_are_the_same_however_a_file_is_cut_into_blocks(
    lines: list[str], ends: bool, offset: int, limit: int, block: int
) -> None:
    body = ("\n".join(lines) + ("\n" if ends and lines else "")).encode()
    window = Window(offset, limit)
    for at in range(0, len(body), block):
        window.feed(body[at : at + block])

    whole = body.decode().split("\n")
    if whole[-1] == "":
        whole.pop()
    kept = [f"{offset + n:>6}\t{line.removesuffix(chr(13))}" for n, line in enumerate(whole[offset:][:limit], 1)]
    shown = window.text()
    assert [line for line in shown.split("\n") if "\t" in line] == kept
    assert (f"of {len(whole)};" in shown) == (bool(kept) and offset + limit < len(whole))


async def test_long_lines_and_much_text_are_cut_by_the_tool_itself(tmp_path: Path) -> None:
    (tmp_path / "line.txt").write_text("x" * 1_000_000)
    (tmp_path / "much.txt").write_text(("y" * 999 + "\n") * 1000)

    line, much = await played(
        Folder(tmp_path), file_tools(), call("read_file", path="line.txt"), call("read_file", path="much.txt")
    )

    assert line.text == f"     1\t{'x' * 2000}… (cut)"
    assert 50_000 < len(much.text) < 70_000
    assert "of 1000; continue with offset=" in much.text


async def test_an_image_is_shown_and_other_binary_files_are_not(tmp_path: Path) -> None:
    (tmp_path / "dot.png").write_bytes(PIXEL)
    (tmp_path / "data.bin").write_bytes(b"\0\1\2")
    (tmp_path / "huge.png").write_bytes(PIXEL + b"\0" * 5_000_000)
    (tmp_path / "empty").touch()

    dot, data, huge, empty = await played(
        Folder(tmp_path),
        file_tools(),
        *(call("read_file", path=name) for name in ("dot.png", "data.bin", "huge.png", "empty")),
    )

    assert [(i.media_type, base64.b64decode(i.data)) for i in dot.images] == [("image/png", PIXEL)]
    assert data.text == "read_file failed: /data.bin: is not text: a binary file of 3 bytes"
    assert "is an image of 5000070 bytes; at most 5000000 can be shown" in huge.text
    assert empty.text == "(empty)"


async def test_a_folder_with_very_many_files_is_cut(tmp_path: Path) -> None:
    for number in range(1003):
        (tmp_path / f"{number:04}").touch()

    (listed,) = await played(Folder(tmp_path), file_tools(), call("ls"))

    assert listed.text.endswith("0999  0 bytes\n… and 3 more; use glob to find some of them")


async def test_without_a_workspace_the_model_is_told_what_is_missing() -> None:
    (out,) = await played(None, file_tools(), call("ls"))

    assert out.is_error
    assert "agent 'worker' has no workspace; give one: Agent(..., workspace=Folder('work'))" in out.text


async def test_a_disk_or_a_folder_that_fails_is_told_to_the_model(tmp_path: Path) -> None:
    with disk(tmp_path / "small", 64) as small:
        calls = [call("write_file", path="/a", content="x" * n) for n in (10, 200_000)]
        made, full, read = await played(Folder(small.folder), file_tools(), *calls, call("read_file", path="/a"))
    (gone,) = await played(Folder(tmp_path / "gone"), file_tools(), call("write_file", path="/a", content="x"))

    assert (made.text, read.text) == ("wrote /a, 10 bytes", "     1\txxxxxxxxxx")
    assert full.is_error
    assert "write_file failed: /a: " in full.text
    assert (
        gone.text
        == f"write_file failed: /: the workspace's folder {tmp_path}/gone can't be used: No such file or directory"
    )


# --- editing ----------------------------------------------------------------------------


def edit(old: str, new: str, **more: Any) -> Any:
    return call("edit_file", path="/a.txt", old_string=old, new_string=new, **more)


async def test_an_edit_of_what_was_not_read_is_refused(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("one")

    before, _, after = await played(
        Folder(tmp_path), file_tools(), edit("one", "two"), call("read_file", path="/a.txt"), edit("one", "two")
    )

    assert "has not been read in this conversation; read it before you edit it" in before.text
    assert after.text == "edited /a.txt: replaced 1 occurrence"
    assert (tmp_path / "a.txt").read_text() == "two"


async def test_an_edit_of_what_has_changed_since_is_refused_in_another_process_too(
    place: Place, tmp_path: Path
) -> None:
    work = tmp_path / "work"
    work.mkdir()
    (work / "a.txt").write_text("one")
    agent = Agent(
        "a", model=Script([call("read_file", path="a.txt"), "read"]), kit=[file_tools()], workspace=Folder(work)
    )
    async with Runtime(place.store(), agents=[agent]) as runtime:
        await (await runtime.start(agent, "s")).prompt("read it")

    later = agent.replace(model=Script([edit("one", "two"), edit("two", "three"), edit("x", "y"), "done"]))
    async with Runtime(place.store(), agents=[later]) as runtime:
        session = await runtime.load("s")
        await session.prompt("edit it")
        (work / "a.txt").write_text("x")
        texts = [r.text for r in results(session.get_messages())]
    assert texts[1:3] == ["edited /a.txt: replaced 1 occurrence"] * 2
    assert "old_string is not in the file" in texts[3]

    late = agent.replace(model=Script([edit("x", "y"), "done"]))
    async with Runtime(place.store(), agents=[late]) as runtime:
        session = await runtime.load("s")
        await session.prompt("once more")
        assert "has changed since it was read; read it again" in results(session.get_messages())[-1].text
    assert (work / "a.txt").read_text() == "x"


async def test_edits_of_one_response_are_made_one_after_the_other(workspace: Workspace) -> None:
    words = [f"word{n}" for n in range(8)]
    calls = [call("edit_file", path="/src/a.txt", old_string=f"{w}\n", new_string=f"{w.upper()}\n") for w in words]
    agent = Agent(
        "a",
        model=Script([call("write_file", path="/src/a.txt", content="\n".join([*words, ""])), calls,
                      call("read_file", path="/src/a.txt"), "done"]),
        kit=[file_tools()],
        workspace=workspace,
    )  # fmt: skip
    async with Runtime(agents=[agent]) as runtime:
        session = await runtime.start(agent)
        await session.prompt("go")

        assert all(word.upper() in results(session.get_messages())[-1].text for word in words)


async def test_what_can_not_be_edited_says_why(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("one one\ntwo\none\n")
    (tmp_path / "latin.txt").write_bytes("é".encode("latin-1"))

    out = await played(
        Folder(tmp_path),
        file_tools(),
        call("read_file", path="a.txt"),
        edit("one", "1"),
        edit("three", "3"),
        edit("", "3"),
        edit("two", "two"),
        edit("one", "1", replace_all=True),
        call("read_file", path="latin.txt"),
        call("edit_file", path="latin.txt", old_string="a", new_string="b"),
        call("edit_file", path="../x", old_string="a", new_string="b"),
    )

    texts = [r.text.removeprefix("edit_file failed: ") for r in out]
    assert texts[1] == (
        "/a.txt: old_string occurs in the file 3 times, on lines 1, 1, 3; "
        "give more of the text around it, or set replace_all"
    )
    assert texts[2].startswith("/a.txt: old_string is not in the file")
    assert texts[3].startswith("/a.txt: old_string is empty")
    assert texts[4] == "/a.txt: old_string and new_string are the same"
    assert texts[5] == "edited /a.txt: replaced 3 occurrences"
    assert texts[7] == "/latin.txt: is not UTF-8 text, so it can't be edited"
    assert texts[8] == "../x: leads out of the workspace; / is its root"


async def test_windows_line_ends_are_kept_by_an_edit(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_bytes(b"one\r\ntwo\r\nthree\r\n")

    await played(
        Folder(tmp_path),
        file_tools(),
        call("read_file", path="/a.txt"),
        edit("one\ntwo", "1\n2"),
        edit("2\r\n", ""),
    )

    assert (tmp_path / "a.txt").read_bytes() == b"1\r\nthree\r\n"


texts = st.text(st.sampled_from("ab\n"), max_size=6)
moves = st.one_of(
    st.tuples(st.just("write"), texts),
    st.tuples(st.just("read")),
    st.tuples(st.just("outside"), texts),
    st.tuples(st.just("edit"), texts, texts, st.booleans()),
)


@given(moves=st.lists(moves, max_size=10))
async def test_edit_file_does_what_a_model_of_it_does(moves: list[Any]) -> None:
    """The model: what the file holds, and what it held when the session last saw it."""
    with tempfile.TemporaryDirectory() as made:
        file, calls, expected = Path(made) / "a.txt", list[Any](), list[tuple[bool, str | None]]()
        holds: str | None = None
        seen: str | None = None
        for kind, *rest in moves:
            done, after = True, holds
            match kind:
                case "write":
                    after = seen = rest[0]
                    calls.append(call("write_file", path="/a.txt", content=rest[0]))
                case "read":
                    done, seen = holds is not None, holds if holds is not None else seen
                    calls.append(call("read_file", path="a.txt"))
                case "outside":
                    after = rest[0]
                    calls.append(None)
                case _:
                    old, new, everywhere = rest
                    calls.append(edit(old, new, replace_all=everywhere))
                    times = (holds or "").count(old) if old else 0
                    done = holds is not None and seen == holds and old != new and times > 0
                    done = done and (times == 1 or everywhere)
                    if done:
                        after = seen = (holds or "").replace(old, new)
            holds = after
            expected.append((done, holds))
        await _compare(file, calls, expected)


async def _compare(file: Path, calls: list[Any], expected: list[tuple[bool, str | None]]) -> None:
    """Play the calls, each in a turn of its own, and look at the file after each."""
    turns = iter([one for one in calls if one])
    model = Script(lambda request: "" if request.messages[-1].role == "tool" else next(turns))
    agent = Agent("a", model=model, kit=[file_tools()], workspace=Folder(file.parent))
    async with Runtime(agents=[agent]) as runtime:
        session = await runtime.start(agent)
        for one, (done, holds) in zip(calls, expected, strict=True):
            if one is None:
                file.write_text(holds or "")
                continue
            await session.prompt("next")
            assert results(session.get_messages())[-1].is_error is not done
            assert (file.read_text() if file.exists() else None) == holds


# --- todos ------------------------------------------------------------------------------


async def test_todos_are_kept_and_only_the_open_ones_survive_a_compaction() -> None:
    todos = [{"content": "write", "status": "completed"}, {"content": "test", "status": "in_progress"},
             {"content": "ship"}]  # fmt: skip
    agent = Agent(
        "a", model=Script([call("write_todos", todos=todos), call("read_todos"), "done"]), kit=[todo_tools()]
    )
    async with Runtime(agents=[agent]) as runtime:
        session = await runtime.start(agent)
        await session.prompt("go")

        listed = "[x] write\n[>] test\n[ ] ship"
        assert [r.text for r in results(session.get_messages())] == [listed, listed]
        assert session.get_context("todos")[2] == {"content": "ship"}
        assert session.get_context("pinned.todos") == "What is still to do:\n[>] test\n[ ] ship"


async def test_wrong_todos_are_told_to_the_model() -> None:
    (out, empty) = await played(
        None, todo_tools(), call("write_todos", todos=[{"content": "x", "status": "maybe"}]), call("read_todos")
    )

    assert out.is_error
    assert "todos[0].status" in out.text
    assert empty.text == "(nothing to do)"


async def test_a_thousand_todos_are_kept_and_more_are_refused() -> None:
    def some(count: int) -> list[dict[str, str]]:
        return [{"content": str(number)} for number in range(count)]

    kept, refused, read = await played(
        None,
        todo_tools(),
        *(call("write_todos", todos=some(count)) for count in (1_000, 1_001)),
        call("read_todos"),
    )

    assert refused.is_error
    assert "there are 1001 things to do; write at most 1000" in refused.text
    assert kept.text == read.text
    assert kept.text.count("[ ]") == 1_000
