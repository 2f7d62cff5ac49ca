"""What a path in a workspace means, the same on every backend: names from the root down, and nothing above it."""

from __future__ import annotations

import unicodedata

from upcall.errors import WorkspaceError

_LONGEST_NAME, _LONGEST_PATH = 255, 4000
"""In bytes; a little less than the systems we know allow, so that every backend takes the same paths."""

MOST_ENTRIES = 100_000
"""Files and folders in one folder; one that holds more is not listed."""

TOO_MANY = f"holds more than {MOST_ENTRIES} files and folders, too many to list"


def parts_of(path: str) -> tuple[str, ...]:
    """The names on the way from the root to a path; none for the root itself.

    A leading `/` is the root. `..` goes back by one name and never above the root. Names that look the same
    because they are the same in Unicode's composed form are the same name.
    """
    shown = path if len(path) <= 200 else f"{path[:200]}…"
    if len(path) > _LONGEST_PATH:
        raise _too_long(shown)
    if "\0" in path:
        raise WorkspaceError(shown.replace("\0", "\\0"), "a path has no NUL character")
    try:
        size = len(path.encode())
    except UnicodeEncodeError:
        shown = shown.encode("utf-8", "backslashreplace").decode()
        raise WorkspaceError(shown, "a path is text, and this holds half a character") from None
    parts: list[str] = []
    for part in unicodedata.normalize("NFC", path).split("/"):
        if part == "..":
            if not parts:
                raise WorkspaceError(shown, "leads out of the workspace; / is its root")
            parts.pop()
        elif part not in ("", "."):
            parts.append(part)
    if size > _LONGEST_PATH or any(len(part.encode()) > _LONGEST_NAME for part in parts):
        raise _too_long(shown)
    return tuple(parts)


def _too_long(shown: str) -> WorkspaceError:
    most = f"a path has at most {_LONGEST_PATH} bytes, a name in it {_LONGEST_NAME}"
    return WorkspaceError(shown.replace("\0", "\\0"), f"is too long: {most}")


def path_of(parts: tuple[str, ...] | list[str]) -> str:
    """The path that these names make, from the root."""
    return "/" + "/".join(parts)


def look_alike(name: str) -> str:
    """What names have in common that some disks, or people's eyes, don't tell apart."""
    return unicodedata.normalize("NFKC", unicodedata.normalize("NFKC", name).casefold())


def changed(path: str) -> WorkspaceError:
    """The error for a file that is no longer what was read."""
    return WorkspaceError(path, "has changed since it was read; read it again")
