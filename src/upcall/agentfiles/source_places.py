"""Where the agents that a log names would be imported from, found without importing anything.

A log says where its sessions' agents come from. To import a module is to run it, and `importlib.util.find_spec` of
`a.b` imports `a`. So modules are looked up here part by part, and links are followed to the files themselves.
"""

from __future__ import annotations

import importlib.metadata
import importlib.util
import json
import site
import sysconfig
from collections.abc import Iterator
from importlib.machinery import ModuleSpec, PathFinder
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

from upcall.agentfiles.markdown import is_agent_file


def strange_place(source: str, here: Path) -> str:
    """The place that a source would be loaded from, if it is neither below `here` nor installed; else ""."""
    try:
        here = here.resolve()
        for place in _places(source):
            real = place.resolve()
            if not real.is_relative_to(here) and not _is_installed(real):
                return str(real)
    except (OSError, ValueError, RuntimeError):  # links in a circle, or what no path can hold
        return source
    return ""


def _places(source: str) -> Iterator[Path]:
    """Every file and folder that is used to load a source: of a module also the packages around it."""
    path = Path(source)
    if path.is_dir() or is_agent_file(path):
        yield path
        return
    folder, module = path.parent, path.name.partition(":")[0].removesuffix(".py")
    yield folder  # modules are looked for in it first, whoever imports them
    spec: ModuleSpec | None = None
    parts = module.split(".")
    for count in range(1, len(parts) + 1):
        spec = _find(".".join(parts[:count]), folder, spec)
        if spec is None:  # whoever imports it says so
            return
        if spec.has_location and spec.origin:
            yield Path(spec.origin)
        else:  # built in, or a package without a file
            yield from map(Path, spec.submodule_search_locations or ())


def _find(name: str, folder: Path, above: ModuleSpec | None) -> ModuleSpec | None:
    """A module's spec; nothing is imported, because the one above it is given."""
    if above is not None:
        return PathFinder.find_spec(name, list(above.submodule_search_locations or ()))
    try:
        return PathFinder.find_spec(name, [str(folder.absolute())]) or importlib.util.find_spec(name)
    except (ImportError, ValueError):
        return None


def _is_installed(path: Path) -> bool:
    """Tell whether a file belongs to Python, or to a distribution that is installed, in place too."""
    paths = sysconfig.get_paths()
    folders = [paths[name] for name in ("stdlib", "platstdlib", "purelib", "platlib")]
    folders += [*site.getsitepackages(), site.getusersitepackages()]
    return any(path.is_relative_to(Path(folder).resolve()) for folder in {*folders}) or any(
        path.is_relative_to(project) for project in _installed_in_place()
    )


def _installed_in_place() -> Iterator[Path]:
    """The folders of projects that are installed as they lie there (`pip install --editable`)."""
    for distribution in importlib.metadata.distributions():
        text = distribution.read_text("direct_url.json")
        try:
            direct: Any = json.loads(text) if text else {}
            if direct.get("dir_info", {}).get("editable"):
                yield Path(unquote(urlsplit(str(direct["url"])).path)).resolve()
        except (ValueError, KeyError, AttributeError):  # somebody else's file
            continue
