"""Skills: found, triggered, read on demand, and kept."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from core.doubles import Asked, Place
from upcall import Agent, Approve, BadKit, HookFailed, Request, Runtime, tool
from upcall.kit import approve, skills
from upcall.messages import Instruction
from upcall.models import Script, call

PDF = """\
---
name: pdf
description: Fill in PDF forms.
triggers: [PDF, "fill a form"]
allowed-tools: shell
license: MIT
---
Use `forms.py`.
"""


def write(folder: Path, name: str, text: str) -> Path:
    path = folder / name / "SKILL.md"
    path.parent.mkdir(parents=True)
    path.write_text(text, encoding="utf-8")
    return path


def shown(request: Request) -> list[str]:
    """The instructions in a request's messages."""
    return [p.text for m in request.messages for p in m.parts if isinstance(p, Instruction)]


async def talk(agent: Agent, *prompts: str, place: Place | None = None) -> None:
    place = place or Place()
    async with Runtime(place.store(), agents=[agent]) as runtime:
        session = await runtime.start(agent, "s")
        for prompt in prompts:
            await session.prompt(prompt)


# --- triggers ---------------------------------------------------------------------------


async def test_a_trigger_in_any_case_shows_content_trigger_and_location_once(tmp_path: Path, place: Place) -> None:
    path = write(tmp_path / "skills" / "office", "pdf", PDF)
    asked = Asked()
    agent = Agent("a", model=Script(asked.then(lambda r: "ok")), kit=[skills(tmp_path / "skills")])
    await talk(agent, "hello", "Please Fill A Form for me", "another pdf", place=place)

    expected = f"Skill pdf (from {path}, triggered by 'fill a form'):\n\nUse `forms.py`."
    assert [shown(r) for r in asked.requests] == [[], [expected], [expected]]


async def test_a_skill_without_triggers_is_only_listed_and_one_without_description_only_triggered(
    tmp_path: Path,
) -> None:
    write(tmp_path, "plain", "---\nname: plain\ndescription: A plain one.\n---\nbody")
    write(tmp_path, "quiet", "---\nname: quiet\ntriggers: [hush]\n---\nsilence")
    asked = Asked()
    agent = Agent("a", instructions="Be.", model=Script(asked.then(lambda r: "ok")), kit=[skills(tmp_path)])
    await talk(agent, "plain and hush")

    assert asked.requests[0].instructions.startswith("Be.\n\nSkills you can use.")
    assert asked.requests[0].instructions.endswith(":\n- plain: A plain one.")
    assert [t.rpartition("\n")[2] for t in shown(asked.requests[0])] == ["silence"]


async def test_a_triggered_skill_stays_through_compaction_and_is_not_shown_again(tmp_path: Path) -> None:
    from upcall import Hooks, Message, SessionAccess

    write(tmp_path, "pdf", PDF)
    asked = Asked()

    async def shrinks(session: SessionAccess, message: Message) -> None:
        await session.trigger_compaction(keep_last=1)

    script = Script(asked.then(lambda r: "SUM" if r.purpose == "summary" else "ok"))
    agent = Agent("a", model=script, kit=[skills(tmp_path)], hooks=Hooks(pre_request=[shrinks]))
    await talk(agent, "a pdf", "more", "the pdf again", "and again")

    assert [len(shown(r)) for r in asked.requests if r.purpose == "turn"] == [1, 1, 1, 1]


async def test_what_an_older_log_kept_of_skills_is_read_as_ever(tmp_path: Path) -> None:
    from upcall import Hooks, SessionAccess

    path, asked = write(tmp_path, "pdf", PDF), Asked()

    def as_before(session: SessionAccess) -> None:  # it was no text once
        known = {"old": {"path": str(path), "triggers": ["scroll"]}}
        session.set_context("skills", {"known": known, "listed": "Skills: old"})

    script = Script(asked.then(lambda r: "ok"))
    agent = Agent("a", model=script, kit=[skills(tmp_path)], hooks=Hooks(begin_session=[as_before]))
    await talk(agent, "read the scroll")

    assert asked.requests[0].instructions == "Skills: old"
    assert "triggered by 'scroll'" in shown(asked.requests[0])[0]


# --- read on demand ---------------------------------------------------------------------


