"""Find secrets in command lines and in lists: `--password hunter2`, `curl -u ada:hunter2`, `["Cookie", "id=1"]`.

A command may also stand in a list: `["curl", "-u", "ada:hunter2"]`, as a value or in a text. The program may stand
outside the list, in a field beside it: `{"command": "curl", "args": ["-u", "ada:hunter2"]}`.

Options with one letter mean something else in every program, so they count only after the name of a program that
takes a secret by them, in the same command. Every text is read once.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from upcall.observe.name_cache import cached_by_name
from upcall.observe.secret_fields import Span
from upcall.safety.secrets import is_secret_name

_FARTHEST = 2_000
"""Characters between the name of a program and an option that counts as its own."""

_LONGEST_NAME, _LONGEST_WORD = 100, 8
_VARIABLE = r"(?!\$(?:[({]|[A-Za-z_]\w*+(?![^\s\"'`;&|<>()])))"
_VALUE = (
    r"(?:\\?\"(?!\$[({A-Za-z_])([^\"\\\r\n]++)|\\?'([^'\\\r\n]++)|" + _VARIABLE + r"(?![-@<>{\[]|\.{0,2}/|~/)"
    r"([^\s\"'`\\;&|<>()]*[^\s\"'`\\;&|<>(),.]))"
)
_OPTION = re.compile(r"-(?<![\w-]-)-?([A-Za-z][\w.-]{1,60}+)(=|[ \t]{1,8}+)" + _VALUE)
_NO_VALUE = frozenset(
    (
        *("a", "and", "are", "as", "can", "for", "from", "has", "if", "in", "instead", "is", "it", "may", "must"),
        *("of", "on", "option", "options", "or", "should", "so", "that", "the", "then", "to", "was", "when"),
        *("which", "will", "with"),
    )
)
"""Words that follow an option in a sentence about it."""

_SWITCHES = frozenset(
    (
        *("allow", "ask", "disable", "enable", "force", "has", "no", "print", "prompt", "require", "show", "skip"),
        *("use", "with", "without"),
    )
)
"""The beginnings of options that take no value, such as `--ask-pass`."""

_NAMES = frozenset(("pass", "auth", "pat"))
_NOT_NAMES = frozenset(("key", "keys"))
_HEADER_NAME = re.compile(
    r"(?i)(?:(?:proxy-)?authorization|(?:set-)?cookie|(?:x-)?api-?key|(?:x-)?[a-z-]{1,40}-(?:key|token|secret|auth))"
)
_OTHER_HEADER = re.compile(
    r"(?i)(?:accept|access-control|cache|content|if|origin|referer|user-agent|x-(?:request|requested|csrf|forwarded))"
    r"[a-z-]{0,40}|(?:x-)?[a-z-]{0,40}(?:authorization|cookie|-key|-token)"
)
"""A header's name that stands where a value would: a list of names of headers holds no secret."""

_LISTED = re.compile(
    r"(?<![\w-])(--?[A-Za-z][\w.-]{1,60}+|[A-Za-z][\w-]{3,60}+)\\{0,7}[\"'][ \t]{0,8},[ \t]{0,8}"
    r"(?:\r?\n[ \t]{0,80})?\\{0,7}(?:\"([^\"\\\r\n]++)|'([^'\\\r\n]++))"
)
"""`"Authorization", "Bearer …"`, `"--token", "…"`: two items of a list."""

_IN_PAIRS = re.compile(r"[\[(,][ \t]{0,8}[\[(][ \t]{0,8}\\{0,7}[\"']\Z")
"""The text before a name in a list of pairs."""


class _Program(NamedTuple):
    """How a program takes a secret by an option with one letter.

    flags: the letters
    glued: the value may follow the letter at once
    apart: the value may follow after a blank
    after: the character in the value after which the secret begins; empty: all of it is secret
    once: what follows the value is another command
    """

    flags: str
    glued: bool = True
    apart: bool = True
    after: str = ""
    once: bool = False


_PROGRAMS: dict[str, _Program] = {
    "curl": _Program("uU", after=":"),
    **dict.fromkeys(("http", "https", "xh"), _Program("a", after=":")),
    **dict.fromkeys(("mysql", "mysqldump", "mysqladmin", "mysqlimport", "mysqlsh"), _Program("p", apart=False)),
    **dict.fromkeys(("mariadb", "mariadb-dump", "mariadb-admin", "7z", "7za", "7zz"), _Program("p", apart=False)),
    "sshpass": _Program("p", once=True),
    **dict.fromkeys(("mongo", "mongosh", "mongodump", "mongorestore", "snowsql", "twine"), _Program("p")),
    "login": _Program("p", glued=False, once=True),  # of docker, podman, helm, az
    "redis-cli": _Program("a", glued=False),
    **dict.fromkeys(("sqlcmd", "bcp", "zip", "unzip"), _Program("P")),
    **dict.fromkeys(("ldapsearch", "ldapmodify", "ldapadd", "ldapdelete", "ldapwhoami"), _Program("w")),
    **dict.fromkeys(("smbclient", "rpcclient"), _Program("U", after="%")),
}
_PROGRAM = re.compile(
    r"(?<!\\)(?<!\\\r)(\n)|(?<![\w.-])(" + "|".join(map(re.escape, sorted(_PROGRAMS, reverse=True))) + r")(?=[ \t])"
)
"""The end of a command's line, or the name of a program. A backslash before its end joins a line to the next."""

