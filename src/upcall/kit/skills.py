"""Skills: folders with a SKILL.md. A message can trigger a skill, or the model reads it with a tool."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Awaitable, Mapping, Sequence
from functools import lru_cache
from itertools import islice
from pathlib import Path
from typing import Any

import msgspec

from upcall.agent import Kit
from upcall.contracts import SessionAccess, SyncContext
from upcall.hooks import Hooks
from upcall.kit.instructions import CachedAddition
from upcall.kit.skillfile import FILE, Skill, SkillIndex, load_skill
from upcall.messages import Message, Request, Result
from upcall.safety.private_files import PrivateFiles, PrivateSnapshot
from upcall.safety.small_files import read_small
from upcall.tools import tool

KEY, ACTIVE = "skills", "skills.active"
_MAX_FILES = 1_000


def skills(*dirs: str | os.PathLike[str]) -> Kit:
    """Teach the agent the skills of these folders.

    A skill with `triggers` is added to the conversation, once, when a prompt contains one of them, in any case.
    Skills with a `description` are listed in the system prompt, and the tool `read_skill` reads them and their
    files. Folders are read now and when a session begins; BadKit names a file that is wrong.

    *dirs: folders that contain skill folders; a skill of a later folder replaces one of the same name
    """
    index = SkillIndex([Path(d).expanduser().absolute() for d in dirs])
    encoded: tuple[Any, str] = (None, "")
    decoded: tuple[Any, str, list[tuple[str, str, str, str]]] = (None, "", [])  # most sessions store the same text
    addition = CachedAddition()
    index.skills()

    def load_skills(session: SessionAccess) -> Awaitable[None] | None:
        found = index.cached()
        return reload(session) if found is None else store_in(session, found)

    async def reload(session: SessionAccess) -> None:
        store_in(session, await asyncio.to_thread(index.skills))

    def store_in(session: SessionAccess, found: tuple[Skill, ...]) -> None:
        nonlocal encoded
        if found is not encoded[0]:
            known = {s.name: {"path": str(s.path), "triggers": s.triggers} for s in found}
            encoded = (found, msgspec.json.encode({"known": known, "listed": _list_text(found)}).decode())
        session.set_context(KEY, encoded[1])

    def stored_in(session: SessionAccess) -> tuple[Any, str, list[tuple[str, str, str, str]]]:
        """Return a session's stored skills, their list for the prompt, and each trigger with its skill."""
        nonlocal decoded
        stored = session.get_context(KEY)
        if stored is not decoded[0]:
            content = _stored_skills(session)
            triggers = [
                (name, one["path"], hit)
                for name, one in content.get("known", {}).items()
                for hit in one["triggers"]
            ]
            decoded = (
                stored,
                content.get("listed", ""),
                [(hit.casefold(), hit, name, path) for name, path, hit in triggers],
            )
        return decoded

    def show_triggered(session: SessionAccess, message: Message) -> Awaitable[None] | None:
        text = message.text.casefold()
        hits = {name: (path, hit) for folded, hit, name, path in reversed(stored_in(session)[2]) if folded in text}
        return show(session, dict(reversed(hits.items()))) if hits else None

    async def show(session: SessionAccess, hits: Mapping[str, tuple[str, str]]) -> None:
        for name, (path, hit) in hits.items():
            active: Sequence[str] = session.get_context(ACTIVE, ())
            if name not in active:
                skill = await asyncio.to_thread(load_skill, Path(path))
                session.add_message("system", _skill_text(skill, f", triggered by {hit!r}"))
                session.set_context(ACTIVE, [*active, name])

    def add_list(session: SessionAccess, request: Request) -> Request:
        return addition.add_to(request, stored_in(session)[1])

    hooks = Hooks(begin_session=[load_skills], pre_request=[show_triggered], before_model=[add_list])
    return Kit(hooks, tools=[read_skill])


@tool(read_only=True, repeatable=True)
def read_skill(name: str, ctx: SyncContext, file: str = FILE) -> Result:
    """Read a skill, or one of its files, before you start the work that it describes.

    name: the skill's name
    file: the file's path in the skill's folder
    """
    known: dict[str, Any] = _stored_skills(ctx).get("known", {})
    if name not in known:
        return _error(f"unknown skill {name!r}; the skills are {', '.join(known) or 'none'}")
    folder = Path(known[name]["path"]).parent
    private = PrivateFiles(getattr(ctx, "private_paths", ())).look()
    try:
        path = (folder / file).resolve(strict=True)
        if not path.is_relative_to(folder.resolve()):
            return _error(f"{file} lies outside the skill's folder")
        if private.hides_path(path, folder.resolve()):
            return _error(f"{file} belongs to the store of the sessions")
        if path != (folder / FILE).resolve():
            return Result("", read_small(path).decode().replace("\r\n", "\n"))
        text = _skill_text(load_skill(folder / FILE), _files(folder, private))
    except UnicodeDecodeError:
        return _error(f"{file} is not text")
    except (OSError, ValueError, RuntimeError) as error:  # RuntimeError: links in a circle
        why = (error.strerror if isinstance(error, OSError) else "") or error
        return _error(f"{file} can't be read: {why}")
    if name not in ctx.get_context(ACTIVE, ()):
        ctx.set_context(f"pinned.skill.{name}", text)  # stays when the conversation is compacted
    return Result("", text)


def _stored_skills(session: SessionAccess | SyncContext) -> dict[str, Any]:
    """Return the skills as they were when the session began. Older logs have an object, newer ones a JSON text."""
    stored = session.get_context(KEY, "{}")
    return _decode(stored) if isinstance(stored, str) else stored


@lru_cache(maxsize=16)
def _decode(text: str) -> dict[str, Any]:
    return msgspec.json.decode(text)


def _list_text(found: Sequence[Skill]) -> str:
    lines = [f"- {s.name}: {s.description}" for s in found if s.description]
    head = "Skills you can use. When one fits your task, read it with read_skill before you begin:"
    return "\n".join([head, *lines]) if lines else ""


def _skill_text(skill: Skill, suffix: str) -> str:
    return f"Skill {skill.name} (from {skill.path}{suffix}):\n\n{skill.content}"


def _files(folder: Path, private: PrivateSnapshot) -> str:
    found = (p for p in islice(folder.rglob("*"), 10 * _MAX_FILES) if p.is_file() and p.name != FILE)
    seen = islice((p for p in found if not private.hides_path(p, folder)), _MAX_FILES + 1)
    files = sorted(str(p.relative_to(folder)) for p in seen)
    more = " and more" if len(files) > _MAX_FILES else ""
    return f", with the files {', '.join(files[:_MAX_FILES])}{more}" if files else ""


def _error(why: str) -> Result:
    return Result("", f"read_skill: {why}", is_error=True)
