"""What people pay for installing and importing: few distributions, no heavy import, little time."""

from __future__ import annotations

import os
import subprocess
import sys
from importlib.metadata import distribution

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

HEAVY = {
    "aiohttp", "apsw", "difflib", "fastjsonschema", "httpx", "importlib.metadata", "mcp", "pathlib",
    "prompt_toolkit", "pydantic", "pydantic_ai", "regex", "rich", "sqlite3", "starlette", "xllamacpp", "yaml",
}  # fmt: skip


def closure(name: str) -> set[str]:
    """The distributions that installing one without extras brings, itself included."""
    found: set[str] = set()
    todo = [(name, frozenset[str]())]
    while todo:
        here, extras = todo.pop()
        found.add(here)
        for line in distribution(here).requires or []:
            needed = Requirement(line)
            wanted = not needed.marker or any(needed.marker.evaluate({"extra": e}) for e in ("", *extras))
            key = canonicalize_name(needed.name)
            if wanted and key not in found:
                todo.append((key, frozenset(needed.extras)))
    return found


def cpu_seconds(statement: str) -> float:
    """What a fresh interpreter spends on one statement."""
    child = subprocess.Popen([sys.executable, "-I", "-c", statement])
    _, status, used = os.wait4(child.pid, 0)
    child.returncode = os.waitstatus_to_exitcode(status)
    assert child.returncode == 0
    return used.ru_utime + used.ru_stime


def test_an_install_without_extras_has_at_most_22_distributions() -> None:
    installed = closure("upcall")
    assert len(installed) <= 22, sorted(installed)


def test_importing_the_package_imports_nothing_heavy() -> None:
    show = "import upcall, sys; print(*sys.modules)"
    done = subprocess.run(
        [sys.executable, "-I", "-c", show], capture_output=True, text=True, check=True, timeout=60
    )
    assert HEAVY & set(done.stdout.split()) == set()


def test_importing_the_package_prints_nothing() -> None:
    done = subprocess.run(
        [sys.executable, "-I", "-W", "error", "-c", "import upcall"], capture_output=True, check=True, timeout=60
    )
    assert done.stdout + done.stderr == b""