_FLAG = re.compile(
    r" -(?:-(?P<long>(?:proxy-)?user)(?=[= \t])|(?P<before>[A-Za-z#]{0,6}?)(?P<flag>[uUpaPw]))"
    r"(?P<gap>=|[ \t]{0,8}+)" + _VALUE
)

_LISTED_PROGRAM = re.compile(
    r"[\"'](?:[^\"'\s\\]{0,200}/)?("
    + "|".join(map(re.escape, sorted(_PROGRAMS, reverse=True)))
    + r")\\{0,7}[\"'](?=[ \t]{0,8},)"
)
"""`"curl",`: a program in a list of arguments."""

_LISTED_ITEM = re.compile(
    r"[ \t]{0,8}[,\[](?:[ \t]{0,8}|\r?\n[ \t]{0,80})"
    r"(?:\\{1,7}\"([^\"\\\r\n]*+)(?:\\{1,7}\"|\\{0,7}\Z)|\"((?:[^\"\\\r\n]|\\.)*+)(?:\"|\\?\Z)"
    r"|\\{1,7}'([^'\\\r\n]*+)(?:\\{1,7}'|\\{0,7}\Z)|'((?:[^'\\\r\n]|\\.)*+)(?:'|\\?\Z)|([\w.+-]{1,40}+))"
)
"""The next item of a list. One without its end reaches to the end of the text: the rest may still come."""

_ARGUMENTS = ("args", "argv", "arguments", "params", "parameters", "options", "flags")
_COMMANDS = frozenset(
    (
        *("bin", "binary", "cmd", "command", "entrypoint", "exe", "executable", "file", "name", "path"),
        *("process", "program", "run", "tool"),
    )
)
"""The names of fields in which the program of a command stands, if its arguments stand in another field."""

_LIST_BESIDE = re.compile(
    r"[ \t]{0,8},[^\[\]{}]{0,200}?[\"'](?:" + "|".join(_ARGUMENTS) + r")\\{0,7}[\"'][ \t]{0,8}:[ \t]{0,8}(?=\[)"
)
"""`, "args": ` after `"command": "curl"`: what follows is the list of its arguments."""

_ARGUMENT = re.compile(r"-(?:-(?P<long>(?:proxy-)?user)(?:=|\Z)|(?P<before>[A-Za-z#]{0,6}?)(?P<flag>[uUpaPw]))")


def secrets_in_commands(text: str) -> Iterator[Span]:
    """Yield where options with one letter hold secrets: `curl -u ada:hunter2`."""
    program, named, read = None, 0, 0
    for found in _FLAG.finditer(text):
        at = found.start()
        for one in _PROGRAM.finditer(text, max(read, at - _FARTHEST), at + 1):
            program, named = _PROGRAMS.get(one[2]), one.end()
        read = at
        is_glued = not found["gap"]
        if program is not None and at - named <= _FARTHEST and _takes(program, found, is_glued=is_glued):
            start, end = found.span(found.lastindex or 0)
            begins = text.find(program.after, start, end) + 1 if program.after else start
            if begins and begins < end:
                yield begins, end
                program = None if program.once else program


def _takes(program: _Program, found: re.Match[str], *, is_glued: bool) -> bool:
    """Tell whether a program takes a secret by this option; `is_glued`: the value follows at once."""
    is_curl = program.flags == "uU"
    if found["long"]:
        return is_curl
    if found["flag"] not in program.flags or (found["before"] and not is_curl):
        return False
    return program.glued if is_glued else program.apart


def secrets_in_listed_commands(text: str) -> Iterator[Span]:
    """Yield where options with one letter hold secrets in a list in the text: `["curl", "-u", "ada:hunter2"]`."""
    at = 0
    while named := _LISTED_PROGRAM.search(text, at):
        program, at, is_value = _PROGRAMS[named[1]], named.end(), False
        if (beside := _LIST_BESIDE.match(text, at)) is not None:
            at = beside.end()
        while (found := _LISTED_ITEM.match(text, at)) and found.end() - named.end() <= _FARTHEST:
            start, end = found.span(found.lastindex or 0)
            if not is_value and _program_in(text[start:end]) is not None:
                break  # from here on it is another program's list
            at = found.end()
            begins = start if is_value else start + _value_at(program, text[start:end])
            is_value = not is_value and begins == end
            if start <= begins < end and (secret := _secret_from(program, text, begins, end)) < end:
                yield secret, end
                if program.once:
                    break


def _program_in(item: str) -> _Program | None:
    return _PROGRAMS.get(item.rpartition("/")[2])