async def read(tmp_path: Path, **args: Any) -> tuple[str, bool]:
    asked = Asked()
    script = Script([call("read_skill", **args), asked.then(lambda r: "ok")])
    await talk(Agent("a", model=script, kit=[skills(tmp_path / "skills")]), "go")
    result = asked.requests[0].messages[-1].results[0]
    return result.text, result.is_error


async def test_the_model_reads_a_skill_and_its_files(tmp_path: Path) -> None:
    path = write(tmp_path / "skills", "pdf", PDF)
    (path.parent / "scripts").mkdir()
    (path.parent / "scripts" / "forms.py").write_text("print(1)")
    (path.parent / "blob").write_bytes(b"\xff\xfe\x00")

    text, failed = await read(tmp_path, name="pdf")
    assert text == f"Skill pdf (from {path}, with the files blob, scripts/forms.py):\n\nUse `forms.py`."
    assert not failed
    assert await read(tmp_path, name="pdf", file="scripts/forms.py") == ("print(1)", False)
    assert await read(tmp_path, name="pdf", file="blob") == ("read_skill: blob is not text", True)


@pytest.mark.parametrize(
    "file", ["../other/SKILL.md", "../../secret", "/etc/passwd", "link", "nothing", "a\0b", ""]
)
async def test_nothing_outside_a_skills_folder_is_read(tmp_path: Path, file: str) -> None:
    path = write(tmp_path / "skills", "pdf", PDF)
    write(tmp_path / "skills", "other", PDF.replace("name: pdf", "name: other"))
    (tmp_path / "secret").write_text("secret")
    (path.parent / "link").symlink_to(tmp_path / "secret")

    text, failed = await read(tmp_path, name="pdf", file=file)

    assert failed
    assert "secret" not in text.replace(file, "")


async def test_a_skill_that_is_none_is_named_with_those_there_are(tmp_path: Path) -> None:
    write(tmp_path / "skills", "pdf", PDF)
    text, failed = await read(tmp_path, name="word")
    assert (text, failed) == ("read_skill: unknown skill 'word'; the skills are pdf", True)


async def test_a_skill_that_was_read_is_still_there_after_compaction(tmp_path: Path) -> None:
    from upcall import Hooks, Message, SessionAccess

    write(tmp_path, "pdf", PDF)
    asked = Asked()

    def shrinks(session: SessionAccess, message: Message) -> None:
        if message.text == "third":
            session.compact_messages(keep_last=1)

    def decide(request: Request) -> Any:
        return call("read_skill", name="pdf") if request.messages[-1].text == "first" else "ok"

    agent = Agent("a", model=Script(asked.then(decide)), kit=[skills(tmp_path)], hooks=Hooks(pre_request=[shrinks]))
    await talk(agent, "first", "second", "third")

    assert "Use `forms.py`." in asked.requests[-1].messages[1].text


async def test_allowed_tools_of_a_skill_approve_nothing(tmp_path: Path) -> None:
    write(tmp_path, "pdf", PDF)
    ran: list[str] = []

    @tool
    async def shell(command: str) -> str:
        """Run."""
        ran.append(command)
        return "ran"

    kit = [skills(tmp_path), approve({"shell": True})]
    agent = Agent("a", model=Script([call("shell", command="x"), "ok"]), tools=[shell], kit=kit)
    async with Runtime(tmp_path / "log.db", agents=[agent]) as runtime:
        assert (await (await runtime.start(agent, "s")).prompt("a pdf")).status == "waiting"
        assert ran == []
        await runtime.answer((await runtime.inbox())[0].id, Approve(), by="me")
        await runtime.resume("s")
    assert ran == ["x"]


# --- finding ----------------------------------------------------------------------------


async def test_a_changed_file_is_seen_by_the_next_session(tmp_path: Path) -> None:
    path = write(tmp_path, "pdf", PDF)
    asked = Asked()
    agent = Agent("a", model=Script(asked.then(lambda r: "ok")), kit=[skills(tmp_path)])
    async with Runtime(agents=[agent]) as runtime:
        first = await runtime.start(agent)
        path.write_text(PDF.replace("Fill in PDF forms.", "Something new."))
        second = await runtime.start(agent)
        await first.prompt("go")
        await second.prompt("go")

    assert ["Something new." in r.instructions for r in asked.requests] == [False, True]


