"""A default log that the user did not make is foreign: it is shown, and nothing in it runs or is answered."""

from __future__ import annotations

import hashlib
import os
import shutil
import sqlite3
import subprocess
from pathlib import Path

import pytest

from cli.asking import make_team, parked
from cli.command import out, start, upcall

EVIL = "from pathlib import Path\nPath(__file__).with_name('pwned').touch()\n"
REFUSED = (
    ["run", "team:manager", "deploy"],
    ["run", "team:manager", "deploy", "--id", "s1"],
    ["chat", "team:manager", "-c"],
    ["chat", "team:manager"],
    ["resume", "s1"],
    ["resume", "--all"],
    ["resume", "s1", "--agents", "team:manager"],
    ["cancel", "s1"],
    ["sessions", "delete", "s1", "--yes"],
    ["sessions", "prune", "--older-than", "0", "--yes"],
    ["events", "--follow"],
)
SHOWN = (["sessions"], ["sessions", "--ids"], ["show", "s1"], ["events"], ["events", "s1", "--json"], ["inbox"])


@pytest.fixture
def state(tmp_path: Path) -> str:
    """The state folder of whoever made the log."""
    return str(tmp_path / "others-state")


@pytest.fixture
def folder(tmp_path: Path, state: str) -> Path:
    """A clone of a repository that brought a log: an approval waits, answered by its author."""
    origin = tmp_path / "origin"
    origin.mkdir()
    make_team(origin)
    with pytest.MonkeyPatch.context() as patched:
        patched.setenv("XDG_STATE_HOME", state)
        (callback,) = parked(origin, "deploy")
        assert upcall("answer", callback["id"], "--approve", cwd=origin).returncode == 0
    clone = tmp_path / "clone"
    shutil.copytree(origin, clone, ignore=shutil.ignore_patterns("__pycache__", ".gitignore"))
    (clone / ".upcall").chmod(0o755)
    return clone


def content(folder: Path) -> dict[str, tuple[str, int]]:
    """Every file of a folder, with its content and mode."""
    files = [path for path in sorted(folder.rglob("*")) if path.is_file() and "__pycache__" not in path.parts]
    return {str(f): (hashlib.sha256(f.read_bytes()).hexdigest(), f.stat().st_mode) for f in files}


@pytest.mark.slow
@pytest.mark.parametrize("mode", [0o600, 0o644])
def test_nothing_of_a_log_that_came_with_a_repository_is_run_or_changed(folder: Path, mode: int) -> None:
    (folder / ".upcall" / "log.db").chmod(mode)
    (folder / "team.py").write_text(EVIL + (folder / "team.py").read_text())
    (callback,) = out("show", "s1", cwd=folder)["callbacks"]
    before = content(folder / ".upcall")

    for args in (*REFUSED, ["answer", callback["id"], "--reject", "no"]):
        done = upcall(*args, cwd=folder, given="deploy\n")
        assert done.returncode == 1, args
        assert ".upcall/log.db: this log may not be yours" in done.stderr
        assert "--store " in done.stderr
        assert "upcall adopt " in done.stderr
        assert done.stderr.count("\n") == 1
    assert content(folder / ".upcall") == before
    assert not (folder / "deployed.txt").exists()


def test_resuming_imports_nothing_that_a_foreign_log_names(folder: Path) -> None:
    (folder / "team.py").write_text(EVIL)
    for args in (["resume", "s1"], ["resume", "--all"]):
        assert upcall(*args, cwd=folder).returncode == 1
    assert not (folder / "pwned").exists()


@pytest.mark.slow
@pytest.mark.parametrize("args", SHOWN, ids=" ".join)
def test_a_foreign_log_is_shown_and_stays_as_it_is(args: list[str], folder: Path) -> None:
    before = content(folder)

    done = upcall(*args, cwd=folder)

    assert done.returncode == 0, done.stderr
    assert "s1" in done.stdout or "Nothing waits" in done.stdout
    assert "is not your log, so it is read-only" in done.stderr
    assert content(folder) == before


@pytest.mark.slow
def test_a_foreign_log_with_hostile_files_beside_it_is_shown_without_touching_them(folder: Path) -> None:
    log = folder / ".upcall" / "log.db"
    db = sqlite3.connect(log, isolation_level=None)
    db.execute("UPDATE sessions SET agent = 'renamed'")  # it is in the -wal alone
    copy = folder.parent / "with-wal"
    shutil.copytree(folder, copy)
    db.close()
    Path(f"{copy}/.upcall/log.db-shm").write_bytes(b"\xff" * 32768)
    before = content(copy)

    assert {one["agent"] for one in out("sessions", cwd=copy)} == {"renamed"}
    assert content(copy) == before


