"""Find the program that a shell command runs, for approvals that cover one program.

It fails closed: a command counts as one program with its arguments only if nothing in it could make the shell, or
the program itself, run another one.
"""

from __future__ import annotations

import re

_PLAIN = re.compile(r"[A-Za-z0-9 _./,:=+@%-]+")
"""Characters without a meaning for the shell. Unicode look-alikes of them are not included."""

_NAME = re.compile(r"[A-Za-z0-9_./+-]+")

_RUN_OTHERS = """
    . ash awk bash builtin bun bundle busybox chroot chrt command conda coproc csh dash deno doas docker ed
    emacs env eval ex exec expect find fish flock gawk gdb hatch ionice irb jshell ksh kubectl ltrace lua make
    mamba mawk mosh nawk nice node nodejs nohup nox npm npx nsenter nu nvim osascript parallel pdm perl php pipx
    pkexec pnpm podman poetry powershell pwsh rlwrap rsync ruby runuser screen script sed setarch setpriv setsid
    sg sh socat source ssh start-stop-daemon stdbuf strace su sudo systemd-run tar taskset tclsh tcsh time
    timeout tmux torsocks tox toybox trap unshare uv vi vim watch wish xargs xonsh yarn zsh
"""
"""Programs that run programs or code from their arguments: approving one of these would approve everything."""

_VERSIONED = re.compile(r"(?:python|pypy|perl|ruby|lua|php|node|bash|ld-linux)[\w.-]*")

_GIT_COMMANDS = """
    add annotate blame branch cat-file checkout cherry-pick commit describe diff fetch log ls-files ls-tree
    merge mv pull push reflog remote reset restore rev-list rev-parse revert rm shortlog show stash status
    switch tag
"""
_GIT_RUNS = ("config", "exec", "ext-diff", "receive-pack", "strategy", "textconv", "upload-pack")
"""Options with which these commands run a program, or read settings that name one."""


def plain_program(command: str) -> str | None:
    """Return the program that a command runs, as it is written; None if the command may run anything else."""
    words = [word for word in command.split(" ") if word]
    if not words or not _PLAIN.fullmatch(command):
        return None
    program, *arguments = words
    name = program.rpartition("/")[2]
    if not _NAME.fullmatch(program) or not name or program.startswith("-"):
        return None
    if name in _RUN_OTHERS.split() or _VERSIONED.fullmatch(name):
        return None
    return None if name == "git" and not _is_plain_git(arguments) else program


def _is_plain_git(arguments: list[str]) -> bool:
    """Return whether git only does what its subcommand says, with the repository's own settings."""
    if not arguments:
        return True
    subcommand, *rest = arguments
    if subcommand not in _GIT_COMMANDS.split() or any("::" in one or _is_running_option(one) for one in rest):
        return False
    return subcommand not in ("merge", "pull") or not any(re.match("-[a-zA-Z]*s", one) for one in rest)


def _is_running_option(argument: str) -> bool:
    """Return whether an argument is an option that runs a program. Git also accepts the start of its name."""
    name = argument.removeprefix("--").partition("=")[0] if argument.startswith("--") else ""
    return bool(name) and any(one.startswith(name) or name.startswith(one) for one in _GIT_RUNS)
