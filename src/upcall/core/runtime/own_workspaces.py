"""The workspaces that single sessions were started with.

A workspace is an object and is not stored. The log only says that a session had one of its own: whoever continues
it in another process gives it again, and without it nothing of the session runs.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from upcall.agent import is_workspace
from upcall.contracts import Workspace
from upcall.core.log.state import SessionState
from upcall.errors import SetupError
from upcall.events import SessionStarted
from upcall.safety.bounds import brief


class OwnWorkspaces:
    """Workspaces by the id of the root session that has them in place of its agent's."""

    def __init__(self) -> None:
        self._by_root: dict[str, Workspace] = {}
        self.restore: Callable[[SessionStarted], Workspace | None] | None = None
        """Makes the workspace of a session that was started in another process; None if it can't."""

    def get(self, root: str) -> Workspace | None:
        """The workspace of a run tree's root, if it has one of its own here."""
        return self._by_root.get(root) if self._by_root else None

    def bind(self, root: str, workspace: Workspace) -> None:
        """Have a root session, with all that it starts, use this workspace from its next claim on."""
        self._by_root[root] = workspace

    def bind_again(self, header: SessionStarted, root: str, workspace: Any) -> None:
        """Bind a workspace to a stored session; SetupError if that session was started without one."""
        checked_workspace(workspace)
        if not header.workspace:
            without = f"session {root!r} was started without a workspace of its own, so it uses its agent's"
            raise SetupError(f"{without}; leave workspace out")
        self.bind(root, workspace)

    def check(self, state: SessionState) -> None:
        """Refuse to run a session that has its own workspace where that was not given."""
        root = state.header.root or state.id
        if not state.root_header.workspace or self.get(root) is not None:
            return
        made = self.restore(state.root_header) if self.restore is not None else None
        if made is not None:
            self.bind(root, made)
        else:
            raise SetupError(
                f"session {root!r} was started with a workspace of its own, which is not stored; give it again: "
                f"runtime.load({root!r}, workspace=...) or runtime.resume({root!r}, workspace=...)"
            )

    def forget(self, session_ids: Sequence[str]) -> None:
        """Drop the workspaces of sessions that are gone."""
        for session_id in session_ids:
            self._by_root.pop(session_id, None)


def checked_workspace(workspace: Any) -> None:
    """Raise SetupError if that is no workspace."""
    if not is_workspace(workspace):
        raise SetupError(f"workspace must be a Workspace, such as Folder('work'), not {brief(workspace)}")
