"""The address of a database, and plain texts for PostgreSQL's errors. No text has the password."""

from __future__ import annotations

import re
from typing import Any, NamedTuple
from urllib.parse import unquote

import psycopg
from psycopg import errors
from psycopg.conninfo import conninfo_to_dict

from upcall.errors import SetupError, StoreError, StoreUnavailable, StoreUnreachable
from upcall.safety.secrets import without_password

_DEFAULTS: dict[str, Any] = {
    "connect_timeout": 5,
    "application_name": "upcall",
    "keepalives_idle": 5,
    "keepalives_interval": 2,
    "keepalives_count": 3,
    "tcp_user_timeout": 10_000,
}
"""How soon a connection that answers no more counts as lost; the URL may say otherwise."""


class Address(NamedTuple):
    """A database's address. `shown` is the URL without the password; `options` are psycopg's, with it."""

    shown: str
    options: dict[str, Any]

    def __repr__(self) -> str:
        return f"Address({self.shown!r})"


def parse(url: str) -> Address:
    """Return the address in a URL; SetupError if it can't be read."""
    try:
        given = conninfo_to_dict(url)
    except psycopg.ProgrammingError as error:
        raise SetupError(f"{without_password(url.partition('?')[0])}: {_problem(error)}") from None
    return Address(without_password(url), {**_DEFAULTS, **given})


def _problem(error: Exception) -> str:
    """Return why a URL can't be read. The values of its parameters are not shown: one may be a password."""
    unknown = re.match(r'invalid URI query parameter: "(\w{1,64})"', str(error))
    if unknown is not None:
        return f"PostgreSQL has no parameter {unknown[1]!r}; check its spelling in the URL"
    problem = "this is not a valid PostgreSQL URL; write postgresql://user:password@host:5432/database, with"
    return f"{problem} %40 for an @ in the password"


_REFUSED = ("password authentication failed", "no password supplied", "no pg_hba.conf entry", "role ")
_NO_DATABASE = re.compile(r'database "[^"]*" does not exist')


def is_refusal(said: str) -> bool:
    """Return whether the server was reached and refuses this address: trying again does not help."""
    return any(text in said for text in _REFUSED) or _NO_DATABASE.search(said) is not None


def explain(address: Address, error: Exception) -> StoreError:
    """Return PostgreSQL's error as one of ours, with advice."""
    if isinstance(error, StoreError):
        return error
    said = _first_line(address, error)
    match error:
        case psycopg.OperationalError() if is_refusal(said) and not _NO_DATABASE.search(said):
            problem = f"it refuses this user ({said}); check the name and the password in the URL"
        case _ if _NO_DATABASE.search(said):
            problem = f"{said}; create it with createdb, or correct the name in the URL"
        case errors.InsufficientPrivilege():
            problem = f"this user may not do that ({said}); grant it what the page on PostgreSQL in docs/ lists"
        case errors.DiskFull() | errors.OutOfMemory():
            problem = f"the server has no room left ({said}); nothing acknowledged is lost. Make room and resume"
        case errors.TooManyConnections():
            return StoreUnreachable(
                address.shown, f"it accepts no more connections ({said}); each process needs up to 4"
            )
        case errors.ReadOnlySqlTransaction():
            return StoreUnreachable(address.shown, "it is read-only; connect to the primary server")
        case psycopg.OperationalError() | psycopg.InterfaceError():
            problem = f"it can't be reached ({said}); check the address, and that the server runs"
            return StoreUnreachable(address.shown, problem)
        case psycopg.Error():
            problem = f"PostgreSQL says: {said}"
        case _:
            return StoreError(address.shown, f"this could not be stored: {type(error).__name__}: {said}")
    return StoreUnavailable(address.shown, problem)


def _first_line(address: Address, error: Exception) -> str:
    """Return what an error says, in one line and without the password or a part of it."""
    text = " ".join(str(error).split())[:500]
    password = str(address.options.get("password") or "")
    pieces = {password, unquote(password), *re.split(r"[@:/?#]", password)}
    for piece in sorted(pieces, key=len, reverse=True):
        if len(piece) > 2:
            text = text.replace(piece, "***")
    host = str(address.options.get("host") or "")
    if "@" in host:  # a password with an @ in it: what follows it was taken for the host
        text = text.replace(host, host.rpartition("@")[2])
    return text
