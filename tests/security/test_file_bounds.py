"""Files that people write by hand are read only if they are regular, small and flat."""

from __future__ import annotations

import json
import os
import socket
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from callbacks.doubles import Desk
from security.attacks import FRONT_MATTER
from security.measuring import grown, measured
from upcall import Agent, Runtime
from upcall.agentfiles.markdown import read_agents
from upcall.agentfiles.sidecar import read_sidecar
from upcall.errors import BadKit
from upcall.kit import compact, skills
from upcall.models import Script, call
from upcall.safety.small_files import MOST, read_small

SKILL = "---\nname: one\ndescription: d\ntriggers: [go]\n---\nDo it.\n"


def _pipe(path: Path) -> None:
    os.mkfifo(path)


def _socket(path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as bound:
        folder = Path.cwd()
        os.chdir(path.parent)  # a socket's path is short
        bound.bind(path.name)
        os.chdir(folder)


def _device(path: Path) -> None:
    path.symlink_to("/dev/zero")


def _terminal(path: Path) -> None:
    path.symlink_to("/dev/tty")


def _link_to_pipe(path: Path) -> None:
    os.mkfifo(path.with_suffix(".pipe"))
    path.symlink_to(path.with_suffix(".pipe"))


def _large(path: Path) -> None:
    with path.open("wb") as file:
        file.truncate(10**12)


def _circle(path: Path) -> None:
    path.symlink_to(path)


ODD: dict[str, Callable[[Path], None]] = {
    "a pipe": _pipe,
    "a socket": _socket,
    "an endless device": _device,
    "a terminal": _terminal,
    "a link to a pipe": _link_to_pipe,
    "a terabyte": _large,
    "a link to itself": _circle,
}


@pytest.mark.parametrize("odd", ODD)
def test_an_odd_file_is_no_skill_and_nobody_waits_for_it(tmp_path: Path, odd: str) -> None:
    (tmp_path / "one").mkdir()
    ODD[odd](tmp_path / "one" / "SKILL.md")

    with grown() as cost, pytest.raises(BadKit, match=r"SKILL.md: it can't be read: "):
        skills(tmp_path)

    cost.check()


@pytest.mark.parametrize("odd", ODD)
async def test_an_odd_file_that_belongs_to_a_skill_is_refused_to_the_model(tmp_path: Path, odd: str) -> None:
    (tmp_path / "one").mkdir()
    (tmp_path / "one" / "SKILL.md").write_text(SKILL)
    ODD[odd](tmp_path / "one" / "notes")

    async with measured() as cost:
        texts = await _read(tmp_path, call("read_skill", name="one", file="notes"), call("read_skill", name="one"))

    assert texts[0].startswith("read_skill: notes ")
    assert "Do it." in texts[1]
    cost.check()


async def _read(folder: Path, *calls: Any) -> list[str]:
    def play(request: Any) -> Any:
        done = sum(len(message.results) for message in request.messages)
        return calls[done] if done < len(calls) else "done"

    agent = Agent("a", model=Script(play), kit=[skills(folder)])
    async with Runtime(":memory:", agents=[agent]) as runtime:
        session = await runtime.start(agent)
        await session.prompt("please")
        return [result.text for message in session.get_messages() for result in message.results]


async def test_a_skill_that_becomes_a_pipe_fails_the_next_session_and_nobody_waits(tmp_path: Path) -> None:
    (tmp_path / "one").mkdir()
    file = tmp_path / "one" / "SKILL.md"
    file.write_text(SKILL)
    agent = Agent("a", model=Script(["done"]), kit=[skills(tmp_path)])
    file.unlink()
    os.mkfifo(file)

    async with Runtime(":memory:", agents=[agent]) as runtime:
        with pytest.raises(Exception, match="it is not a regular file"):
            await (await runtime.start(agent)).prompt("go")


def test_skills_stop_at_a_folder_that_holds_too_many(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("upcall.kit.skillfile._MAX_FOLDERS", 20)
    for number in range(19):
        (tmp_path / str(number)).mkdir()
    skills(tmp_path)
    (tmp_path / "20").mkdir()

    with pytest.raises(BadKit, match="it has more than 20 folders"):
        skills(tmp_path)


@pytest.mark.parametrize("name", ["a.md", "a.json", "team.toml"])
@pytest.mark.parametrize("odd", ODD)
def test_an_odd_file_is_no_agent_file_and_nobody_waits_for_it(tmp_path: Path, odd: str, name: str) -> None:
    if (odd, name) == ("a link to itself", "team.toml"):
        return  # a folder without a team
    (tmp_path / "a.md").write_text("---\nname: a\n---\nDo.\n")
    (tmp_path / name).unlink(missing_ok=True)
    ODD[odd](tmp_path / name)

    with grown() as cost:
        _, problems = read_agents(tmp_path)

    assert any(problem.file.endswith(name) and "can't be read" in problem.text for problem in problems)
    cost.check()


@pytest.mark.slow
@pytest.mark.parametrize("attack", FRONT_MATTER)
async def test_no_front_matter_takes_long(tmp_path: Path, attack: str) -> None:
    text = f"---\nname: one\ndescription: d\n{FRONT_MATTER[attack]}\n---\nDo it.\n"
    (tmp_path / "one").mkdir()
    (tmp_path / "one" / "SKILL.md").write_text(text)
    (tmp_path / "one.md").write_text(text)

    async with measured() as cost:
        with grown():
            read_agents(tmp_path)
    async with measured() as skill_cost:
        try:
            skills(tmp_path)
        except BadKit as error:
            told = str(error)
        else:
            told = ""

    assert len(told) < 1_000
    cost.check(stall=0.6)  # before any event loop runs
    skill_cost.check(stall=0.6)


def test_front_matter_at_the_bound_is_read_and_more_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "one" / "SKILL.md"
    file.parent.mkdir()
    head = "name: one\ndescription: d\nlicense: "
    file.write_text(f"---\n{head}{'x' * (10_000 - len(head) - 1)}\n---\nDo it.\n")
    skills(tmp_path)
    file.write_text(f"---\n{head}{'x' * (10_000 - len(head))}\n---\nDo it.\n")

    with pytest.raises(BadKit, match="it has 10001 characters; at most 10000 are allowed"):
        skills(tmp_path)
    (tmp_path / "a.md").write_text(f"---\nname: a\ndescription: {'x' * 10_000}\n---\nDo.\n")
    assert "10000 are allowed" in read_agents(tmp_path)[1][0].text


def test_a_small_file_is_read_up_to_its_bound_and_refused_above_it(tmp_path: Path) -> None:
    file = tmp_path / "a"
    file.write_bytes(b"x" * MOST)
    assert len(read_small(file)) == MOST
    file.write_bytes(b"x" * (MOST + 1))

    with pytest.raises(OSError, match=f"it has more than {MOST} bytes"):
        read_small(file)


async def test_a_sidecar_with_thousands_of_keys_is_told_at_once(tmp_path: Path) -> None:
    raw = json.dumps({f"k{n}": 1 for n in range(1_500)}).encode()

    async with measured() as cost:
        policy, problems = read_sidecar(raw, "a.json")

    assert policy is None
    assert problems[0].text.startswith("has 1500 keys; allowed are can_query_caller")
    cost.check()


@pytest.mark.parametrize(
    "text", ["x = [\n" + "1,\n" * 60_000 + "]\n", 'a = """\n' + "x\n" * 90_000 + '"""\n', "a.b.c = 1\n" * 10_000]
)
async def test_no_team_file_takes_long(tmp_path: Path, text: str) -> None:
    (tmp_path / "team.toml").write_text(text)

    async with measured() as cost:
        assert read_agents(tmp_path)[1]

    cost.check(stall=0.6)  # before any event loop runs


async def test_a_search_of_the_history_takes_a_thousand_characters_of_words(desk: Desk) -> None:
    def play(request: Any) -> Any:
        done = sum(len(message.results) for message in request.messages)
        words = ["a " * 900_000, "a " * 501, "please go"]
        return call("search_history", words=words[done]) if done < len(words) else "done"

    agent = Agent("a", model=Script(play), kit=[compact(tokens=10_000_000)])
    async with measured() as cost:
        await desk.prompt(agent, "please go " + "a" * 300_000)

    texts = [result.text for message in await desk.messages(agent) for result in message.results]
    assert texts[0] == "Give at most 1000 characters; these words have 1800000."
    assert texts[1].startswith("Give at most 1000")
    assert texts[2].startswith("1. user: please go aaa")
    cost.check()


@pytest.mark.slow
def test_agents_a_hundred_levels_below_each_other_are_read_and_more_are_a_mistake(tmp_path: Path) -> None:
    def write(count: int) -> None:
        for number in range(count):
            below = f"agents: [a{number + 1:04}]\n" if number + 1 < count else ""
            (tmp_path / f"a{number:04}.md").write_text(f"---\n{below}---\nDo.\n")

    write(100)
    assert not [problem for problem in read_agents(tmp_path)[1] if problem.severity == "error"]
    write(1_200)
    assert any("is more than 100 levels below a0000" in problem.text for problem in read_agents(tmp_path)[1])
