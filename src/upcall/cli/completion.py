"""The command `completion`: shell scripts that complete commands, options, session ids and callback ids."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence

from upcall.cli.options import Command, Commands, long_options
from upcall.cli.output import say

IDS = "upcall sessions --ids --limit 200 2>/dev/null"
WAITING = "upcall inbox --ids --limit 200 2>/dev/null"


def add(commands: Commands) -> None:
    """The command `completion`."""
    parser = commands.add(
        "completion",
        "print a script that lets your shell complete commands and ids",
        _completion,
        examples=[
            "echo 'source <(upcall completion bash)' >> ~/.bashrc",
            "echo 'source <(upcall completion zsh)' >> ~/.zshrc",
            "upcall completion fish > ~/.config/fish/completions/upcall.fish",
        ],
    )
    parser.add_argument("shell", choices=tuple(_SHELLS), metavar="|".join(_SHELLS), help="which shell")


def _completion(args: argparse.Namespace) -> int:
    commands: Commands = args.commands
    say(_SHELLS[args.shell](commands.all))
    return 0


def _names(commands: Sequence[Command]) -> str:
    return " ".join(command.name for command in commands)


def _taking(commands: Sequence[Command], takes: str, between: str) -> str:
    return between.join(command.name for command in commands if command.takes == takes)


def _bash(commands: Sequence[Command]) -> str:
    options = "\n".join(f'            {c.name}) words="{" ".join(long_options(c.parser))}" ;;' for c in commands)
    return f"""\
_upcall() {{
    local cur="${{COMP_WORDS[COMP_CWORD]}}" prev="${{COMP_WORDS[COMP_CWORD-1]}}"
    local command="${{COMP_WORDS[1]}}" words=""
    COMPREPLY=()
    if [ "$COMP_CWORD" -eq 1 ]; then
        COMPREPLY=($(compgen -W "{_names(commands)} --help --version" -- "$cur"))
        return
    fi
    if [[ "$cur" == -* ]]; then
        case "$command" in
{options}
        esac
        COMPREPLY=($(compgen -W "$words" -- "$cur"))
        return
    fi
    case "$prev" in
        --store|--agents) COMPREPLY=($(compgen -f -- "$cur")); return ;;
        --id|delete) COMPREPLY=($(compgen -W "$({IDS})" -- "$cur")); return ;;
    esac
    case "$command" in
        {_taking(commands, "session", "|")}) COMPREPLY=($(compgen -W "$({IDS})" -- "$cur")) ;;
        {_taking(commands, "callback", "|")}) COMPREPLY=($(compgen -W "$({WAITING})" -- "$cur")) ;;
        {_taking(commands, "command", "|")}) COMPREPLY=($(compgen -W "{_names(commands)}" -- "$cur")) ;;
        explain) COMPREPLY=($(compgen -f -W "$({WAITING})" -- "$cur")) ;;
        sessions) COMPREPLY=($(compgen -W "delete prune" -- "$cur")) ;;
        new) COMPREPLY=($(compgen -W "agent team" -- "$cur")) ;;
        completion) COMPREPLY=($(compgen -W "{" ".join(_SHELLS)}" -- "$cur")) ;;
        *) COMPREPLY=($(compgen -f -- "$cur")) ;;
    esac
}}
complete -o filenames -F _upcall upcall"""


def _zsh(commands: Sequence[Command]) -> str:
    described = "\n".join(f"            '{c.name}:{_quoted(c.summary)}'" for c in commands)
    options = "\n".join(f"            {c.name}) compadd -- {' '.join(long_options(c.parser))} ;;" for c in commands)
    return f"""\
#compdef upcall
_upcall() {{
    local -a commands
    if (( CURRENT == 2 )); then
        commands=(
{described}
        )
        _describe command commands
        return
    fi
    if [[ "$words[CURRENT]" == -* ]]; then
        case "$words[2]" in
{options}
        esac
        return
    fi
    case "$words[CURRENT-1]" in
        --store|--agents) _files; return ;;
        --id|delete) compadd -- ${{(f)"$({IDS})"}}; return ;;
    esac
    case "$words[2]" in
        {_taking(commands, "session", "|")}) compadd -- ${{(f)"$({IDS})"}} ;;
        {_taking(commands, "callback", "|")}) compadd -- ${{(f)"$({WAITING})"}} ;;
        {_taking(commands, "command", "|")}) compadd -- {_names(commands)} ;;
        explain) compadd -- ${{(f)"$({WAITING})"}}; _files ;;
        sessions) compadd -- delete prune ;;
        new) compadd -- agent team ;;
        completion) compadd -- {" ".join(_SHELLS)} ;;
        *) _files ;;
    esac
}}
compdef _upcall upcall"""


def _fish(commands: Sequence[Command]) -> str:
    lines = [
        f"complete -c upcall -n __fish_use_subcommand -f -a {c.name} -d '{_quoted(c.summary)}'" for c in commands
    ]
    for command in commands:
        seen = f"-n '__fish_seen_subcommand_from {command.name}'"
        lines += [f"complete -c upcall {seen} -l {name[2:]}" for name in long_options(command.parser)]
    sessions, callbacks, helped = (_taking(commands, takes, " ") for takes in ("session", "callback", "command"))
    lines += [
        f"complete -c upcall -n '__fish_seen_subcommand_from {sessions} delete' -f -a '({IDS})'",
        f"complete -c upcall -n '__fish_seen_subcommand_from {callbacks}' -f -a '({WAITING})'",
        f"complete -c upcall -n '__fish_seen_subcommand_from {helped}' -f -a '{_names(commands)}'",
        f"complete -c upcall -n '__fish_seen_subcommand_from explain' -a '({WAITING})'",
        "complete -c upcall -n '__fish_seen_subcommand_from sessions' -f -a 'delete prune'",
        "complete -c upcall -n '__fish_seen_subcommand_from new' -f -a 'agent team'",
        f"complete -c upcall -n '__fish_seen_subcommand_from completion' -f -a '{' '.join(_SHELLS)}'",
    ]
    return "\n".join(lines)


def _quoted(text: str) -> str:
    return text.replace("'", "").replace(":", "\\:")


_SHELLS: dict[str, Callable[[Sequence[Command]], str]] = {"bash": _bash, "zsh": _zsh, "fish": _fish}