@pytest.mark.slow
def test_naming_a_foreign_log_is_one_way_on_and_makes_it_ours_only_while_it_is_named(folder: Path) -> None:
    named = ["--store", ".upcall/log.db", "--agents", "team:manager"]
    assert upcall("resume", "s1", *named, cwd=folder).returncode == 0
    assert (folder / "deployed.txt").exists()
    assert upcall("run", "team:manager", "paint", cwd=folder, UPCALL_STORE=".upcall/log.db").returncode == 3
    assert "this log may not be yours" in upcall("run", "team:manager", "paint", cwd=folder).stderr


def test_a_log_of_ours_stays_ours_when_its_folder_is_moved_copied_or_vacuumed(tmp_path: Path) -> None:
    first = tmp_path / "first"
    first.mkdir()
    make_team(first)
    parked(first, "paint")
    shutil.copytree(first, tmp_path / "copied")
    first.rename(tmp_path / "moved")
    db = sqlite3.connect(tmp_path / "moved" / ".upcall" / "log.db", isolation_level=None)
    db.execute("VACUUM")
    db.close()
    for place in ("copied", "moved"):
        assert upcall("cancel", "s1", cwd=tmp_path / place).returncode == 0


@pytest.mark.slow
def test_a_log_that_is_replaced_by_a_pull_becomes_foreign(folder: Path, tmp_path: Path) -> None:
    mine = tmp_path / "mine"
    mine.mkdir()
    make_team(mine)
    parked(mine, "paint", "m1")
    shutil.copyfile(folder / ".upcall" / "log.db", mine / ".upcall" / "log.db")
    assert "this log may not be yours" in upcall("resume", "--all", cwd=mine).stderr


def test_what_is_noted_of_a_log_is_random_and_private(tmp_path: Path) -> None:
    make_team(tmp_path)
    state = tmp_path / "state"
    assert upcall("run", "team:manager", "paint", cwd=tmp_path, XDG_STATE_HOME=str(state)).returncode == 3
    assert state.stat().st_mode & 0o777 == 0o700
    assert (state / "upcall").stat().st_mode & 0o777 == 0o700
    assert (state / "upcall" / "logs").stat().st_mode & 0o777 == 0o600
    noted = (state / "upcall" / "logs").read_text()
    assert len(noted) == 33
    assert int(noted, 16)


@pytest.mark.parametrize("broken", ["a file", "a link that leads nowhere", "a folder that others can write"])
def test_a_state_folder_that_can_not_be_used_is_told_in_one_sentence(broken: str, tmp_path: Path) -> None:
    make_team(tmp_path)
    state = tmp_path / "state"
    if broken == "a file":
        state.touch()
    elif broken == "a folder that others can write":
        (state / "upcall").mkdir(parents=True)
        (state / "upcall").chmod(0o777)
    else:
        state.symlink_to("/proc/nowhere")

    done = upcall("run", "team:manager", "paint", cwd=tmp_path, XDG_STATE_HOME=str(state))

    assert (done.returncode, done.stdout) == (1, "")
    assert "the ids of your logs can't be kept here" in done.stderr
    assert "set XDG_STATE_HOME to a folder of your own, or name the log: --store .upcall/log.db" in done.stderr
    assert done.stderr.count("\n") == 1
    assert not (tmp_path / ".upcall" / "log.db").exists()
    named = upcall("run", "team:manager", "paint", cwd=tmp_path, XDG_STATE_HOME=str(state), UPCALL_STORE="x.db")
    assert named.returncode == 3
    assert upcall("sessions", cwd=tmp_path, XDG_STATE_HOME=str(state)).returncode == 0


@pytest.mark.slow
def test_without_a_home_folder_a_log_has_to_be_named(tmp_path: Path) -> None:
    make_team(tmp_path)
    nobody = {"XDG_STATE_HOME": "", "HOME": ""}
    done = upcall("run", "team:manager", "paint", cwd=tmp_path, **nobody)
    assert done.returncode == 1
    assert "the ids of your logs can't be kept here" in done.stderr
    assert upcall("run", "team:manager", "paint", "--store", "x.db", cwd=tmp_path, **nobody).returncode == 3
    assert upcall("demo", cwd=tmp_path, TMPDIR=str(tmp_path), **nobody).returncode == 0


def test_nothing_is_made_in_the_home_folder_of_another_user(tmp_path: Path) -> None:
    # as with a `sudo` that keeps HOME
    make_team(tmp_path)
    home = tmp_path / "home"
    home.mkdir()
    if os.geteuid() == 0:
        os.chown(home, 65534, 65534)
    else:
        home = Path("/")
    before = sorted(home.iterdir())
    done = upcall("run", "team:manager", "paint", cwd=tmp_path, XDG_STATE_HOME="", HOME=str(home))
    assert done.returncode == 1
    assert "the ids of your logs can't be kept here" in done.stderr
    assert sorted(home.iterdir()) == before


