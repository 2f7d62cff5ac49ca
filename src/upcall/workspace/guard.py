"""Refuse paths that lead to private files, below a mount, or into git directories."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import NamedTuple

from upcall.errors import WorkspaceError
from upcall.safety.private_files import PrivateSnapshot, plain_name
from upcall.workspace.paths import lookalike_key, parts_of, path_of

_GIT = frozenset((".git", "git~1"))


def names_git(path: str) -> bool:
    """Return whether a path leads into a git directory, or to a file `HEAD`, which makes a folder one.

    Git runs programs that its configuration names, so writing there turns an approved `git` into a shell.
    """
    try:
        parts = parts_of(path)
    except WorkspaceError:  # the tool that uses the path reports it
        return False
    return any(map(_is_git, parts)) or any(map(_is_head, parts[-1:]))


def _is_git(name: str) -> bool:
    plain = plain_name(name)
    return plain in _GIT or plain.endswith(".git")


def _is_head(name: str) -> bool:
    return plain_name(name) == "head"


class Guard(NamedTuple):
    """Checks for each step of a walk from a folder's root to a path.

    `hidden`: paths at which another workspace is mounted; `outside_git`: git directories are not entered.
    """

    path: str
    seen: PrivateSnapshot
    hidden: frozenset[tuple[str, ...]] = frozenset()
    outside_git: bool = False

    def check_name(self, folder: int, parts: Sequence[str]) -> None:
        """Raise WorkspaceError if agents may not use the last of these names, which is in the open folder."""
        if self.seen.hides_name(folder, parts[-1]):
            raise self._private()
        if self.hidden and tuple(map(lookalike_key, parts)) in self.hidden:
            mount = path_of(tuple(parts))
            raise WorkspaceError(
                self.path,
                f"leads through a link to {mount}, where another workspace is mounted; use a path below {mount}",
            )
        if self.outside_git and _is_git(parts[-1]):
            raise self._in_git(parts)

    def check_found(self, found: os.stat_result) -> None:
        """Raise WorkspaceError if a file or folder is private, whatever its name."""
        if self.seen.hides(found):
            raise self._private()

    def check_folder(self, folder: int, parts: Sequence[str]) -> None:
        """Raise WorkspaceError if an open folder is private, or is a git directory that must not be entered."""
        self.check_found(os.fstat(folder))
        if self.outside_git and all(_exists(folder, name) for name in ("HEAD", "objects", "refs")):
            raise self._in_git(parts)

    def check_new(self, parts: Sequence[str]) -> None:
        """Raise WorkspaceError if a new file would replace a folder with a mount in it, or belong to git."""
        if self.outside_git and any(map(_is_head, parts[-1:])):
            raise self._in_git(parts)
        plain = tuple(map(lookalike_key, parts))
        if any(mount[: len(plain)] == plain for mount in self.hidden):
            raise WorkspaceError(self.path, "is a folder, not a file")

    def is_private(self, folder: int, name: str, found: os.stat_result) -> bool:
        """Return whether a listing leaves out this entry."""
        return self.seen.hides(found) or self.seen.hides_name(folder, name)

    def _private(self) -> WorkspaceError:
        return WorkspaceError(self.path, "belongs to the store of the sessions, which agents can't read or write")

    def _in_git(self, parts: Sequence[str]) -> WorkspaceError:
        real = path_of(tuple(parts))
        advice = "use that path, so that it is approved" if names_git(real) else "agents don't write there"
        return WorkspaceError(self.path, f"leads into git's own files in {real}; {advice}")


def _exists(folder: int, name: str) -> bool:
    try:
        os.stat(name, dir_fd=folder, follow_symlinks=False)
    except OSError:
        return False
    return True
