"""Completion in a chat: its commands, and file names after an @."""

from __future__ import annotations

import time
from collections.abc import AsyncGenerator, Callable, Iterable, Mapping
from typing import Any

from prompt_toolkit.completion import CompleteEvent, Completer, Completion
from prompt_toolkit.document import Document

from upcall.contracts import Files, Store, Workspace
from upcall.core.log.load import load_state
from upcall.errors import UpcallError, WorkspaceError
from upcall.observe.plain import plain
from upcall.safety.private_files import private_paths
from upcall.workspace.folder import Folder
from upcall.workspace.search import walk

CACHE_SECONDS = 3.0
"""Seconds to reuse the list of file names."""

MOST_FILES = 20_000
MOST_SHOWN = 50


class ChatCompleter(Completer):
    """Completes a slash command at the beginning of the input, and a path after an @."""

    def __init__(self, commands: Mapping[str, Any], files: Files) -> None:
        self._commands, self._files = commands, files
        self._paths: list[str] = []
        self._read_at = 0.0

    def get_completions(self, document: Document, complete_event: CompleteEvent) -> Iterable[Completion]:
        """Yield the slash commands with this prefix."""
        before = document.text_before_cursor
        if before.startswith("/"):
            for name, command in self._commands.items():
                if name.startswith(before[1:]):
                    yield Completion(name, -len(before) + 1, display=f"/{name}", display_meta=command.about)

    async def get_completions_async(
        self, document: Document, complete_event: CompleteEvent
    ) -> AsyncGenerator[Completion]:
        """Yield the slash commands, and the matching files after an @."""
        for command in self.get_completions(document, complete_event):
            yield command
        word = document.get_word_before_cursor(WORD=True)
        if word.startswith("@"):
            for path in await self._matching_paths(word[1:]):
                yield Completion(path, -len(word) + 1)

    async def _matching_paths(self, typed: str) -> list[str]:
        """Return the paths that contain the text; those with a name that starts with it come first."""
        if not self._read_at or time.monotonic() - self._read_at > CACHE_SECONDS:
            self._paths = await self._read_paths()
            self._read_at = time.monotonic()
        wanted = typed.casefold()
        found = [path for path in self._paths if wanted in path.casefold()]
        return sorted(found, key=lambda path: f"/{wanted}" not in f"/{path.casefold()}")[:MOST_SHOWN]

    async def _read_paths(self) -> list[str]:
        found: list[str] = []
        try:
            async for entry in walk(self._files, "/"):
                path = entry.path.removeprefix("/")
                if path == plain(path) and path.isprintable():
                    found.append(path)
                if len(found) == MOST_FILES:
                    break
        except WorkspaceError:
            return []  # nothing to complete if nothing can be read
        return found


def files_of(workspace: Workspace | None, store: Store, session_id: Callable[[], str]) -> Files:
    """Open the files that an agent works with: its workspace's, or those of the current folder.

    `session_id` is called each time, because a chat may switch to another session.
    """
    return (Folder(".") if workspace is None else workspace).open(_StoredValues(store, session_id))


class _StoredValues:
    """Read-only access to a session's stored values."""

    def __init__(self, store: Store, session_id: Callable[[], str]) -> None:
        self._store, self._session_id = store, session_id
        self.private_paths = private_paths(store)

    async def values(self) -> Mapping[str, Any]:
        state = await load_state(self._store, self._session_id())
        return state.context if state is not None else {}

    async def body(self, name: str) -> bytes:
        return await self._store.blob(name)

    async def put(self, key: str, value: Any, bodies: Mapping[str, bytes]) -> None:
        raise UpcallError("files are read-only here")
