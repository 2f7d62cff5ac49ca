"""Skills: folders with a SKILL.md. Shown when a message triggers them, or read by the model when it wants to."""

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
from upcall.kit.instructions import Adding
from upcall.kit.skillfile import FILE, Skill, SkillIndex, load_skill
from upcall.messages import Message, Request, Result
from upcall.safety.private_files import PrivateFiles, Seen
from upcall.safety.small_files import read_small
from upcall.tools import tool

KEY, ACTIVE = "skills", "skills.active"
_MOST_FILES = 1_000


def skills(*dirs: str | os.PathLike[str]) -> Kit:
    """Teach the agent the skills of these folders.

    A skill with `triggers` is added to the conversation, once, when a prompt contains one of them, in any case.
    Skills with a `description` are listed in the system prompt, and the tool `read_skill` reads them and their
    files. Folders are read when a session begins. BadKit names the file that is wrong, here or then.

    *dirs: folders that contain skill folders; a skill of a later folder replaces one of the same name
    """
    shelf = SkillIndex([Path(d).expanduser().absolute() for d in dirs])
    last: tuple[Any, str] = (None, "")
    read: tuple[Any, str, list[tuple[str, str, str, str]]] = (None, "", [])  # as most sessions keep it
    adding = Adding()
    shelf.skills()

    def begin(session: SessionAccess) -> Awaitable[None] | None:
        found = shelf.known()
        return read_again(session) if found is None else keep(session, found)

    async def read_again(session: SessionAccess) -> None:
        keep(session, await asyncio.to_thread(shelf.skills))

    def keep(session: SessionAccess, found: tuple[Skill, ...]) -> None:
        nonlocal last
        if found is not last[0]:
            known = {s.name: {"path": str(s.path), "triggers": s.triggers} for s in found}
            last = (found, msgspec.json.encode({"known": known, "listed": _listed(found)}).decode())
        session.set_context(KEY, last[1])

    def kept_by(session: SessionAccess) -> tuple[Any, str, list[tuple[str, str, str, str]]]:
        """What a session keeps, the list of it for the prompt, and each trigger with its skill."""
        nonlocal read
        kept = session.get_context(KEY)
        if kept is not read[0]:
            about = _kept(session)
            each = [
                (name, one["path"], hit) for name, one in about.get("known", {}).items() for hit in one["triggers"]
            ]
            read = (kept, about.get("listed", ""), [(hit.casefold(), hit, name, path) for name, path, hit in each])
        return read

    def trigger(session: SessionAccess, message: Message) -> Awaitable[None] | None:
        said = message.text.casefold()
        hits = {name: (path, hit) for folded, hit, name, path in reversed(kept_by(session)[2]) if folded in said}
        return show(session, dict(reversed(hits.items()))) if hits else None

    async def show(session: SessionAccess, hits: Mapping[str, tuple[str, str]]) -> None:
        for name, (path, hit) in hits.items():
            active: Sequence[str] = session.get_context(ACTIVE, ())
            if name not in active:
                skill = await asyncio.to_thread(load_skill, Path(path))
                session.add_message("system", _shown(skill, f", triggered by {hit!r}"))
                session.set_context(ACTIVE, [*active, name])

    def list_them(session: SessionAccess, request: Request) -> Request:
        return adding.to(request, kept_by(session)[1])

    hooks = Hooks(begin_session=[begin], pre_request=[trigger], before_model=[list_them])
    return Kit(hooks, tools=[read_skill])


@tool(read_only=True, repeatable=True)
def read_skill(name: str, ctx: SyncContext, file: str = FILE) -> Result:
    """Read a skill, or one of the files that belong to it, before you do what it is about.

    name: the skill's name
    file: the file's path in the skill's folder
    """
    known: dict[str, Any] = _kept(ctx).get("known", {})
    if name not in known:
        return _refused(f"unknown skill {name!r}; the skills are {', '.join(known) or 'none'}")
    folder = Path(known[name]["path"]).parent
    private = PrivateFiles(getattr(ctx, "private_paths", ())).look()
    try:
        path = (folder / file).resolve(strict=True)
        if not path.is_relative_to(folder.resolve()):
            return _refused(f"{file} lies outside the skill's folder")
        if private.hides_path(path, folder.resolve()):
            return _refused(f"{file} belongs to the store of the sessions")
        if path != (folder / FILE).resolve():
            return Result("", read_small(path).decode().replace("\r\n", "\n"))
        text = _shown(load_skill(folder / FILE), _files(folder, private))
    except UnicodeDecodeError:
        return _refused(f"{file} is not text")
    except (OSError, ValueError, RuntimeError) as error:  # the last is for links in a circle
        why = (error.strerror if isinstance(error, OSError) else "") or error
        return _refused(f"{file} can't be read: {why}")
    if name not in ctx.get_context(ACTIVE, ()):
        ctx.set_context(f"pinned.skill.{name}", text)  # what it works by stays when the conversation is compacted
    return Result("", text)


def _kept(session: SessionAccess | SyncContext) -> dict[str, Any]:
    """What there was when the session began. It is kept as a text, which many sessions share; once it was not."""
    kept = session.get_context(KEY, "{}")
    return _decoded(kept) if isinstance(kept, str) else kept


@lru_cache(maxsize=16)
def _decoded(text: str) -> dict[str, Any]:
    return msgspec.json.decode(text)


def _listed(found: Sequence[Skill]) -> str:
    lines = [f"- {s.name}: {s.description}" for s in found if s.description]
    head = "Skills you can use. When one fits what you are to do, read it with read_skill before you begin:"
    return "\n".join([head, *lines]) if lines else ""


def _shown(skill: Skill, how: str) -> str:
    return f"Skill {skill.name} (from {skill.path}{how}):\n\n{skill.content}"


def _files(folder: Path, private: Seen) -> str:
    found = (p for p in islice(folder.rglob("*"), 10 * _MOST_FILES) if p.is_file() and p.name != FILE)
    seen = islice((p for p in found if not private.hides_path(p, folder)), _MOST_FILES + 1)
    files = sorted(str(p.relative_to(folder)) for p in seen)
    more = " and more" if len(files) > _MOST_FILES else ""
    return f", with the files {', '.join(files[:_MOST_FILES])}{more}" if files else ""


def _refused(why: str) -> Result:
    return Result("", f"read_skill: {why}", is_error=True)
