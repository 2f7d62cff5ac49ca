"""Tokens of people, what their roles allow, and the requests that were refused.

A token is 256 random bits. The store keeps its SHA-256 digest only: nobody can guess such a token, or find it from
its digest, so a slow hash as for passwords would protect nothing more. A token is found by its digest. How long
that takes says something about digests at most, never about a token.
"""

from __future__ import annotations

import re
from hashlib import sha256
from typing import Any, Literal

from upcall.errors import SetupError
from upcall.messages import Value

Role = Literal["viewer", "answerer", "operator"]

ROLES: tuple[Role, ...] = ("viewer", "answerer", "operator")
"""All roles, weakest first: each allows what those before it allow."""

ROLE_TEXTS = {
    "viewer": "sees sessions and questions, without their secrets",
    "answerer": "also sees secrets in questions, and answers questions",
    "operator": "also starts, prompts, steers, cancels and resumes sessions, and manages tokens",
}

RIGHT = "token"
"""The right of a principal that is known by a token."""

KEPT_REFUSALS = 100_000
"""The refused requests that a store keeps; older ones are deleted."""

LONGEST_PART = 200
"""Characters of each part of a refused request that are kept."""

START = "upcall_"
"""The beginning of each token, so that people and programs that look for secrets recognise it."""

LONGEST_NAME = 64
NAME_RULE = (
    f"use 1 to {LONGEST_NAME} characters from a-z, 0-9 and . _ @ + -, beginning with a letter or a digit. "
    "Other characters are not allowed, so that no two names look alike"
)
_NAME = re.compile(rf"[a-z0-9][a-z0-9._@+-]{{0,{LONGEST_NAME - 1}}}", re.ASCII)
_RESERVED = ("user",)
"""Names that mean something else in the log."""

_TOKEN = re.compile(rf"{START}[A-Za-z0-9_-]{{43}}", re.ASCII)


class Token(Value, frozen=True):
    """What a store keeps of a token.

    name: the principal: who does what is done with the token
    role: what the token allows
    digest: what `digest_of` returns for the token; the token itself is not kept
    created: when it was made, by the store's clock
    revoked: when it was revoked; None while it is valid
    """

    name: str
    role: Role
    digest: str
    created: float = 0.0
    revoked: float | None = None


class RefusedRequest(Value, frozen=True):
    """A request that was refused.

    by: the principal; empty if nobody knows who asked
    action: what was asked for, such as `answer` or `POST /api/sessions`
    target: what it was for, such as the id of a callback or a session
    reason: why it was refused
    address: where it came from: an IP address, or `os-user:NAME` for a command
    number: its number in the store, which grows with each
    time: when it was refused, by the store's clock
    """

    by: str
    action: str
    target: str
    reason: str
    address: str = ""
    number: int = 0
    time: float = 0.0


def refused(by: str, action: str, target: str, reason: str, address: str) -> RefusedRequest:
    """Return a refused request within bounds: clients word some of it. What can't be printed is shown as `?`."""
    return RefusedRequest(*(_bounded(text) for text in (by, action, target, reason, address)))


def _bounded(text: str) -> Any:
    return "".join(char if char.isprintable() else "?" for char in text[:LONGEST_PART])


def allows(role: str, needed: Role) -> bool:
    """Return whether a role allows what needs another one. An unknown role, of a newer version, allows nothing."""
    return role in ROLES and ROLES.index(role) >= ROLES.index(needed)


def check_name(name: str) -> str:
    """Return a name that a token may have; SetupError says what is allowed."""
    if not _NAME.fullmatch(name):
        raise SetupError(f"{name[:100]!r} can't be the name of a token; {NAME_RULE}")
    if name in _RESERVED:
        raise SetupError(f"{name!r} can't be the name of a token: in the log it stands for any person")
    return name


def new_token() -> str:
    """Return a new random token."""
    import secrets

    return f"{START}{secrets.token_urlsafe(32)}"


def is_token(text: str) -> bool:
    """Return whether a text has the form of a token that `new_token` makes."""
    return _TOKEN.fullmatch(text) is not None


def digest_of(token: str) -> str:
    """Return the digest by which a token is found."""
    return sha256(token.encode("utf-8", "replace")).hexdigest()


def too_weak(by: str, role: str, needed: Role) -> str:
    """Return why a role does not allow something, for the person who asked."""
    return f"this needs the role {needed}, and the token {by!r} has the role {role}"
