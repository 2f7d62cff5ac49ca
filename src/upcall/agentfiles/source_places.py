"""Find out where the agents that a log names would be imported from, without importing anything.

A log says where its sessions' agents come from. Importing a module runs it, and `importlib.util.find_spec` of `a.b`
imports `a`. So modules are looked up part by part, and links are followed to the files themselves.
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


def strange_place(source: str, here: Path, *, installed: bool = True) -> str:
    """Return the path that a source would be loaded from if it is neither below `here` nor installed, else "".

    With `installed=False`, installed paths are returned too.
    """
    try:
        here = here.resolve()
        for place in _paths_used(source):
            real = place.resolve()
            if not real.is_relative_to(here) and not (installed and _is_installed(real)):
                return str(real)
    except (OSError, ValueError, RuntimeError):  # links in a circle, or an invalid path
        return source
    return ""


def _paths_used(source: str) -> Iterator[Path]:
    """Yield every file and folder that loading a source uses; for a module also its parent packages."""
    path = Path(source)
    if path.is_dir() or is_agent_file(path):
        yield path
        return
    folder, module = path.parent, path.name.partition(":")[0].removesuffix(".py")
    yield folder  # it is searched first for all modules
    spec: ModuleSpec | None = None
    parts = module.split(".")
    for count in range(1, len(parts) + 1):
        spec = _find(".".join(parts[:count]), folder, spec)
        if spec is None:  # the import will report it
            return
        if spec.has_location and spec.origin:
            yield Path(spec.origin)
        else:  # built in, or a package without a file
            yield from map(Path, spec.submodule_search_locations or ())


def _find(name: str, folder: Path, parent: ModuleSpec | None) -> ModuleSpec | None:
    """Return a module's spec. Nothing is imported, because its parent's spec is passed in."""
    if parent is not None:
        return PathFinder.find_spec(name, list(parent.submodule_search_locations or ()))
    try:
        return PathFinder.find_spec(name, [str(folder.absolute())]) or importlib.util.find_spec(name)
    except (ImportError, ValueError):
        return None


def _is_installed(path: Path) -> bool:
    """Return whether a file belongs to Python or to an installed distribution, including editable installs."""
    paths = sysconfig.get_paths()
    folders = [paths[name] for name in ("stdlib", "platstdlib", "purelib", "platlib")]
    folders += [*site.getsitepackages(), site.getusersitepackages()]
    return any(path.is_relative_to(Path(folder).resolve()) for folder in {*folders}) or any(
        path.is_relative_to(project) for project in _editable_projects()
    )


def _editable_projects() -> Iterator[Path]:
    """Yield the folders of projects that are installed with `pip install --editable`."""
    for distribution in importlib.metadata.distributions():
        text = distribution.read_text("direct_url.json")
        try:
            direct: Any = json.loads(text) if text else {}
            if direct.get("dir_info", {}).get("editable"):
                yield Path(unquote(urlsplit(str(direct["url"])).path)).resolve()
        except (ValueError, KeyError, AttributeError):  # not in the standard format
            continue
