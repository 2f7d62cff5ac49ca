"""The store and what lies beside it are out of an agent's reach, and git's own files need an approval."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from upcall import Agent, Approve, Callback, Kit, Reject, Result, Runtime, WorkspaceError
from upcall.hosts.terminal.mentions import files_of as mentioned_files
from upcall.kit import approve, memory, skills
from upcall.models import Script, call
from upcall.workspace import Folder, Mounts, file_tools
from upcall.workspace.search import walk
from workspace.doubles import Heap, played, plays, results

REFUSED = "belongs to the store of the sessions, which agents can't read or write"


def reaching(path: str) -> list[Any]:
    """Every call that could read, write or list what lies at a path."""
    return [
        call("write_file", path=path, content="broken"),
        call("read_file", path=path),
        call("edit_file", path=path, old_string="a", new_string="b"),
        call("grep", pattern=".", path=path, ignored=True),
        call("glob", pattern="**", path=path, ignored=True),
        call("ls", path=path),
    ]


def is_refused(result: Result) -> bool:
    """It reached nothing: a file that is listed as a folder is refused as such."""
    return REFUSED in result.text or result.text.endswith("is not a folder, or its path goes through a file")


def as_default(folder: Path) -> Path:
    (folder / ".upcall").mkdir()
    return folder / ".upcall" / "log.db"


STORES: dict[str, Callable[[Path], Path]] = {
    "default": as_default,
    "named": lambda folder: folder / "data.db",
    "deeper": lambda folder: (folder / "a" / "b").mkdir(parents=True) or folder / "a" / "b" / "some log",
}


@pytest.fixture(params=list(STORES))
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    kind: Any = request.param
    return STORES[kind](tmp_path)


async def intact(store: Path) -> None:
    """The log can be read, and has the session."""
    async with Runtime(store) as runtime:
        assert (await runtime.load("s")).id == "s"


def beside(folder: Path, store: Path) -> list[str]:
    path = "/" + str(store.relative_to(folder))
    return [path, *(f"{path}{suffix}" for suffix in ("-wal", "-shm", "-journal", "-wake", "-wake/x", "-token"))]


async def test_file_tools_neither_read_nor_write_the_store_and_what_lies_beside_it(
    store: Path, tmp_path: Path
) -> None:
    calls = [one for path in beside(tmp_path, store) for one in reaching(path)]

    said = await played(Folder(tmp_path), file_tools(), *calls, store=store)

    assert [(c.args, r.text) for c, r in zip(calls, said, strict=True) if REFUSED not in r.text] == []
    await intact(store)


async def test_a_relative_store_in_a_workspace_that_was_there_before_it_is_refused_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    workspace = Folder(".")

    said = await played(workspace, file_tools(), *reaching("some.db"), store="some.db")

    assert [REFUSED in result.text for result in said] == [True] * 6
    await intact(tmp_path / "some.db")


def by_hard_link(folder: Path, store: Path) -> str:
    os.link(store, folder / "innocent.txt")
    return "/innocent.txt"


def by_symbolic_link(folder: Path, store: Path) -> str:
    (folder / "innocent.txt").symlink_to(store)
    return "/innocent.txt"


def by_folder_link(folder: Path, store: Path) -> str:
    (folder / "here").symlink_to(store.parent)
    return f"/here/{store.name}"


def by_other_case(folder: Path, store: Path) -> str:
    return "/" + str(store.with_name(store.name.upper()).relative_to(folder))


WAYS = (by_hard_link, by_symbolic_link, by_folder_link, by_other_case)


@pytest.mark.parametrize("way", WAYS)
async def test_the_store_is_refused_by_whatever_name_it_is_reached(
    way: Callable[[Path, Path], str], store: Path, tmp_path: Path
) -> None:
    agent = Agent("a", model=plays(call("ls", path="/")), kit=[file_tools()], workspace=Folder(tmp_path))
    async with Runtime(store, agents=[agent]) as runtime:
        await (await runtime.start(agent, "s")).prompt("look around")
        path = way(tmp_path, store)
        attack = Agent("b", model=plays(*reaching(path)), kit=[file_tools()], workspace=agent.workspace)
        session = await runtime.start(attack, "t")
        await session.prompt("go")
        said = results(session.get_messages())

    assert [result.text for result in said if not is_refused(result)] == []


async def test_the_store_is_refused_in_a_folder_that_was_renamed(tmp_path: Path) -> None:
    for store in (as_default(tmp_path), tmp_path / "data" / "log.db"):
        store.parent.mkdir(exist_ok=True)
        await played(None, Kit(), store=store)
        Path(f"{store}-wal").touch()
        files = Folder(tmp_path).open(ShelfOf(store))
        assert not [entry for entry in await files.entries("/") if entry.path == "/.upcall"]
        with pytest.raises(WorkspaceError, match=REFUSED):
            await files.look(f"/{store.parent.name}/log.db")
        store.parent.rename(tmp_path / "moved")

        for path in ("/moved/log.db", "/moved/log.db-wal"):
            for use in (files.look(path), files.read(path), files.write(path, b"broken")):
                with pytest.raises(WorkspaceError, match=REFUSED):
                    await use
        shutil.rmtree(tmp_path / "moved")


class ShelfOf(Heap):
    """The shelf of a run tree in some store."""

    def __init__(self, store: Path) -> None:
        super().__init__()
        self.private_paths = (str(store),)


async def test_listings_leave_the_store_out(store: Path, tmp_path: Path) -> None:
    (tmp_path / "seen.txt").write_text("SQLite")
    calls = [call("ls"), call("glob", pattern="**", ignored=True), call("grep", pattern="SQLite", ignored=True)]

    listed, found, lines = await played(Folder(tmp_path), file_tools(), *calls, store=store)

    assert "seen.txt" in listed.text
    assert found.text == "/seen.txt"
    assert lines.text == "/seen.txt:1:SQLite"
    assert not {"data.db", ".upcall"} & set(listed.text.replace("/", "").split())


async def test_files_of_the_home_folder_are_refused_and_so_is_every_hard_link_to_one(tmp_path: Path) -> None:
    store = as_default(tmp_path)
    for name in ("history", ".gitignore", "token", "index.db"):
        (store.parent / name).write_text("secret text")
        os.link(store.parent / name, tmp_path / f"link to {name}")
    paths = [
        f"/{place}{name}"
        for name in ("history", ".gitignore", "token", "index.db")
        for place in (".upcall/", "link to ")
    ]
    calls = [one for path in (*paths, "/.upcall", "/.UPCALL/token", "/.upcall/new") for one in reaching(path)]

    said = await played(
        Folder(tmp_path), file_tools(), *calls, call("grep", pattern="secret", ignored=True), store=store
    )

    assert [r.text for r in said[:-1] if not is_refused(r)] == []
    assert said[-1].text == "(no line matches)"
    assert {(store.parent / name).read_text() for name in ("history", "token")} == {"secret text"}


async def test_the_home_folder_of_another_runtime_is_refused_by_its_name(tmp_path: Path) -> None:
    store = as_default(tmp_path)
    await played(None, Kit(), store=store)

    said = await played(
        Folder(tmp_path), file_tools(), *reaching("/.upcall/log.db"), *reaching("/x/.Upcall/log.db")
    )

    assert [r.text for r in said if REFUSED not in r.text] == []
    await intact(store)


async def test_a_store_below_a_mount_is_refused_and_its_neighbours_are_not(tmp_path: Path) -> None:
    (tmp_path / "base").mkdir()
    (tmp_path / "notes").mkdir()
    workspace = Mounts(Folder(tmp_path / "base"), {"/notes": Folder(tmp_path / "notes")})
    calls = [*reaching("/notes/log.db"), call("write_file", path="/notes/log.database", content="fine")]

    said = await played(workspace, file_tools(), *calls, store=tmp_path / "notes" / "log.db")

    assert [REFUSED in result.text for result in said] == [True] * 6 + [False]
    assert (tmp_path / "notes" / "log.database").read_text() == "fine"


@pytest.mark.parametrize("exists", [True, False])
async def test_the_ids_of_the_users_own_logs_are_refused_before_and_after_they_are_noted(
    exists: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    (tmp_path / "state").mkdir()
    if exists:
        (tmp_path / "state" / "upcall").mkdir(mode=0o700)
        (tmp_path / "state" / "upcall" / "logs").write_text("")

    said = await played(Folder(tmp_path), file_tools(), *reaching("/state/upcall/logs"), store=tmp_path / "log.db")

    assert [r.text for r in said if REFUSED not in r.text] == []


async def test_memory_skills_and_mentions_do_not_show_the_store(tmp_path: Path) -> None:
    store = as_default(tmp_path)
    skill = tmp_path / "skills" / "tidy"
    (skill / ".upcall").mkdir(parents=True)
    (skill / "SKILL.md").write_text("---\nname: tidy\ndescription: Tidy up.\n---\nTidy up.\n")
    (skill / ".upcall" / "token").write_text("secret")
    (store.parent / "token").write_text("secret")
    os.link(store.parent / "token", skill / "notes.txt")
    calls = [call("read_skill", name="tidy", file=f) for f in (".upcall/token", "notes.txt", "SKILL.md")]
    agent = Agent("a", model=plays(*calls), kit=[skills(tmp_path / "skills")], workspace=Folder(tmp_path))
    async with Runtime(store, agents=[agent]) as runtime:
        session = await runtime.start(agent, "s")
        await session.prompt("go")
        said = results(session.get_messages())
        reader = Agent("b", model=Script(["done"]), kit=[memory(".upcall/token")], workspace=Folder(tmp_path))
        with pytest.raises(Exception, match=REFUSED):
            await (await runtime.start(reader)).prompt("go")
        with pytest.MonkeyPatch.context() as patch:
            patch.chdir(tmp_path)
            paths = [entry.path async for entry in walk(mentioned_files(None, runtime.store, lambda: "s"), "/")]

    assert "secret" not in "".join(result.text for result in said)
    assert [result.is_error for result in said] == [True, True, False]
    assert ".upcall" not in said[2].text
    assert "notes.txt" not in said[2].text
    assert paths == ["/skills/tidy/SKILL.md"]


# --- git --------------------------------------------------------------------------------


class Person:
    """Somebody who sees every question and answers it the same way."""

    def __init__(self, value: Approve | Reject) -> None:
        self.value, self.seen = value, list[dict[str, Any]]()

    async def ask(self, callback: Callback) -> Approve | Reject:
        self.seen.append(dict(callback.context["arguments"]))
        return self.value

    def withdraw(self, callback_id: str, reason: str) -> None: ...


async def asked(folder: Path, person: Person, *calls: Any, kit: tuple[Kit, ...] = ()) -> list[Result]:
    agent = Agent("a", model=plays(*calls), kit=[file_tools(), *kit], workspace=Folder(folder))
    async with Runtime(agents=[agent], host=person) as runtime:
        session = await runtime.start(agent)
        await session.prompt("go")
        return results(session.get_messages())


GIT_PATHS = (
    *("/.git/config", ".git/hooks/pre-commit", "sub/.git", "sub/../.git/config", ".GIT/config", "/.Git/HEAD"),
    *(
        "/.g\u200bit/config",
        "/.git./config",
        "GIT~1/config",
        "bare.git/config",
        "/HEAD",
        "deep/head",
        "．git/config",
    ),
)
PLAIN_PATHS = (
    *("/.gitignore", ".github/workflows/ci.yml", "src/git/config", "HEAD.md", "head/x.py", ".gitattributes"),
)


@pytest.mark.parametrize("path", GIT_PATHS)
async def test_writing_gits_own_files_needs_an_approval(path: str, tmp_path: Path) -> None:
    person = Person(Reject("no"))

    (said,) = await asked(tmp_path, person, call("write_file", path=path, content="[core]"))

    assert [one["path"] for one in person.seen] == [path]
    assert "rejected" in said.text
    assert list(tmp_path.rglob("*")) == []


@pytest.mark.parametrize("path", PLAIN_PATHS)
async def test_writing_files_that_are_not_gits_needs_none(path: str, tmp_path: Path) -> None:
    person = Person(Reject("no"))

    (said,) = await asked(tmp_path, person, call("write_file", path=path, content="text"))

    assert said.text.startswith("wrote ")
    assert person.seen == []


async def test_an_approved_file_of_git_is_written_and_edited(tmp_path: Path) -> None:
    person = Person(Approve())
    calls = [
        call("write_file", path="/.git/config", content="[core]\n"),
        call("edit_file", path="/.git/config", old_string="core", new_string="user"),
        call("read_file", path="/.git/config"),
    ]

    await asked(tmp_path, person, *calls)

    assert len(person.seen) == 2
    assert (tmp_path / ".git" / "config").read_text() == "[user]\n"


def git_directory(folder: Path) -> Path:
    for name in ("objects", "refs"):
        (folder / name).mkdir(parents=True)
    (folder / "HEAD").write_text("ref: refs/heads/main\n")
    (folder / "config").write_text("[core]\n")
    return folder


async def test_no_other_name_leads_into_a_git_directory(tmp_path: Path) -> None:
    git_directory(tmp_path / ".git")
    git_directory(tmp_path / "separate")  # as `git init --separate-git-dir` makes it
    (tmp_path / "link").symlink_to(".git")
    (tmp_path / "file").symlink_to(".git/config")
    (tmp_path / "main").symlink_to(".git/HEAD")
    paths = ("link/config", "file", "separate/config", "separate/hooks/post-checkout", "main", "link/new/file")
    person = Person(Approve())

    said = await asked(tmp_path, person, *(call("write_file", path=path, content="broken") for path in paths))

    assert ["leads into git's own files" in result.text for result in said] == [True] * len(paths)
    assert {(tmp_path / at / "config").read_text() for at in (".git", "separate")} == {"[core]\n"}
    assert person.seen == []


async def test_edits_by_a_link_into_a_git_directory_are_refused(tmp_path: Path) -> None:
    git_directory(tmp_path / ".git")
    (tmp_path / "file").symlink_to(".git/config")
    calls = [call("read_file", path="file"), call("edit_file", path="file", old_string="core", new_string="user")]

    said = await asked(tmp_path, Person(Approve()), *calls)

    assert "leads into git's own files in /.git; use that path" in said[1].text
    assert (tmp_path / ".git" / "config").read_text() == "[core]\n"


RULES: tuple[tuple[Any, bool], ...] = (
    ({"write_file": False}, False),
    ({"write_file": {"path": "/src/*"}}, False),
    ({"edit_file": True}, False),
    ("read_only", True),
    ("edits_ask", True),
    ("all_ask", True),
)


@pytest.mark.parametrize(("rules", "all_writes"), RULES)
async def test_no_rule_of_approve_turns_the_approval_for_git_off(
    rules: Any, all_writes: bool, tmp_path: Path
) -> None:
    person = Person(Reject("no"))
    calls = [call("write_file", path=path, content="x") for path in ("/.git/config", "/plain.txt")]

    await asked(tmp_path, person, *calls, kit=(approve(rules),))

    assert [one["path"] for one in person.seen] == ["/.git/config", *(["/plain.txt"] if all_writes else [])]
    assert (tmp_path / "plain.txt").exists() is not all_writes