async def test_a_file_that_breaks_later_keeps_a_session_from_beginning(tmp_path: Path) -> None:
    path = write(tmp_path, "pdf", PDF)
    agent = Agent("a", model=Script(["ok"]), kit=[skills(tmp_path)])
    path.write_text("nothing")
    async with Runtime(agents=[agent]) as runtime:
        with pytest.raises(HookFailed, match=r"pdf/SKILL.md: it does not begin with front matter"):
            await runtime.start(agent)


async def test_a_later_folder_wins_and_links_are_followed_without_end(tmp_path: Path) -> None:
    write(tmp_path / "one", "pdf", PDF)
    write(tmp_path / "two", "pdf", PDF.replace("Fill in", "Read"))
    (tmp_path / "three").mkdir()
    (tmp_path / "three" / "linked").symlink_to(tmp_path / "two")
    (tmp_path / "two" / "pdf" / "again").symlink_to(tmp_path / "two")
    asked = Asked()
    agent = Agent("a", model=Script(asked.then(lambda r: "ok")), kit=[skills(tmp_path / "one", tmp_path / "three")])
    await talk(agent, "go")

    assert "- pdf: Read PDF forms." in asked.requests[0].instructions


HEAD = "---\nname: pdf\ndescription: x\n"


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("just text", "does not begin with front matter"),
        ("---\nname: pdf\n", "does not begin with front matter"),
        ("---\n- a\n---\n", "has no keys"),
        ("---\nname: pdf\ndescription: a: b\n---\n", "SKILL.md:3: its front matter is not valid YAML"),
        ("---\nname: pdf\ndescription: !!bool foo\n---\n", "SKILL.md:2: its front matter is not valid YAML"),
        ("---\nname: pdf\ndescription: !!int ''\n---\n", "a value does not fit its tag"),
        ("---\nname: pdf\ndescription: !!timestamp foo\n---\n", "a value does not fit its tag"),
        ("---\ndescription: x\n---\n", "name: it is missing"),
        ("---\nname: yes\ndescription: x\n---\n", "name: True is not text"),
        ("---\nname: PDF\ndescription: x\n---\n", "name: 'PDF' may have only lower-case"),
        ("---\nname: a--b\ndescription: x\n---\n", "name: 'a--b' may have only"),
        ("---\nname: word\ndescription: x\n---\n", "name: 'word' must be its folder's name, 'pdf'"),
        (f"---\nname: {'x' * 65}\ndescription: x\n---\n", "name: it has 65 characters; 64 are allowed"),
        ("---\nname: pdf\n---\n", "description: it is missing"),
        (f"---\nname: pdf\ndescription: {'x' * 1025}\n---\n", "description: it has 1025 characters"),
        (HEAD + "triggers: pdf\n---\n", "triggers: 'pdf' is not a list of texts"),
        (HEAD + "triggers: [1]\n---\n", "triggers: [1] is not a list"),
        (HEAD + "triggers: ['']\n---\n", "triggers: [''] is not a list"),
    ],
)
def test_a_broken_skill_is_an_error_with_its_files_name(tmp_path: Path, text: str, says: str) -> None:
    path = write(tmp_path, "pdf", text)
    with pytest.raises(BadKit, match="skills: ") as caught:
        skills(tmp_path)
    assert str(path) in str(caught.value)
    assert says in str(caught.value)


def test_what_can_not_be_read_is_named(tmp_path: Path) -> None:
    with pytest.raises(BadKit, match="nowhere: there is no such folder"):
        skills(tmp_path / "nowhere")
    path = write(tmp_path, "pdf", "")
    path.write_bytes(b"\xff\xfe")
    with pytest.raises(BadKit, match=r"SKILL.md: it is not text"):
        skills(tmp_path)
    path.unlink()
    os.mkfifo(tmp_path / "unrelated")
    path.symlink_to("nothing")
    with pytest.raises(BadKit, match=r"SKILL.md: it can't be read"):
        skills(tmp_path)


def test_two_skills_of_one_name_in_one_folder_are_refused(tmp_path: Path) -> None:
    write(tmp_path / "a", "pdf", PDF)
    write(tmp_path / "b", "pdf", PDF)
    with pytest.raises(BadKit, match=r"b/pdf/SKILL.md: the skill in .*a/pdf/SKILL.md has the same name"):
        skills(tmp_path)
