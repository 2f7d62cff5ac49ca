"""What a walk through a folder must not reach: private files, what a mount hides, and git's own files."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import NamedTuple

from upcall.errors import WorkspaceError
from upcall.safety.private_files import Seen, plain_name
from upcall.workspace.paths import look_alike, parts_of, path_of

_GIT = frozenset((".git", "git~1"))


def names_git(path: str) -> bool:
    """True for a path into a git directory, or to a file `HEAD`, without which git takes no folder for one.

    Git runs programs that its configuration names, so who writes there turns an approved `git` into a shell.
    """
    try:
        parts = parts_of(path)
    except WorkspaceError:  # what uses the path refuses it
        return False
    return any(map(_is_git, parts)) or any(map(_is_head, parts[-1:]))


def _is_git(name: str) -> bool:
    plain = plain_name(name)
    return plain in _GIT or plain.endswith(".git")


def _is_head(name: str) -> bool:
    return plain_name(name) == "head"


class Guard(NamedTuple):
    """What a walk through a folder must not enter or end at.

    `hidden`: paths at which another workspace is mounted; `outside_git`: git directories are not entered.
    """

    path: str
    seen: Seen
    hidden: frozenset[tuple[str, ...]] = frozenset()
    outside_git: bool = False

    def check_name(self, folder: int, parts: Sequence[str]) -> None:
        """Raise WorkspaceError where the last of these names, in the open folder, is not for agents."""
        if self.seen.hides_name(folder, parts[-1]):
            raise self._private()
        if self.hidden and tuple(map(look_alike, parts)) in self.hidden:
            mount = path_of(tuple(parts))
            raise WorkspaceError(
                self.path, f"leads by a link below {mount}, where another workspace is mounted; use that path"
            )
        if self.outside_git and _is_git(parts[-1]):
            raise self._in_git(parts)

    def check_found(self, found: os.stat_result) -> None:
        """Raise WorkspaceError where a file or folder is private, whatever its name."""
        if self.seen.hides(found):
            raise self._private()

    def check_folder(self, folder: int, parts: Sequence[str]) -> None:
        """Raise WorkspaceError where an open folder is private, or is a git directory and must not be."""
        self.check_found(os.fstat(folder))
        if self.outside_git and all(_is_there(folder, name) for name in ("HEAD", "objects", "refs")):
            raise self._in_git(parts)

    def check_new(self, parts: Sequence[str]) -> None:
        """Raise WorkspaceError where a written file would replace a folder with a mount in it, or belong to git."""
        if self.outside_git and any(map(_is_head, parts[-1:])):
            raise self._in_git(parts)
        plain = tuple(map(look_alike, parts))
        if any(mount[: len(plain)] == plain for mount in self.hidden):
            raise WorkspaceError(self.path, "is a folder, not a file")

    def is_private(self, folder: int, name: str, found: os.stat_result) -> bool:
        """True for what a listing leaves out."""
        return self.seen.hides(found) or self.seen.hides_name(folder, name)

    def _private(self) -> WorkspaceError:
        return WorkspaceError(self.path, "belongs to the store of the sessions, which agents can't read or write")

    def _in_git(self, parts: Sequence[str]) -> WorkspaceError:
        real = path_of(tuple(parts))
        how = "use that path, so that it is approved" if names_git(real) else "agents don't write there"
        return WorkspaceError(self.path, f"leads into git's own files in {real}; {how}")


def _is_there(folder: int, name: str) -> bool:
    try:
        os.stat(name, dir_fd=folder, follow_symlinks=False)
    except OSError:
        return False
    return True
