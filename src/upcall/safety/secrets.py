"""Recognise secrets by name, and keep them out of commands, logs and screens.

One rule for all of them. A name is secret by one of its words: it is split at `_` and where its case changes.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Mapping
from functools import cache

_WORDS = frozenset(
    (
        *("KEY", "KEYS", "APIKEY", "TOKEN", "SECRET", "PASS", "PASSWORD", "PASSWD", "PASSPHRASE", "PWD", "PAT"),
        *("AUTH", "AUTHORIZATION", "CRED", "CREDENTIAL", "CREDENTIALS", "COOKIE", "WEBHOOK"),
    )
)
_WORD = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z0-9]+|[A-Z0-9]+")
_LONGEST_NAME = 1000
_SET_DUMPABLE = 4
_AUTHORITY = re.compile(r"(?<=:/)(/?)([^\s/:@'\"]*):([^\s/'\"]*)@")
"""A user and a password before a host; the last `@` before the path ends them. In a file's path `//` became `/`."""

_RAW_PASSWORD = re.compile(r"([A-Za-z][\w+.-]{0,40}://)([^\s/:@]*):(?!\d*(?:[/?#]|$))((?:[^@:]|:(?!//)){0,1000}+)@")
"""A password with a `/` in it, which some programs accept; digits and then a path are a port."""

_PARAMETER = re.compile(r"([?&])([\w.-]{1,100})=([^&#\s'\"]+)")


def is_secret_name(name: str) -> bool:
    """Return whether a variable, a field or a parameter of this name holds a secret."""
    if name in ("PWD", "KeyError"):  # the current folder, and Python's error, which names what is missing
        return False
    name = name[:_LONGEST_NAME]
    upper = name.upper()
    return upper.endswith(("PASSWORD", "PASSWD")) or any(word.upper() in _WORDS for word in _words(name))


def _words(name: str) -> list[str]:
    return [word for part in re.split(r"[\W_]+", name) for word in (part, *_WORD.findall(part))]


def environment_without_secrets(variables: Mapping[str, str]) -> dict[str, str]:
    """Return the variables for a command: without secrets by name, and without passwords in URLs."""
    return {name: without_login(value) for name, value in variables.items() if not is_secret_name(name)}


def holds_secret(variables: Mapping[str, str]) -> bool:
    """Return whether any of these variables would be changed or removed for a command."""
    return any(is_secret_name(name) or without_login(value) != value for name, value in variables.items())


def deny_debuggers() -> None:
    """Prevent other processes of the user from reading this one's memory and environment, on Linux.

    It also keeps the system from writing core dumps. The administrator can still do both.
    """
    if sys.platform == "linux":
        import ctypes

        ctypes.CDLL(None).prctl(_SET_DUMPABLE, 0, 0, 0, 0)


def without_login(text: str) -> str:
    """Return the text without user and password in every URL that has a password, so that the URL still works."""
    if ":/" not in text:
        return text
    cut = _without_parameters(_AUTHORITY.sub(r"\1", text))
    return _RAW_PASSWORD.sub(r"\1", cut) if _RAW_PASSWORD.match(cut) else cut


def without_password(text: str) -> str:
    """Return the text without the password in every URL; the user stays.

    For commands that are shown to be typed again.
    """
    if ":/" not in text:
        return text
    cut = _without_parameters(_AUTHORITY.sub(r"\1\2@", text))
    return _RAW_PASSWORD.sub(r"\1\2@", cut) if _RAW_PASSWORD.match(cut) else cut


def _without_parameters(text: str) -> str:
    """Return the text without URL parameters that are named like secrets."""
    if "?" not in text:
        return text
    is_secret = cache(is_secret_name)  # the same few names are there again and again
    cut = _PARAMETER.sub(lambda found: found[1] if is_secret(found[2]) else found[0], text)
    if cut == text:
        return text
    return re.sub(r"(?<![?&])[?&]++(?=[\s'\"#]|$)", "", re.sub(r"([?&])&+", r"\1", cut))
