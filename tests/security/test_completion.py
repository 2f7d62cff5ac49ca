"""What stands in a log is completed and shown as words to type, and the shell never runs any of it."""

from __future__ import annotations

import shlex
import subprocess
from pathlib import Path

import pytest

from cli.asking import make_team
from cli.command import environment, make_agents, upcall
from cli.tmux import Terminal
from quick import slow_but
from security.old_sessions import ODD_IDS, keep_sessions
from upcall.observe.plain import is_visible

TELLING_IDS = [ODD_IDS[0], "-dash", "esc\x1b]0;title\x07"]
SEEN = [one for one in ODD_IDS if is_visible(one)]


def bash(script: str, folder: Path) -> str:
    done = subprocess.run(
        ["bash", "-c", script], cwd=folder, env=environment(), capture_output=True, text=True, timeout=60,
        check=True,
    )  # fmt: skip
    return done.stdout


def completions(line: str, folder: Path) -> list[str]:
    """What bash would put on the line after `line`, each as it would stand there."""
    script = 'source <(upcall completion bash); COMP_LINE="$1"; COMP_POINT=${#1}; _upcall; '
    script += 'printf "%s\\n" "${COMPREPLY[@]}"'
    return bash(f"set -- {shlex.quote(line)}; {script}", folder).splitlines()


@pytest.mark.slow
def test_tab_completes_an_id_as_a_quoted_word_and_runs_nothing(tmp_path: Path) -> None:
    keep_sessions(tmp_path, ODD_IDS[0])
    with Terminal(line="bash --norc", cwd=tmp_path) as terminal:
        terminal.press("source <(upcall completion bash); echo ready", "Enter")
        terminal.see("\nready")
        terminal.press("upcall show ti", "Tab")
        terminal.see("\\$\\(touch\\$\\{IFS\\}pwned\\)")
        terminal.press("Enter")
        terminal.see("session ticket-$(touch${IFS}pwned)")
    assert not (tmp_path / "pwned").exists()


@pytest.mark.slow
@pytest.mark.parametrize(
    "command", slow_but(["show"], ["show", "resume", "events", "run agents x --id", "sessions delete"])
)
def test_every_completed_id_is_one_word_that_means_the_id(command: str, tmp_path: Path) -> None:
    keep_sessions(tmp_path, *ODD_IDS)
    words = completions(f"upcall {command} ", tmp_path)

    assert len(words) == len(ODD_IDS)
    read_back = [bash(f'printf "%s\\n" {word}', tmp_path).rstrip("\n") for word in words]
    assert set(SEEN) <= set(read_back)
    assert not (tmp_path / "pwned").exists()


@pytest.mark.slow
def test_an_id_with_colons_is_completed_behind_them(tmp_path: Path) -> None:
    keep_sessions(tmp_path, "top:a@b.c", "top:a~r1c0", "other")
    assert completions("upcall show top:a", tmp_path) == ["a~r1c0", "a@b.c"]
    assert completions("upcall show top:a@", tmp_path) == ["b.c"]
    assert completions("upcall show o", tmp_path) == ["other"]


@pytest.mark.slow
def test_names_of_files_are_completed_without_running_them(tmp_path: Path) -> None:
    (tmp_path / "file $(touch pwned)").touch()
    assert completions("upcall check fi", tmp_path) in (
        ["file $(touch pwned)"],  # readline quotes it
        ["file\\ \\$\\(touch\\ pwned\\)"],
    )
    assert not (tmp_path / "pwned").exists()


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_no_completion_script_hands_ids_to_a_word_list_that_the_shell_expands(shell: str, tmp_path: Path) -> None:
    script = upcall("completion", shell, cwd=tmp_path).stdout
    assert "compgen -W" not in script
    assert "eval" not in script


@pytest.mark.slow
@pytest.mark.parametrize("given", slow_but(TELLING_IDS, [one for one in ODD_IDS if one != "top:a@b.c"]))
def test_a_session_with_an_id_of_an_older_version_is_shown_and_its_commands_can_be_pasted(
    given: str, tmp_path: Path
) -> None:
    make_team(tmp_path)
    keep_sessions(tmp_path, given, agent="manager")
    dashes = ["--"] if given.startswith("-") else []
    assert upcall("show", *dashes, given, cwd=tmp_path).returncode == 0
    waits = upcall("run", "team:manager", "name", f"--id={given}", cwd=tmp_path)
    assert waits.returncode == 3, waits.stderr
    assert all(line.isprintable() for line in waits.stderr.splitlines())

    answer, resume = (line.strip() for line in waits.stderr.splitlines()[-2:])
    bash(answer.replace("YOUR ANSWER", "Otto"), tmp_path)
    assert bash(resume.removeprefix("then: "), tmp_path) == "called Otto\n"
    assert not (tmp_path / "pwned").exists()


@pytest.mark.parametrize(
    "given",
    slow_but(
        [*TELLING_IDS, "", "x" * 201],
        [*(one for one in ODD_IDS if one != "top:a@b.c"), "a~b", "", ".hidden", "x" * 201],
    ),
)
def test_a_new_session_gets_no_id_that_a_shell_or_a_terminal_could_misread(given: str, tmp_path: Path) -> None:
    make_agents(tmp_path)
    for command in (["run", "agents", "hello"], ["chat", "agents"]):
        done = upcall(*command, f"--id={given}", cwd=tmp_path, given="hello\n")
        assert done.returncode == 2
        assert "invalid session id" in done.stderr
        assert "beginning with a letter, digit or '_'" in done.stderr
        assert done.stderr.rstrip("\n").isprintable()


@pytest.mark.parametrize("given", ["a", "_x", "9", "team:run@host.example-1", "x" * 200])
def test_ids_of_letters_digits_and_a_few_signs_are_valid(given: str, tmp_path: Path) -> None:
    make_agents(tmp_path)
    assert upcall("run", "agents", "hello", "--id", given, cwd=tmp_path).stdout == "You said: hello\n"
