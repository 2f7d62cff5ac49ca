"""What a chat completes as it is typed: its commands, and the names of files after an @."""

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

FRESH = 3.0
"""Seconds for which the names that were found are taken as they are."""

MOST_FILES = 20_000
MOST_SHOWN = 50


class Words(Completer):
    """Completes a command at the beginning of what is typed, and a path after an @."""

    def __init__(self, commands: Mapping[str, Any], files: Files) -> None:
        self._commands, self._files = commands, files
        self._paths: list[str] = []
        self._looked = 0.0

    def get_completions(self, document: Document, complete_event: CompleteEvent) -> Iterable[Completion]:
        """The commands that begin like this."""
        before = document.text_before_cursor
        if before.startswith("/"):
            for name, command in self._commands.items():
                if name.startswith(before[1:]):
                    yield Completion(name, -len(before) + 1, display=f"/{name}", display_meta=command.about)

    async def get_completions_async(
        self, document: Document, complete_event: CompleteEvent
    ) -> AsyncGenerator[Completion]:
        """The same, and the files that have such a name."""
        for command in self.get_completions(document, complete_event):
            yield command
        word = document.get_word_before_cursor(WORD=True)
        if word.startswith("@"):
            for path in await self._like(word[1:]):
                yield Completion(path, -len(word) + 1)

    async def _like(self, typed: str) -> list[str]:
        """Paths with what was typed in them, where it begins a name first."""
        if not self._looked or time.monotonic() - self._looked > FRESH:
            self._paths = await self._all()
            self._looked = time.monotonic()
        wanted = typed.casefold()
        found = [path for path in self._paths if wanted in path.casefold()]
        return sorted(found, key=lambda path: f"/{wanted}" not in f"/{path.casefold()}")[:MOST_SHOWN]

    async def _all(self) -> list[str]:
        found: list[str] = []
        try:
            async for entry in walk(self._files, "/"):
                path = entry.path.removeprefix("/")
                if path == plain(path) and path.isprintable():
                    found.append(path)
                if len(found) == MOST_FILES:
                    break
        except WorkspaceError:
            return []  # nothing can be completed where nothing can be read
        return found


def files_of(workspace: Workspace | None, store: Store, session_id: Callable[[], str]) -> Files:
    """The files that an agent works with: of its workspace, else of the folder where we are.

    `session_id` is asked each time, because a chat may go on in another session.
    """
    return (Folder(".") if workspace is None else workspace).open(_Read(store, session_id))


class _Read:
    """A session's shelf as its log has it, to read from."""

    def __init__(self, store: Store, session_id: Callable[[], str]) -> None:
        self._store, self._session_id = store, session_id
        self.private_paths = private_paths(store)

    async def values(self) -> Mapping[str, Any]:
        state = await load_state(self._store, self._session_id())
        return state.context if state is not None else {}

    async def body(self, name: str) -> bytes:
        return await self._store.blob(name)

    async def put(self, key: str, value: Any, bodies: Mapping[str, bytes]) -> None:
        raise UpcallError("files are only looked at here")
