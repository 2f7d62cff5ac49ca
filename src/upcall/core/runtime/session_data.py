"""Data, tags and other values that an application gives a session, checked before anything is stored."""

from __future__ import annotations

import os
import re
import unicodedata
from collections.abc import Mapping, Sequence
from typing import Any, cast

from upcall.callbacks import same_json
from upcall.core.turns.access import SessionView
from upcall.errors import SetupError
from upcall.safety.bounds import DATA, DEPTH, PATH, ROOTS, TAG_NAME, TAG_VALUE, TAGS, TITLE, TooLarge, brief, plain


def checked_data(data: Any) -> dict[str, Any]:
    """The data of `start(data=...)` as JSON gives it back; SetupError says why it can't be kept."""
    if data is None:
        return {}
    try:
        kept = plain(data, DATA)
    except TooLarge as error:
        most = f"takes at most {DATA} bytes of JSON, nested at most {DEPTH} levels deep"
        raise SetupError(f"data {most}: {error}. Store it elsewhere and give its path or key") from None
    except ValueError as error:
        raise SetupError(f"data can contain only JSON values: {error}. Pass other objects in deps") from None
    if not isinstance(kept, dict):
        raise SetupError(f'data must be a JSON object, such as {{"customer": 17}}, not {brief(data)}')
    return cast("dict[str, Any]", kept)


def checked_tags(tags: Any) -> dict[str, str]:
    """The tags of `start(tags=...)`, or those to filter by; SetupError says what is wrong with them."""
    if tags is None:
        return {}
    if not isinstance(tags, Mapping):
        raise SetupError(f'tags must map names to values, such as {{"customer": "acme"}}, not {brief(tags)}')
    given = dict(cast("Mapping[Any, Any]", tags))
    if len(given) > TAGS:
        raise SetupError(f"a session may have at most {TAGS} tags, not {len(given)}")
    for name, value in given.items():
        if problem := _problem(name, value):
            raise SetupError(problem)
    return given


def _problem(name: Any, value: Any) -> str:
    if type(name) is not str or type(value) is not str:
        what = f"{brief(name)}: {brief(value)}"
        return f'the name and the value of a tag are text, such as {{"order": "17"}}, not {what}'
    if not (0 < len(name) <= TAG_NAME and name.isprintable()) or "=" in name or " " in name:
        rule = f"1 to {TAG_NAME} printable characters without spaces and '='"
        return f"{name[:80]!r} is not a valid name of a tag: use {rule}"
    if len(value) > TAG_VALUE or not value.isprintable():
        rule = f"at most {TAG_VALUE} printable characters"
        return f"{value[:80]!r} is not a valid value of the tag {name!r}: use {rule}"
    return ""


TitleAndFolders = tuple[str, str, tuple[str, ...]]
"""The title of a session, the folder that it works in, and further folders."""


def checked_title_and_folders(title: Any, folder: Any, roots: Any) -> TitleAndFolders:
    """Return the title, the folder and further folders of `start(...)`; SetupError says what is wrong with them."""
    if type(title) is not str or len(title) > TITLE or not _is_one_line(title):
        raise SetupError(f"title must be one line of at most {TITLE} characters, not {brief(title)}")
    if isinstance(roots, str | bytes) or not isinstance(roots, Sequence):
        raise SetupError(f'roots must be a list of absolute paths, such as ["/srv/docs"], not {brief(roots)}')
    further = cast("Sequence[Any]", roots)
    if len(further) > ROOTS:
        raise SetupError(f"a session may have at most {ROOTS} roots, not {len(further)}")
    own = "" if folder is None else checked_path("folder", folder)
    return title, own, tuple([checked_path("each of roots", one) for one in further])


def checked_path(what: str, path: Any) -> str:
    """Return an absolute path as text, as it was given; SetupError names `what` and says what is wrong."""
    text = str(path) if hasattr(path, "__fspath__") else path
    if type(text) is not str:
        raise SetupError(f'{what} must be an absolute path, such as "/srv/shop", not {brief(path)}')
    if len(text) > PATH or not _is_one_line(text):
        raise SetupError(f"{what} may have at most {PATH} characters and no control characters; got {brief(text)}")
    if not os.path.isabs(text):  # noqa: PTH117 - importing pathlib is slow
        raise SetupError(f"{what} must be an absolute path, not {brief(text)}; Path(...).resolve() returns one")
    return text


def _is_one_line(text: str) -> bool:
    """Tell whether a text can be stored and has no line breaks and no control characters."""
    return text.isprintable() or not any(unicodedata.category(one) in _BREAKING for one in text)


_BREAKING = ("Cc", "Cs", "Zl", "Zp")
"""Control characters, lone surrogates, and separators of lines and paragraphs."""


def check_unchanged(session: SessionView, data: Any, tags: Any) -> None:
    """Refuse other data or tags than those a session was started with; None stands for what it has."""
    for name, given, kept in (
        ("data", None if data is None else checked_data(data), session.data),
        ("tags", None if tags is None else checked_tags(tags), session.tags),
    ):
        if given is not None and not same_json(given, kept):
            problem = f"session {session.id!r} was started with other {name}, which can't be changed"
            raise SetupError(f"{problem}; leave {name} out to continue that session, or start one with another id")


_SESSION_ID = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.:@-]{0,199}\Z")


def checked_id(given: Any) -> str:
    """The id of a new session; SetupError where it is not a valid one. Older sessions may have other ids."""
    if not isinstance(given, str) or not _SESSION_ID.match(given):
        raise SetupError(
            f"invalid session id {brief(given)}: use 1–200 letters, digits, '_', '.', ':', '@' or '-', "
            "beginning with a letter, digit or '_'"
        )
    return given