def _value_at(program: _Program, item: str) -> int:
    """Return where in an item of a command the value begins in which the program takes a secret.

    The length of the item: the next item is the value. -1: there is none.
    """
    found = _ARGUMENT.match(item)
    if found is None or not _takes(program, found, is_glued=found.end() < len(item)):
        return -1
    return found.end()


def _secret_from(program: _Program, text: str, start: int, end: int) -> int:
    """Return where in such a value the secret begins; its end if there is none: `curl -u ada`."""
    if not program.after:
        return start
    return text.find(program.after, start, end) + 1 or end


def secrets_in_options(text: str, lines: Iterable[Span]) -> Iterator[Span]:
    """Yield the values of options in these lines that are named like secrets: `--password hunter2`, `--token=…`."""
    for first, last in lines:
        for found in _OPTION.finditer(text, first, last):
            start, end = found.span(found.lastindex or 0)
            is_assigned = found[2] == "="
            if not is_secret_option(found[1], has_value=is_assigned):
                continue
            if is_assigned or end - start > _LONGEST_WORD or text[start:end].lower() not in _NO_VALUE:
                yield start, end


def secrets_in_lists(text: str, lines: Iterable[Span], tells: Callable[[str], bool]) -> Iterator[Span]:
    """Yield the values that follow a header's name, or an option, in a list that stands in these lines.

    tells: whether a value is secret that follows this name in a list of pairs
    """
    for at, last in lines:
        while found := _LISTED.search(text, at, last):
            start, end = found.span(found.lastindex or 0)
            at = start  # the value may be the name of the next one
            is_secret = _tells_next(found[1], text[start : min(end, start + _LONGEST_NAME)])
            if is_secret or (tells(found[1]) and _IN_PAIRS.search(text, max(found.start() - 40, 0), found.start())):
                yield start, end
                at = end


@cached_by_name
def is_secret_option(name: str, *, has_value: bool = False) -> bool:
    """Tell whether an option of this name, without its dashes, is followed by a secret."""
    words = [word.lower() for word in re.split(r"[\W_]+", name) if word]
    if not words or (words[0] in _SWITCHES and not has_value):
        return False
    if len(words) == 1 and words[0] in _NOT_NAMES:
        return False
    return words[-1] in _NAMES or is_secret_name(re.split(r"[\W_]+", name)[-1])


@cached_by_name
def _is_header(name: str) -> bool:
    return _HEADER_NAME.fullmatch(name) is not None


def _tells_next(name: str, value: str) -> bool:
    """Tell whether the item after this one in a list is secret."""
    if name[0] == "-":
        return is_secret_option(name.lstrip("-")) and value[:1] != "-"
    return _is_header(name) and _OTHER_HEADER.fullmatch(value[:_LONGEST_NAME]) is None


def command_of(fields: Mapping[str, Any]) -> str:
    """Return the program that a field names, if it takes secrets by options with one letter; else an empty text.

    `{"command": "curl", "args": ["-u", "ada:…"]}`
    """
    for name, value in fields.items():
        if isinstance(value, str) and 0 < len(value) <= _LONGEST_NAME and name.lower() in _COMMANDS:
            last = value.split()[-1:] or [""]
            if _program_in(last[0]) is not None:
                return last[0].rpartition("/")[2]
    return ""


def are_arguments(name: str) -> bool:
    """Tell whether a field of this name holds the arguments of a command."""
    return name.lower() in _ARGUMENTS


def secret_items(items: Sequence[Any], command: str = "") -> dict[int, int]:
    """Return which items of a list are secret, each with the place in it at which the secret begins.

    `["Authorization", "Bearer …"]`, `["mysql", "--password", "…"]`, `["curl", "-u", "ada:…"]`

    command: the program whose arguments the items are, if it is not among them
    """
    found: dict[int, int] = {}
    program = _PROGRAMS.get(command)
    is_value = False  # of an option with one letter, in the item before
    for index, item in enumerate(items):
        if not isinstance(item, str):
            is_value = False
            continue
        name = items[index - 1] if index and index - 1 not in found else None
        named = None if is_value or len(item) > _LONGEST_NAME else _program_in(item)
        if isinstance(name, str) and 1 < len(name) <= _LONGEST_NAME and _tells_next(name, item):
            found[index], is_value = 0, False
        elif named is not None:
            program, is_value = named, False
        elif program is not None:
            begins = 0 if is_value else _value_at(program, item)
            is_value = not is_value and begins == len(item)
            if 0 <= begins < len(item) and (secret := _secret_from(program, item, begins, len(item))) < len(item):
                found[index] = secret
                program = None if program.once else program
    return found


def has_pairs(items: Iterable[Any]) -> bool:
    """Tell whether every item is a pair of a name and a value: `[["API_KEY", "…"], ["HOME", "/home"]]`."""
    return all(isinstance(one, list | tuple) and len(one) == 2 and isinstance(one[0], str) for one in items)  # pyright: ignore[reportUnknownArgumentType]
