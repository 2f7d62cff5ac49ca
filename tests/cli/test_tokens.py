"""`upcall tokens` and `upcall audit`, and commands that act with a token."""

from __future__ import annotations

import os
import pwd
import re
import subprocess
from pathlib import Path
from typing import Any

import msgspec
import pytest

from cli import command
from cli.asking import make_team, parked
from cli.command import out
from store.factories import put
from upcall.cli.audit import PAGE, entries
from upcall.events import AnyEvent, CancelRequested, ContextSet, SessionStarted
from upcall.store.memory import MemoryStore
from upcall.tokens import RefusedRequest, is_token

ME = pwd.getpwuid(os.getuid()).pw_name
LINE = re.compile(r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d[+-]\d\d:\d\d  (.*)")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return make_team(tmp_path)


def upcall(*args: str, cwd: Path, code: int = 0, **env: str) -> subprocess.CompletedProcess[str]:
    """Run the command; its exit code is checked."""
    done = command.upcall(*args, cwd=cwd, **env)
    assert done.returncode == code, done
    return done


def give(folder: Path, name: str, role: str) -> str:
    """Make a token, and return it."""
    done = upcall("tokens", "new", name, "--role", role, cwd=folder)
    token = done.stdout.removesuffix("\n")
    assert is_token(token), done
    assert token not in done.stderr
    return token


def audited(folder: Path, *args: str) -> list[dict[str, Any]]:
    lines = upcall("audit", "--json", *args, cwd=folder).stdout.splitlines()
    return [msgspec.json.decode(line) for line in lines]


@pytest.mark.slow
def test_a_token_is_printed_once_listed_by_name_and_revoked(folder: Path) -> None:
    token = give(folder, "ada", "answerer")
    (listed,) = out("tokens", "list", cwd=folder)
    assert (listed["name"], listed["role"], listed["revoked"]) == ("ada", "answerer", None)
    assert list(listed) == ["name", "role", "created", "revoked"]
    again = upcall("tokens", "new", "ada", "--role", "viewer", cwd=folder, code=1)
    assert (again.stdout, "a valid token called 'ada' already exists" in again.stderr) == ("", True)
    upcall("tokens", "revoke", "ada", cwd=folder)
    assert "there is no valid token called 'ada'" in upcall("tokens", "revoke", "ada", cwd=folder, code=1).stderr
    give(folder, "ada", "viewer")
    assert [one["revoked"] is None for one in out("tokens", "list", cwd=folder)] == [False, True]
    files = b"".join(file.read_bytes() for file in (folder / ".upcall").iterdir() if file.is_file())
    assert token.encode() not in files
    assert b"ada" in files


@pytest.mark.slow
@pytest.mark.parametrize("name", ["Ada", "ada\u200b", "аda", "a b", "ada\nben", "x'; DROP TABLE tokens; --", ""])
def test_a_name_that_is_not_plain_is_refused_with_the_rule(name: str, folder: Path) -> None:
    done = upcall("tokens", "new", name, "--role", "viewer", cwd=folder, code=2)
    assert "use 1 to 64 characters from a-z, 0-9 and . _ @ + -" in done.stderr
    assert done.stdout == ""


@pytest.mark.slow
def test_an_answer_with_a_token_bears_its_name_and_its_right(folder: Path) -> None:
    token = give(folder, "ada", "answerer")
    (entry,) = parked(folder, "name")
    done = upcall("answer", entry["id"], "Otto", cwd=folder, UPCALL_TOKEN=token)
    assert token not in done.stdout + done.stderr
    (answered,) = out("inbox", "--status", "answered", cwd=folder)
    assert (answered["answer"]["by"], answered["answer"]["right"]) == ("ada", "token")


@pytest.mark.slow
def test_a_token_that_is_wrong_revoked_or_too_weak_answers_and_cancels_nothing(folder: Path) -> None:
    viewer, revoked = give(folder, "vic", "viewer"), give(folder, "rae", "operator")
    answerer = give(folder, "ada", "answerer")
    upcall("tokens", "revoke", "rae", cwd=folder)
    (entry,) = parked(folder, "name")
    (folder / "vic.token").write_text(f"{viewer}\n")
    (folder / "wrong.token").write_text("upcall_" + "x" * 43)

    problems = [
        upcall("answer", entry["id"], "Otto", "--token-file", "vic.token", cwd=folder, code=1).stderr,
        upcall("answer", entry["id"], "Otto", cwd=folder, code=1, UPCALL_TOKEN=revoked).stderr,
        upcall("answer", entry["id"], "Otto", "--token-file", "wrong.token", cwd=folder, code=1).stderr,
        upcall("cancel", "s1", cwd=folder, code=1, UPCALL_TOKEN=answerer).stderr,
        upcall("inbox", "--reveal", entry["id"], cwd=folder, code=1, UPCALL_TOKEN=viewer).stderr,
        upcall("tokens", "new", "eve", "--role", "operator", cwd=folder, code=1, UPCALL_TOKEN=answerer).stderr,
    ]
    assert problems[0] == (
        "upcall: this needs the role answerer, and the token 'vic' has the role viewer; nothing was changed\n"
    )
    assert "the token 'rae' was revoked" in problems[1]
    assert "the token is not valid" in problems[2]
    assert "needs the role operator, and the token 'ada' has the role answerer" in problems[3]
    assert not any(token in "".join(problems) for token in (viewer, revoked, answerer))
    assert [one["id"] for one in out("inbox", cwd=folder)] == [entry["id"]]
    kept = audited(folder)
    assert [(one["kind"], one["by"], one["action"]) for one in kept] == [
        ("refused", "vic", "answer"),
        ("refused", "rae", "answer"),
        ("refused", "", "answer"),
        ("refused", "ada", "cancel"),
        ("refused", "vic", "inbox --reveal"),
        ("refused", "ada", "tokens new"),
    ]
    assert {one["address"] for one in kept} == {f"os-user:{ME}"}


@pytest.mark.slow
def test_a_token_that_is_given_badly_is_wrong_usage(folder: Path) -> None:
    (entry,) = parked(folder, "name")
    token = give(folder, "ada", "answerer")
    (folder / "empty").write_text("\n")
    answer = ("answer", entry["id"], "Otto")
    assert "UPCALL_TOKEN is empty" in upcall(*answer, cwd=folder, code=2, UPCALL_TOKEN="").stderr
    assert "it is empty" in upcall(*answer, "--token-file", "empty", cwd=folder, code=2).stderr
    assert "No such file" in upcall(*answer, "--token-file", "none", cwd=folder, code=2).stderr
    by = upcall(*answer, "--by", "root", cwd=folder, code=2, UPCALL_TOKEN=token)
    assert "--by is for answers without a token" in by.stderr
    assert len(out("inbox", cwd=folder)) == 1


@pytest.mark.slow
def test_the_audit_lists_answers_cancels_and_refusals_newest_last(folder: Path) -> None:
    assert "no log here yet" in upcall("audit", cwd=folder).stderr
    token = give(folder, "ada", "operator")
    assert upcall("audit", cwd=folder).stdout == "Nobody has answered, cancelled or been refused anything.\n"
    first, *_ = parked(folder, "many")
    upcall("answer", first["id"], "red", cwd=folder, UPCALL_TOKEN=token)
    upcall("answer", "nothing", "red", cwd=folder, code=1, UPCALL_TOKEN="upcall_wrong")
    upcall("cancel", "s1", cwd=folder, UPCALL_TOKEN=token)
    entries = audited(folder)
    people = [one for one in entries if one["right"] != "agent"]
    assert [(one["kind"], one["by"], one["right"]) for one in people] == [
        ("callback_answered", "ada", "token"),
        ("refused", "", ""),
        ("cancel_requested", "ada", "token"),
    ]
    assert [one["time"] for one in entries] == sorted(one["time"] for one in entries)
    assert people[0]["callback"]["answer"]["value"] == "red"
    assert (people[0]["session"], people[2]["session"]) == ("s1~r1c0", "s1")
    lines = [
        found[1] for line in upcall("audit", cwd=folder).stdout.splitlines() if (found := LINE.fullmatch(line))
    ]
    assert len(lines) == len(entries)
    assert f"ada (token)  answered: red; {first['id']} of session s1~r1c0: Which colour?" in lines
    assert lines[-1] == "ada (token)  cancelled session s1: by `upcall cancel`"
    assert re.fullmatch(
        r"unknown  was refused: answer nothing: the token is not valid.*, from os-user:.*", lines[-2]
    )
    assert audited(folder, "--limit", "2") == entries[-2:]
    assert [one["kind"] for one in audited(folder, "--session", "s1~r1c0")] == ["callback_answered"]
    assert "no session" in upcall("audit", "--session", "nope", cwd=folder, code=1).stderr


class _Counted(MemoryStore):
    """A store that counts the events that are read of it."""

    read_events = 0
    largest_page = 0

    async def read_all(self, after: int = 0, limit: int = 1000) -> list[AnyEvent]:
        page = await super().read_all(after, limit)
        self.read_events += len(page)
        self.largest_page = max(self.largest_page, len(page))
        return page


async def test_the_newest_entries_of_a_long_log_are_found_without_reading_all_of_it() -> None:
    store = _Counted()
    await put(store, "s", SessionStarted("clerk"))
    await put(store, "s", CancelRequested("ada"))
    claim = await store.claim("s")
    for at in range(100):
        await put(store, "s", *[ContextSet(f"key{at}-{n}", n) for n in range(100)], claim=claim)
    for by in ("ben", "cleo", "dora"):
        await put(store, "s", CancelRequested(by))
        await store.add_refusal(RefusedRequest(by, "answer", "q1", "too weak"))

    newest = [entry async for entry in entries(store, None, 3)]
    few = store.read_events
    everything = [entry async for entry in entries(store, None, None)]

    assert [getattr(one, "by", "") for one in newest] == ["cleo", "dora", "dora"]
    assert few < 2000 < store.read_events
    assert [getattr(one, "by", "") for one in everything] == ["ada", "ben", "ben", "cleo", "cleo", "dora", "dora"]
    assert store.largest_page == PAGE
