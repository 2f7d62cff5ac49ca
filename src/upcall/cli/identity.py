"""Find out who acts with a command: the owner of a token, or the user of this system.

Whoever may write to the log can do everything with it, so a command without a token is an operator's. With a token,
a script or a shared account acts as somebody who may do less, and under that name.
"""

from __future__ import annotations

import argparse
from typing import NamedTuple

from upcall.cli.places import os_user, token_variable
from upcall.contracts import Store
from upcall.errors import AccessDenied, SetupError
from upcall.safety.small_files import read_small
from upcall.tokens import RIGHT, Role, allows, digest_of, is_token, refused, too_weak

_LARGEST_FILE = 1000


class Actor(NamedTuple):
    """A principal and how it is known. Events store these as `by` and `right`."""

    by: str
    right: str


def token_option(parser: argparse.ArgumentParser, needed_for: str = "") -> None:
    """Add the option --token-file. `needed_for`: the option without which the command needs no token."""
    about = "identify yourself with the token in this file (default: the token in UPCALL_TOKEN)"
    about = f"with {needed_for}: {about}" if needed_for else about
    parser.add_argument("--token-file", metavar="FILE", help=about)


async def principal_for(
    args: argparse.Namespace, store: Store, needed: Role, action: str, target: str = ""
) -> Actor:
    """Return who runs this command. Without a token, that is the user of this system, who may do everything.

    AccessDenied if the token is not valid, was revoked, or has a role that does not allow it; the store keeps that.

    needed: the weakest role that may do it
    action: what the command does, such as `answer`
    target: what it does that to, such as the id of a callback
    """
    token = _given_token(args)
    if token is None:
        return Actor(os_user(), "os-user")
    found = await store.token(digest_of(token)) if is_token(token) else None
    if found is None:
        by, problem = "", "the token is not valid; `upcall tokens list` shows the tokens of this log"
    elif found.revoked is not None:
        by, problem = found.name, f"the token {found.name!r} was revoked"
    elif not allows(found.role, needed):
        by, problem = found.name, too_weak(found.name, found.role, needed)
    else:
        return Actor(found.name, RIGHT)
    await store.add_refusal(refused(by, action, target, problem, f"os-user:{os_user()}"))
    raise AccessDenied(by, problem)


def _given_token(args: argparse.Namespace) -> str | None:
    """Return the token that this command was given; None without one."""
    path: str | None = getattr(args, "token_file", None)
    if path is not None:
        try:
            token = read_small(path, _LARGEST_FILE).decode("ascii", "replace").strip()
        except OSError as error:
            raise SetupError(f"--token-file {path}: {error.strerror or error}") from None
        if not token:
            raise SetupError(f"--token-file {path}: it is empty; write a token from `upcall tokens new` into it")
        return token
    token = token_variable()
    if token is not None and not token.strip():
        raise SetupError("UPCALL_TOKEN is empty; set it to a token from `upcall tokens new`, or unset it")
    return token.strip() if token is not None else None
