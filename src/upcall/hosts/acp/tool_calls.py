"""How a tool call looks in an editor: its title, kind, files, and the change that it makes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, cast

from upcall.hosts.acp.editor_files import real_place
from upcall.messages import Result
from upcall.observe.labels import Labels
from upcall.observe.lines import Lines
from upcall.observe.plain import one_line, plain, shortened, visible
from upcall.observe.redact import Redactor

LONGEST_RESULT = 20_000
"""Characters of a result that are shown; the whole is in the log."""

_LONGEST_ARGUMENT = 10_000
_LONGEST_TITLE = 200
_KINDS = {
    "read_file": "read", "ls": "read", "read_skill": "read", "read_todos": "read",
    "glob": "search", "grep": "search", "write_file": "edit", "edit_file": "edit",
    "shell": "execute", "run_python": "execute", "task": "other", "write_todos": "think", "ask": "think",
}  # fmt: skip
_FETCHES = ("fetch", "download", "http")
_WORDS = {"read": "read", "get": "read", "list": "read", "search": "search", "find": "search", "grep": "search",
          "write": "edit", "edit": "edit", "update": "edit", "delete": "delete", "remove": "delete",
          "move": "move", "rename": "move", "run": "execute", "exec": "execute", "execute": "execute"}  # fmt: skip


class ToolCalls:
    """Describes calls for an editor.

    folder: the folder in which the session's files are
    mounts: further folders, by their paths in the workspace
    """

    def __init__(
        self, redactor: Redactor, labels: Labels, folder: str, mounts: Mapping[str, str] | None = None
    ) -> None:
        self._mounts = mounts or {}
        self.redactor, self.lines, self._folder = redactor, Lines(redactor, labels), folder

    def title(self, name: str, args: Mapping[str, Any], own_label: str = "", agent: str = "") -> str:
        """Return what a call is called; `agent` is the one that makes it, where that is not the session's own."""
        about = self.lines.call(name, args)
        text = f"{self.lines.labels.of(name, own_label)} {about}".strip()
        if name == "task" and isinstance(args.get("agent"), str):
            text = f"{one_line(str(args['agent']), 60)}: {self.lines.text(str(args.get('prompt', '')))}"
        return one_line(f"{agent} › {text}" if agent else text, _LONGEST_TITLE)

    def kind(self, name: str) -> str:
        """Return the kind of a tool, by its name."""
        if name in _KINDS:
            return _KINDS[name]
        words = name.lower().replace("-", "_").split("_")
        if any(word.startswith(_FETCHES) for word in words):
            return "fetch"
        return next((_WORDS[word] for word in words if word in _WORDS), "other")

    def locations(self, args: Mapping[str, Any]) -> list[dict[str, Any]]:
        """Return the files that a call is about."""
        found = args.get("path") or args.get("file_path") or args.get("file")
        if not isinstance(found, str) or not found.strip() or "\0" in found or "://" in found:
            return []
        location: dict[str, Any] = {"path": self.place(found)}
        offset = args.get("offset")
        if isinstance(offset, int) and not isinstance(offset, bool) and 0 < offset < 2**31:
            location["line"] = offset + 1
        return [location]

    def place(self, path: str) -> str:
        """Return the absolute path of a file in the workspace, whose root is the session's folder."""
        if path == self._folder or path.startswith(self._folder.rstrip("/") + "/"):
            return visible(path)
        return visible(real_place(path, self._folder, self._mounts))

    def diff(self, name: str, args: Mapping[str, Any]) -> dict[str, Any] | None:
        """Return the change that a call makes to a file; None where it makes none, or none that is known."""
        change = self._change(name, args)
        if change is None:
            return None
        path, old, new = change
        before = None if old is None else self._whole(old)
        return {"type": "diff", "path": self.place(path), "oldText": before, "newText": self._whole(new)}

    def has_diff(self, name: str, args: Mapping[str, Any]) -> bool:
        """Return whether a change of a file is shown at a call."""
        return self._change(name, args) is not None

    def _change(self, name: str, args: Mapping[str, Any]) -> tuple[str, str | None, str] | None:
        """Return the file that a call changes, the text there before, and the new one."""
        path, old, new = args.get("path"), args.get("old_string"), args.get("new_string")
        if not isinstance(path, str):
            return None
        if isinstance(old, str) and isinstance(new, str):
            return path, old, new
        content = args.get("content")
        return (path, None, content) if isinstance(content, str) and self.kind(name) == "edit" else None

    def _whole(self, text: str) -> str:
        """Return a text of which nothing is left out: what can't be seen is written as an escape."""
        return visible(self.redactor.text(text), lines=True)

    def arguments(self, args: Mapping[str, Any]) -> Any:
        """Return the arguments without secrets; long texts are cut."""
        return _cut(self.redactor.show(dict(args)))

    def result(self, result: Result) -> list[dict[str, Any]]:
        """Return what a call returned, as content."""
        start = self.redactor.beginning(result.text, 4 * LONGEST_RESULT)
        text = shortened(plain(self.redactor.text(start)), LONGEST_RESULT)
        content = [text_content(text)] if text.strip() else []
        pictures = [
            {"type": "image", "data": one.data, "mimeType": one.media_type} for one in result.images if one.data
        ]
        return content + [{"type": "content", "content": one} for one in pictures]


def beside_diff(diff: Mapping[str, Any], args: Mapping[str, Any]) -> dict[str, Any]:
    """Return the arguments of a call that the change which it makes to a file does not show."""
    shown = ("path", "content") if diff["oldText"] is None else ("path", "old_string", "new_string")
    return {name: value for name, value in args.items() if name not in shown}


def text_content(text: str) -> dict[str, Any]:
    """Return a text as content of a tool call."""
    return {"type": "content", "content": {"type": "text", "text": text}}


def _cut(value: Any) -> Any:
    if isinstance(value, str):
        return shortened(visible(value, lines=True), _LONGEST_ARGUMENT)
    if isinstance(value, dict):
        return {key: _cut(one) for key, one in cast("dict[str, Any]", value).items()}
    if isinstance(value, list | tuple):
        return [_cut(one) for one in cast("list[Any]", value)]
    return value
