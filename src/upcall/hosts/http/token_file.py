"""Secrets that servers keep beside the log, so that a restart keeps open pages and clients alive."""

from __future__ import annotations

import contextlib
import os
import re
import secrets
from pathlib import Path

from upcall.errors import StoreUnavailable
from upcall.store.file_checks import check_own
from upcall.store.home import NAME, open_own_file

_TOKEN = re.compile(r"[A-Za-z0-9_-]{43}")


def token_path(store: str) -> Path:
    """The path of the file with a log's token: beside the log, or in `.upcall` for a log on a server."""
    return Path(NAME, "server-token") if "://" in store else Path(f"{store}-token")


def mcp_key_path(store: str) -> Path:
    """The path of the file with the key that seals what `upcall mcp` hands to clients."""
    return Path(NAME, "mcp-key") if "://" in store else Path(f"{store}-mcp-key")


def kept_token(path: Path, *, new: bool = False, no_log_at: float | None = None) -> str:
    """The token that the file holds; a new one where there is none, or where `new` says so.

    The file has mode 600. StoreUnavailable where it is a link or belongs to somebody else.

    no_log_at: the time at which there was no log yet; a file from before that time came from elsewhere, such as an
        archive whose author knows the token, so it is replaced
    """
    check_own(str(path), str(path), folder=False)
    found = _read(path, no_log_at)
    if found and not new:
        return found
    return _written(path, secrets.token_urlsafe(32), replace=new or found is not None)


class KeptToken:
    """The token in a file, as it is now: another process may make a new one, which ends the old one here too."""

    def __init__(self, path: Path, *, new: bool = False, no_log_at: float | None = None) -> None:
        """Read or make the token, as `kept_token` does."""
        self._path, self._token = path, kept_token(path, new=new, no_log_at=no_log_at)
        self._stamp = _stamp(path)

    def __call__(self) -> str:
        """Return the token. A file that is gone, or can't be accepted, leaves the token that was known."""
        stamp = _stamp(self._path)
        if stamp != self._stamp:
            self._stamp = stamp
            with contextlib.suppress(OSError, StoreUnavailable):
                self._token = _read(self._path) or self._token
        return self._token


def _stamp(path: Path) -> tuple[int, int] | None:
    """Return a mark that differs once the file is replaced; None without a file."""
    try:
        about = path.lstat()
    except OSError:
        return None
    return about.st_ino, about.st_ctime_ns


def _written(path: Path, token: str, *, replace: bool) -> str:
    """Write a token; returns that of another process that has written one meanwhile, unless it is replaced."""
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    fresh = path.with_name(f"{path.name}-{secrets.token_hex(8)}")
    file = os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    try:
        with os.fdopen(file, "w", encoding="ascii") as out:
            out.write(f"{token}\n")
        if replace:
            fresh.replace(path)
        else:
            path.hardlink_to(fresh)
    except FileExistsError:
        return _read(path) or _written(path, token, replace=True)
    except OSError as error:
        raise StoreUnavailable(str(path), f"the token can't be written: {error.strerror}") from error
    finally:
        fresh.unlink(missing_ok=True)
    return token


def _read(path: Path, since: float | None = None) -> str | None:
    """The token in the file; None without a file, "" where it is not valid, too old, or others could read it."""
    try:
        file = open_own_file(path, os.O_RDONLY)
    except FileNotFoundError:
        return None
    with os.fdopen(file, "rb") as kept:
        about = os.fstat(kept.fileno())
        if about.st_mode & 0o077 or (since is not None and about.st_ctime < since):
            return ""
        text = kept.read(200).decode("ascii", "replace").strip()
    return text if _TOKEN.fullmatch(text) else ""
