"""What a log names is imported only from below the current folder or from what is installed."""

from __future__ import annotations

import shutil
import sqlite3
import sys
from pathlib import Path

import msgspec
import pytest

from cli.asking import make_team, parked
from cli.command import out, upcall
from cli.screen import Screen
from quick import slow_after
from upcall.agentfiles.source_places import strange_place

EVIL = "from pathlib import Path\nPath(__file__).with_name('pwned').touch()\n"


@pytest.fixture
def far(tmp_path: Path) -> Path:
    """A folder elsewhere, whose modules leave a mark when they are imported."""
    folder = tmp_path / "far"
    (folder / "pack").mkdir(parents=True)
    (folder / "pack" / "__init__.py").write_text(EVIL)
    (folder / "pack" / "team.py").write_text(EVIL)
    make_team(folder)
    (folder / "team.py").write_text(EVIL + (folder / "team.py").read_text())
    return folder


@pytest.fixture
def here(tmp_path: Path) -> Path:
    folder = tmp_path / "here"
    folder.mkdir()
    make_team(folder)
    return folder


def renamed(folder: Path, source: str) -> None:
    """Let the sessions of a log name another source for their agents."""
    db = sqlite3.connect(folder / ".upcall" / "log.db", isolation_level=None)
    for key, body in db.execute("SELECT key, body FROM events WHERE instr(body, 'session_started')").fetchall():
        event = msgspec.json.decode(body)
        event["source"] = source
        db.execute("UPDATE events SET body = ? WHERE key = ?", (msgspec.json.encode(event), key))
    db.close()


def marks(far: Path) -> list[Path]:
    return sorted(far.rglob("pwned"))


SOURCES = {
    "a folder and a module": "{far}/team:manager",
    "a module of a package": "{far}/pack.team:manager",
    "a way up": "{here}/../far/team:manager",
    "a folder, and a module that is elsewhere": "{far}/json:loads",
    "a link to a module": "{here}/linked:manager",
    "a link to a package": "{here}/linkedpack.team:manager",
    "a link below a package": "{here}/own.linked.team:manager",
    "a folder of agent files": "{far}/agents",
    "an agent file": "{far}/agents/helper.md",
    "a link to a folder of agent files": "{here}/linkedagents",
}


def made(source: str, here: Path, far: Path) -> str:
    """The source, with the links that it needs."""
    (far / "agents").mkdir()
    (far / "agents" / "helper.md").write_text("---\ntools: [team:deploy]\n---\nHelp.\n")
    (far / "agents" / "team.py").write_text(EVIL)
    (here / "linked.py").symlink_to(far / "team.py")
    (here / "linkedpack").symlink_to(far / "pack")
    (here / "linkedagents").symlink_to(far / "agents")
    (here / "own").mkdir()
    (here / "own" / "__init__.py").touch()
    (here / "own" / "linked").symlink_to(far / "pack")
    return source.format(far=far, here=here)


@pytest.mark.slow
@pytest.mark.parametrize("what", slow_after(3, [*SOURCES]))
def test_a_module_elsewhere_that_a_log_names_is_not_imported_where_nobody_can_be_asked(
    what: str, here: Path, far: Path
) -> None:
    (callback,) = parked(here, "paint")
    assert upcall("answer", callback["id"], "red", cwd=here).returncode == 0
    renamed(here, made(SOURCES[what], here, far))

    one = upcall("resume", "s1", cwd=here)
    everything = upcall("resume", "--all", cwd=here)

    assert one.returncode == 2
    assert "which is neither below this folder nor installed; if you trust them: " in one.stderr
    assert "--agents" in one.stderr
    assert (everything.returncode, everything.stdout) == (0, "")
    assert everything.stderr.startswith("upcall: skipped: session s1 names agents in ")
    assert "--agents" in everything.stderr
    assert not marks(far)
    assert upcall("resume", "s1", "--agents", "team:manager", cwd=here).returncode == 0


@pytest.mark.slow
def test_other_sessions_are_resumed_beside_one_that_is_left_alone(here: Path, far: Path) -> None:
    (callback,) = parked(here, "paint", "s1")
    renamed(here, f"{far}/team:manager")
    assert upcall("run", "team:manager", "paint", "--id", "s2", cwd=here).returncode == 3
    for one in out("inbox", cwd=here):
        assert upcall("answer", one["id"], "red", cwd=here).returncode == 0
    done = upcall("resume", "--all", cwd=here)
    assert done.stdout == "s2 done: painted red\n"
    assert "skipped: session s1" in done.stderr
    assert not marks(far)
    assert callback["choices"] == ["red", "dark blue"]


@pytest.mark.slow
@pytest.mark.parametrize("source", ["team:manager", "{here}/team:manager", "{here}/sub/../team:manager"])
def test_what_lies_below_the_current_folder_is_imported(source: str, here: Path) -> None:
    (here / "sub").mkdir()
    (callback,) = parked(here, "paint")
    assert upcall("answer", callback["id"], "red", cwd=here).returncode == 0
    renamed(here, source.format(here=here))
    assert upcall("resume", "--all", cwd=here).stdout == "s1 done: painted red\n"


@pytest.mark.parametrize(
    "source", ["upcall.demo.shop:team", "json:loads", "upcall:Agent", "pytest:main", "nowhere:x"]
)
def test_what_is_installed_may_be_imported(source: str, tmp_path: Path) -> None:
    before = set(sys.modules)
    assert strange_place(source, tmp_path) == ""
    assert not {"upcall.demo.shop", "nowhere"} & (set(sys.modules) - before)


def test_looking_a_module_up_imports_nothing(far: Path, tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    assert strange_place(f"{far}/pack.team:manager", tmp_path / "empty") == str(far)
    assert strange_place(f"{far}/pack.team:manager", far) == ""
    assert not marks(far)


@pytest.mark.parametrize("source", ["\0:x", "a\0b", "x" * 5000, "loop/team:x", ":", "..:x", "a..b:x", ".py:x", ""])
def test_a_source_that_makes_no_sense_is_never_taken_for_a_near_one_of_another_place(
    source: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("loop").symlink_to("loop")
    place = strange_place(source, tmp_path)
    assert place in ("", source, str(tmp_path.parent)) or Path(place).is_relative_to(tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize(("typed", "code"), [("n", 2), ("y", 0)])
def test_at_a_terminal_the_person_is_asked_before_it_is_imported(
    typed: str, code: int, here: Path, far: Path
) -> None:
    (callback,) = parked(here, "paint")
    assert upcall("answer", callback["id"], "red", cwd=here).returncode == 0
    renamed(here, f"{far}/team:manager")
    shutil.copyfile(here / "team.py", far / "other.py")
    with Screen("resume", "s1", cwd=here) as screen:
        screen.see("Import them now?")
        screen.see("[y/N]")  # no key counts before it
        assert not marks(far)
        screen.enter(typed)
        assert screen.end() == code
    assert bool(marks(far)) == (typed == "y")