@pytest.mark.slow
def test_two_processes_that_make_the_log_at_the_same_time_both_find_it_theirs(tmp_path: Path) -> None:
    make_team(tmp_path)
    running = [start("run", "team:manager", "paint", "--id", f"s{n}", cwd=tmp_path) for n in range(3)]
    for one in running:
        _, told = one.communicate(timeout=60)
        assert one.returncode == 3, told
    assert sorted(row["id"] for row in out("sessions", cwd=tmp_path) if not row["parent"]) == ["s0", "s1", "s2"]
    assert upcall("cancel", "s1", cwd=tmp_path).returncode == 0


@pytest.mark.slow
@pytest.mark.parametrize("name", [".gitignore", "history"])
def test_a_link_in_the_folder_is_refused_and_not_written_through(name: str, tmp_path: Path) -> None:
    make_team(tmp_path)
    precious = tmp_path / "precious.txt"
    precious.write_text("precious")
    (tmp_path / ".upcall").mkdir(mode=0o700)
    (tmp_path / ".upcall" / name).symlink_to(precious)
    for args in (["run", "team:manager", "paint"], ["chat", "team:manager"], ["resume", "--all"], ["demo"]):
        done = upcall(*args, cwd=tmp_path, given="paint\n")
        if args == ["demo"]:  # which works in a folder of its own
            continue
        assert done.returncode in (0, 1)
        assert f".upcall/{name} is a symbolic link; remove it: rm " in done.stderr or args[0] == "resume"
    assert precious.read_text() == "precious"


def test_the_history_is_never_written_through_a_link_or_read_from_a_pipe(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from upcall.cli.input_history import InputHistory
    from upcall.errors import StoreUnavailable

    monkeypatch.chdir(tmp_path)
    Path(".upcall").mkdir(mode=0o700)
    kept = InputHistory(Path(".upcall/history"))
    kept.store_string("one\ntwo")
    kept.store_string("three")
    assert list(InputHistory(Path(".upcall/history")).load_history_strings()) == ["three", "one\ntwo"]
    precious = tmp_path / "precious.txt"
    precious.write_text("precious")
    Path(".upcall/history").unlink()
    Path(".upcall/history").symlink_to(precious)
    with pytest.raises(StoreUnavailable, match="is a symbolic link"):
        kept.store_string("four")
    Path(".upcall/history").unlink()
    os.mkfifo(".upcall/history", 0o600)
    with pytest.raises(OSError, match="is not a file"):
        kept.load_history_strings()
    assert precious.read_text() == "precious"


@pytest.mark.slow
@pytest.mark.parametrize("mode", [0o770, 0o777])
def test_a_default_folder_that_others_can_write_is_refused(mode: int, tmp_path: Path) -> None:
    make_team(tmp_path)
    parked(tmp_path, "paint")
    (tmp_path / ".upcall").chmod(mode)
    for args in (["run", "team:manager", "paint"], ["sessions"], ["resume", "--all"], ["inbox"]):
        done = upcall(*args, cwd=tmp_path)
        assert done.returncode == 1
        assert "other users can write" in done.stderr
        assert "chmod 700" in done.stderr
    assert upcall("sessions", cwd=tmp_path, UPCALL_TRUST_STORE="1").returncode == 0


@pytest.mark.slow
def test_a_default_folder_that_is_a_link_is_refused(tmp_path: Path) -> None:
    make_team(tmp_path)
    parked(tmp_path, "paint")
    (tmp_path / ".upcall").rename(tmp_path / "elsewhere")
    (tmp_path / ".upcall").symlink_to("elsewhere")
    for args in (["run", "team:manager", "paint"], ["sessions"], ["resume", "--all"]):
        done = upcall(*args, cwd=tmp_path)
        assert done.returncode == 1
        assert "is a symbolic link; remove it: rm " in done.stderr


@pytest.mark.slow
def test_a_clone_by_git_is_foreign(folder: Path, tmp_path: Path) -> None:
    git = ["git", "-c", "user.name=a", "-c", "user.email=a@b", "-C", str(folder)]
    for args in (["init", "-q"], ["add", "-f", "."], ["commit", "-qm", "all"]):
        subprocess.run([*git, *args], check=True)
    cloned = tmp_path / "cloned"
    subprocess.run(["git", "clone", "-q", str(folder), str(cloned)], check=True)
    assert "this log may not be yours" in upcall("chat", "team:manager", "-c", cwd=cloned, given="deploy\n").stderr
    assert {one["id"].partition("~")[0] for one in out("sessions", cwd=cloned)} == {"s1"}
    assert not (cloned / "deployed.txt").exists()
