"""An approval for one program covers no other one, however the command is written."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from upcall import Agent, Approve, Reject, Runtime
from upcall.kit import approve
from upcall.models import Script, call
from upcall.workspace import Folder, file_tools, shell

MADE = shell().tools[0]


def program(command: str) -> str | None:
    return MADE.patterns({"command": command}).get("this program")


@pytest.mark.parametrize(
    ("command", "name"),
    [
        ("git status -s", "git"),
        ("  git   status", "git"),
        ("/usr/bin/git status", "/usr/bin/git"),
        ("git status --porcelain=v2 -uno", "git"),
        ("git diff --stat HEAD src/upcall", "git"),
        ("git diff --cached -U10 -- src", "git"),
        ("git log --oneline -20 --format=%h", "git"),
        ("git log -n 3 --since=2024-01-01 -p", "git"),
        ("git show --name-only HEAD", "git"),
        ("git branch", "git"),
        ("git branch -a -vv", "git"),
        ("git branch --show-current", "git"),
        ("git branch --list feature", "git"),
        ("git tag -l v1", "git"),
        ("git remote -v", "git"),
        ("git stash list", "git"),
        ("git reflog -5", "git"),
        ("git rev-parse --abbrev-ref HEAD", "git"),
        ("git ls-files -o --exclude-standard", "git"),
        ("git blame -L 1,20 src/a.py", "git"),
        ("git cat-file -p HEAD:a", "git"),
        ("ls -la src/upcall", "ls"),
        ("/bin/cat a b", "/bin/cat"),
        ("head -n 20 a", "head"),
        ("grep -rn --include=a.py word src", "grep"),
        ("diff -ru a b", "diff"),
        ("sort -rnk2 a", "sort"),
    ],
)
def test_a_plain_command_is_covered_by_its_program_as_it_is_written(command: str, name: str) -> None:
    assert program(command) == name


@pytest.mark.parametrize(
    "command",
    [
        "./build.sh --fast", "./ls", "bin/ls", "../bin/cat a", "/tmp/ls", "/usr/bin/../../tmp/ls",
        "/work/bin/git status", "pytest tests/a.py", "g++ -O2 a.cc", "touch a", "cp a .git/config", "tee a",
        "uniq a .git/config", "rm a",
    ],
)  # fmt: skip
def test_a_program_that_an_agent_could_write_or_that_writes_is_covered_by_nothing(command: str) -> None:
    assert program(command) is None


BLANKS = [sign for sign in map(chr, range(sys.maxunicode + 1)) if sign.isspace() and sign != " "]
HIDDEN = [
    "\u200b",
    "\u200d",
    "\u2060",
    "\ufeff",
    "\xad",
    "\u2800",
    "\u3164",
    "\u115f",
    "\ufe0f",
    "\U000e0061",
    "\u202e",
    "\x00",
]
ALIKE = ["g\u0456t", "\uff47\uff49\uff54", "gi\u0542", "git\u0301"]


@pytest.mark.parametrize("blank", [*BLANKS, *HIDDEN])
def test_no_blank_and_no_hidden_character_makes_another_program_count_as_the_approved_one(blank: str) -> None:
    for command in (
        f"{blank}git push",
        f"git{blank}push --force",
        f"git{blank} push",
        f"git {blank}rm",
        f"gi{blank}t x",
    ):
        assert program(command) is None, ascii(command)


@pytest.mark.parametrize("name", ALIKE)
def test_a_name_that_looks_like_an_approved_one_is_covered_by_nothing(name: str) -> None:
    assert program(f"{name} status") is None


@pytest.mark.parametrize(
    "command",
    [
        "git status; rm x", "git status & rm x", "git status | sh",
        "git status\nrm x", "git status\rrm x", "git `rm x`",
        "git $(rm x)", "git ${x}", "git$IFS$1push", "'git' status",
        '"git" status', "g\\it status", "git > x", "git < x",
        "g?t status", "git {a,b}", "(git status)", "~/git status", "git #x", "!git", "git ~", "git *", "$SHELL x",
        "", " ", "-git", "/", "git/",
    ],
)  # fmt: skip
def test_a_command_in_which_the_shell_does_something_is_covered_by_nothing(command: str) -> None:
    assert program(command) is None


@pytest.mark.parametrize(
    "command",
    [
        "PATH=/tmp git status", "GIT_SSH_COMMAND=x git fetch", "env git status", "env -i PATH=/tmp git status",
        "/usr/bin/env git", "sudo git status", "sh -c git", "/bin/bash x", "xargs git", "nice git", "timeout 5 git",
        "command git", "exec git", "eval git", ". git",
        "source git", "time git", "nohup git", "busybox git", "find . -delete",
        "python3 x.py", "python3.12 -m x", "perl x", "awk x", "ssh host git", "make git", "npx git",
        "split --filter=./x f", "sort --compress-program=./x f", "sort --compress-prog ./x f", "sort -o f g",
        "sort -nof g", "sort --output=f g", "diff -l a b", "diff --paginate a b", "diff -rul a b",
        "grep --filter=./x y f", "rg --pre ./x y", "fd -x ./x", "gcc -wrapper ./x a.c", "scp -S ./x f h:f",
        "sftp -S ./x h", "zip a.zip f -T -TT ./x", "wget --use-askpass=./x u", "man -P ./x ls", "uvx ruff",
        "just x", "gmake", "go run x.go", "cargo run", "java -jar x.jar", "valgrind ./x", "ssh-agent ./x",
        "fakeroot ./x", "ld.so ./x", "crontab f", "at -f x now", "install --strip-program=./x -s f g",
        "sqlite3 -init f", "m4 f", "pip install .", "cmake -P f", "prlimit ./x", "choom -n 0 ./x", "linux64 ./x",
        "i386 ./x", "arch -x86_64 ./x", "uname26 ./x", "run-parts .", "capsh --shell=./x --", "unbuffer ./x",
        "coreutils --coreutils-prog=env ./x", "ip netns exec x ./x", "less f", "view f", "xterm -e ./x",
        "file -z f", "tree -o f", "coverage run x.py", "upcall run x",
    ],
)  # fmt: skip
def test_a_program_that_runs_another_one_is_covered_by_nothing(command: str) -> None:
    assert program(command) is None


@pytest.mark.parametrize(
    "command",
    [
        "git -c core.pager=evil log", "git -ccore.pager=evil log",
        "git --config-env=core.pager=X log", "git --exec-path=/tmp x",
        "git -C /tmp/evil status", "git --git-dir=/tmp/evil status",
        "git config core.pager evil", "git bisect run evil",
        "git rebase -x evil", "git submodule foreach evil",
        "git fetch --upload-pack=evil", "git push --receive-pack=evil",
        "git grep -Oevil x", "git difftool -x evil", "git fetch ext::evil", "git evil", "git diff --ext-diff",
        "git merge -sevil x",
        "git pull --uplo=evil", "git push --exe evil", "git merge --strat=evil x",
        "git clone --config core.sshCommand=evil x", "/usr/bin/git -c a=b log",
        "git log -1 --format=%B --output=.git/config", "git log --outp=.git/config",
        "git diff --output .git/config",
        "git show --output-directory=x", "git format-patch -o .git -1", "git archive -o .git/config HEAD",
        "git commit -F msg", "git commit --allow-empty --cleanup=verbatim -F msg", "git commit -m x",
        "git push origin main", "git push ./evil HEAD:refs/heads/z", "git fetch ./evil", "git pull ../evil x",
        "git ls-remote ./evil", "git mv evil/H evil/HEAD", "git rm a", "git add a", "git checkout x", "git reset",
        "git branch x", "git branch -d x", "git branch x --list", "git branch --format --list x",
        "git branch -- x --list", "git branch -", "git tag x", "git tag -d x", "git remote add x ./evil",
        "git remote set-url origin ./evil", "git reflog expire --all", "git reflog -5 delete x", "git stash",
        "git stash pop", "git stash -p", "git log --textconv", "git log --show-signature", "git log --format=%G?",
        "git log --format=%GS", "git cat-file --filters x", "git blame --contents x y", "git --version x", "git",
    ],
)  # fmt: skip
def test_git_with_settings_or_commands_of_its_own_is_covered_by_nothing(command: str) -> None:
    assert program(command) is None


SETTINGS = '[core]\n\trepositoryformatversion = 0\n\tbare = false\n\tfsmonitor = "touch RAN; false"\n'


async def test_an_approval_of_git_does_not_become_a_shell(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder, asked = tmp_path / "repository", list[str]()
    subprocess.run(("git", "init", "-q", str(folder)), check=True)
    for name in ("GIT_AUTHOR_NAME", "GIT_AUTHOR_EMAIL", "GIT_COMMITTER_NAME", "GIT_COMMITTER_EMAIL"):
        monkeypatch.setenv(name, "someone")
    steps = [
        call("shell", command="git status"),
        call("write_file", path="message", content=SETTINGS),
        call("shell", command="git commit --allow-empty --cleanup=verbatim -F message"),
        call("shell", command="git log -1 --format=%B --output=.git/config"),
        call("shell", command="git status -s"),
        "done",
    ]
    kit = [file_tools(), shell(), approve({"shell": True})]
    agent = Agent("worker", model=Script(steps), kit=kit, workspace=Folder(folder))

    async with Runtime(tmp_path / "log.db", agents=[agent], hold=0.0) as runtime:
        reply = await (await runtime.start(agent, id="s")).prompt("go")
        while reply.status == "waiting":
            (callback,) = await runtime.inbox()
            asked.append(str((callback.args or {})["command"]).partition(" --")[0])
            first = callback.patterns.get("this program") == "git"
            await runtime.answer(callback.id, Approve(pattern="this program") if first else Reject("no"))
            reply = await runtime.resume("s")

    assert reply.status == "done"
    assert asked == ["git status", "git commit", "git log -1"]
    assert not (folder / "RAN").exists()
