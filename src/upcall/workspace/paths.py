"""Parse workspace paths the same way on every backend. A path never leads above the root."""

from __future__ import annotations

import unicodedata

from upcall.errors import WorkspaceError

_MAX_NAME, _MAX_PATH = 255, 4000
"""In bytes; a little less than common systems allow, so that every backend accepts the same paths."""

MAX_ENTRIES = 100_000
"""Entries in one folder; a folder with more is not listed."""

TOO_MANY = f"holds more than {MAX_ENTRIES} files and folders, too many to list"


def parts_of(path: str) -> tuple[str, ...]:
    """Return the names from the root to a path; none for the root itself.

    A leading `/` is the root. `..` removes one name and never leads above the root. Names are normalised to NFC,
    Unicode's composed form.
    """
    shown = path if len(path) <= 200 else f"{path[:200]}…"
    if len(path) > _MAX_PATH:
        raise _too_long(shown)
    if "\0" in path:
        raise WorkspaceError(shown.replace("\0", "\\0"), "a path must not contain a NUL character")
    try:
        size = len(path.encode())
    except UnicodeEncodeError:
        shown = shown.encode("utf-8", "backslashreplace").decode()
        raise WorkspaceError(
            shown, "a path must be valid text, but this one contains half a character (a lone surrogate)"
        ) from None
    parts: list[str] = []
    for part in unicodedata.normalize("NFC", path).split("/"):
        if part == "..":
            if not parts:
                raise WorkspaceError(shown, "leads out of the workspace; / is its root")
            parts.pop()
        elif part not in ("", "."):
            parts.append(part)
    if size > _MAX_PATH or any(len(part.encode()) > _MAX_NAME for part in parts):
        raise _too_long(shown)
    return tuple(parts)


def _too_long(shown: str) -> WorkspaceError:
    most = f"a path may have at most {_MAX_PATH} bytes, and each name in it at most {_MAX_NAME}"
    return WorkspaceError(shown.replace("\0", "\\0"), f"is too long: {most}")


def path_of(parts: tuple[str, ...] | list[str]) -> str:
    """Join names to a path from the root."""
    return "/" + "/".join(parts)


def lookalike_key(name: str) -> str:
    """Return a form that is equal for names that some file systems, or people, can't tell apart."""
    return unicodedata.normalize("NFKC", unicodedata.normalize("NFKC", name).casefold())


def file_changed(path: str) -> WorkspaceError:
    """Return the error for a file that changed after it was read."""
    return WorkspaceError(path, "has changed since it was read; read it again")
