"""The command `completion`: scripts for shells that complete commands, options, session ids and callback ids."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence

from upcall.cli.options import Command, Commands, long_options
from upcall.cli.output import say

IDS = "upcall sessions --ids --limit 200 2>/dev/null"
WAITING = "upcall inbox --ids --limit 200 2>/dev/null"


def add(commands: Commands) -> None:
    """Add the command `completion`."""
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
    parser.add_argument("shell", choices=tuple(_SHELLS), metavar="|".join(_SHELLS), help="the shell")


def _completion(args: argparse.Namespace) -> int:
    commands: Commands = args.commands
    say(_SHELLS[args.shell](commands.all))
    return 0


def _names(commands: Sequence[Command]) -> str:
    return " ".join(command.name for command in commands)


def _names_taking(commands: Sequence[Command], takes: str, between: str) -> str:
    return between.join(command.name for command in commands if command.takes == takes)


def _bash(commands: Sequence[Command]) -> str:
    """Return a bash script. It reads ids and file names as quoted lines, so that the shell never expands them."""
    options = "\n".join(
        f'            {c.name}) _upcall_words "{" ".join(long_options(c.parser))}" ;;' for c in commands
    )
    return f"""\
_upcall_lines() {{
    local line quoted
    while IFS= read -r line; do
        printf -v quoted '%q' "$line"
        if [[ "$quoted" == "$word"* ]]; then COMPREPLY+=("${{quoted#"$broken_off"}}"); fi
    done
}}
_upcall_words() {{ _upcall_lines <<< "${{1// /$'\\n'}}"; }}
_upcall_files() {{
    local line
    if ! compopt -o filenames 2>/dev/null; then _upcall_lines < <(compgen -f -- "$word"); return; fi
    while IFS= read -r line; do COMPREPLY+=("$line"); done < <(compgen -f -- "${{word#"$broken_off"}}")
}}
_upcall() {{
    local line="${{COMP_LINE:0:COMP_POINT}}" breaks="${{COMP_WORDBREAKS//[^:=@]/}}" broken_off=""
    if [[ -z "$line" ]]; then printf -v line '%s ' "${{COMP_WORDS[@]:0:COMP_CWORD+1}}"; line="${{line% }}"; fi
    local word="${{line##*[[:space:]]}}"
    local -a given
    read -r -a given <<< "${{line%"$word"}}"
    local command="${{given[1]-}}" prev="${{given[${{#given[@]}}-1]}}"
    if [[ -n "$breaks" ]]; then broken_off="${{word%"${{word##*[$breaks]}}"}}"; fi
    COMPREPLY=()
    if [[ "${{#given[@]}}" -eq 1 ]]; then
        _upcall_words "{_names(commands)} --help --version"
        return
    fi
    if [[ "$word" == -* ]]; then
        case "$command" in
{options}
        esac
        return
    fi
    case "$prev" in
        --store|--agents|--token-file) _upcall_files; return ;;
        --id|--session|delete) _upcall_lines < <({IDS}); return ;;
    esac
    case "$command" in
        {_names_taking(commands, "session", "|")}) _upcall_lines < <({IDS}) ;;
        {_names_taking(commands, "callback", "|")}) _upcall_lines < <({WAITING}) ;;
        {_names_taking(commands, "command", "|")}) _upcall_words "{_names(commands)}" ;;
        explain) _upcall_lines < <({WAITING}); _upcall_files ;;
        sessions) _upcall_words "delete prune" ;;
        tokens) _upcall_words "new list revoke" ;;
        new) _upcall_words "agent team" ;;
        completion) _upcall_words "{" ".join(_SHELLS)}" ;;
        *) _upcall_files ;;
    esac
}}
complete -F _upcall upcall"""


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
        --store|--agents|--token-file) _files; return ;;
        --id|--session|delete) compadd -- ${{(f)"$({IDS})"}}; return ;;
    esac
    case "$words[2]" in
        {_names_taking(commands, "session", "|")}) compadd -- ${{(f)"$({IDS})"}} ;;
        {_names_taking(commands, "callback", "|")}) compadd -- ${{(f)"$({WAITING})"}} ;;
        {_names_taking(commands, "command", "|")}) compadd -- {_names(commands)} ;;
        explain) compadd -- ${{(f)"$({WAITING})"}}; _files ;;
        sessions) compadd -- delete prune ;;
        tokens) compadd -- new list revoke ;;
        new) compadd -- agent team ;;
        completion) compadd -- {" ".join(_SHELLS)} ;;
        *) _files ;;
    esac
}}
compdef _upcall upcall"""


_NOT_TOKENS = "not __fish_seen_subcommand_from tokens; and"


def _fish(commands: Sequence[Command]) -> str:
    lines = [
        f"complete -c upcall -n __fish_use_subcommand -f -a {c.name} -d '{_quoted(c.summary)}'" for c in commands
    ]
    for command in commands:
        seen = f"-n '__fish_seen_subcommand_from {command.name}'"
        lines += [f"complete -c upcall {seen} -l {name[2:]}" for name in long_options(command.parser)]
    sessions, callbacks, helped = (
        _names_taking(commands, takes, " ") for takes in ("session", "callback", "command")
    )
    lines += [
        f"complete -c upcall -n '__fish_seen_subcommand_from {sessions} delete' -f -a '({IDS})'",
        f"complete -c upcall -n '__fish_seen_subcommand_from {callbacks}' -f -a '({WAITING})'",
        f"complete -c upcall -n '__fish_seen_subcommand_from {helped}' -f -a '{_names(commands)}'",
        f"complete -c upcall -n '__fish_seen_subcommand_from explain' -a '({WAITING})'",
        "complete -c upcall -n '__fish_seen_subcommand_from sessions' -f -a 'delete prune'",
        "complete -c upcall -n '__fish_seen_subcommand_from tokens' -f -a 'new list revoke'",
        f"complete -c upcall -n '{_NOT_TOKENS} __fish_seen_subcommand_from new' -f -a 'agent team'",
        f"complete -c upcall -n '__fish_seen_subcommand_from completion' -f -a '{' '.join(_SHELLS)}'",
    ]
    return "\n".join(lines)


def _quoted(text: str) -> str:
    return text.replace("'", "").replace(":", "\\:")


_SHELLS: dict[str, Callable[[Sequence[Command]], str]] = {"bash": _bash, "zsh": _zsh, "fish": _fish}
