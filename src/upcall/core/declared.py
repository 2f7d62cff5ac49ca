"""Find the module attribute that an agent is, so that another process can import it again.

Only modules that were being imported when the agent was made are looked at. An agent that a function made later is
nobody's attribute, or the attribute of a module whose import would not make it.
"""

from __future__ import annotations

import inspect
import os
import sys
from collections.abc import Iterator, Sequence
from types import ModuleType
from typing import Any, NamedTuple, cast

MAIN = ("__main__", "__mp_main__")
_INSTALLED = ("site-packages", "dist-packages")


class Declared(NamedTuple):
    """The place of an agent's declaration: `source` can be loaded again; `program` is a main module and can't."""

    source: str = ""
    program: str = ""


def importing() -> tuple[str, ...]:
    """The names of the modules whose top-level code runs now, innermost first."""
    return tuple(dict.fromkeys(_top_level_names()))


def _top_level_names() -> Iterator[str]:
    frame = inspect.currentframe()
    while frame is not None:
        if frame.f_code.co_name == "<module>":
            yield str(frame.f_globals.get("__name__", ""))
        frame = frame.f_back


def find(value: object, modules: Sequence[str]) -> Declared:
    """The `module:attribute` of a value, or of a list that contains it, in one of these modules.

    A source is `folder/module:attribute`, as the command notes it; of installed packages without the folder. The
    main module gives no source: importing it would run the program again.
    """
    program = ""
    for name in modules:
        module = sys.modules.get(name)
        attribute = _attribute(module, value) if module is not None else ""
        if module is None or not attribute:
            continue
        if name in MAIN or _is_program(module):
            program = program or f"{getattr(module, '__file__', None) or name}:{attribute}"
        else:
            return Declared(f"{_folder(name)}{name}:{attribute}")
    return Declared(program=program)


def _attribute(module: ModuleType, value: object) -> str:
    held: list[tuple[str, Any]] = list(vars(module).items())
    for name, one in held:
        if one is value:
            return name
    for name, one in held:
        if isinstance(one, list | tuple) and any(item is value for item in cast("Sequence[Any]", one)):
            return name
    return ""


def _is_program(module: ModuleType) -> bool:
    """Tell whether a module is a second copy of the main module."""
    own, main = (getattr(one, "__file__", None) for one in (module, sys.modules.get("__main__")))
    return own is not None and main is not None and os.path.realpath(own) == os.path.realpath(main)


def _folder(name: str) -> str:
    """The folder that the module is imported from, with a slash; "" where it is installed."""
    top = sys.modules.get(name.partition(".")[0])
    paths = [str(path) for path in getattr(top, "__path__", ())] or [getattr(top, "__file__", None) or ""]
    folder = os.path.dirname(os.path.abspath(paths[0])) if paths[0] else ""  # noqa: PTH100, PTH120
    return f"{folder}/" if folder and not any(f"/{part}/" in f"{folder}/" for part in _INSTALLED) else ""
