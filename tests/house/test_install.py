"""What people pay for installing and importing: few distributions, no heavy import, little time."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from importlib.metadata import distribution
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from house.measure import ROOT

MOST = 30
"""Distributions of a plain install, itself included."""

HEAVY = {
    "aiohttp", "apsw", "difflib", "fastjsonschema", "httpx", "importlib.metadata", "mcp", "pathlib",
    "prompt_toolkit", "pydantic", "pydantic_ai", "pydantic_monty", "regex", "rich", "sqlite3", "starlette",
    "uvicorn", "xllamacpp", "yaml",
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


def test_an_install_without_extras_has_at_most_30_distributions() -> None:
    installed = closure("upcall")
    assert len(installed) <= MOST, sorted(installed)


def test_the_extra_code_is_an_empty_name() -> None:
    extras = distribution("upcall").metadata.get_all("Provides-Extra") or []
    needed = [Requirement(line) for line in distribution("upcall").requires or []]
    assert "code" in extras
    assert [str(one) for one in needed if one.marker and one.marker.evaluate({"extra": "code"})] == []


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_the_wheel_in_an_empty_environment_runs_the_demo(tmp_path: Path) -> None:
    kept = {
        name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "UPCALL_", "VIRTUAL_"))
    }

    def done(*command: str | Path) -> str:
        ran = subprocess.run(
            command, cwd=tmp_path, env=kept, capture_output=True, text=True, timeout=600, check=False
        )
        assert ran.returncode == 0, ran.stdout + ran.stderr
        return ran.stdout

    done(sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--wheel-dir", "wheels", ROOT)
    (wheel,) = (tmp_path / "wheels").iterdir()
    done(sys.executable, "-m", "venv", "empty")
    python = tmp_path / "empty" / "bin" / "python"
    done(python, "-m", "pip", "install", "--quiet", wheel)
    listed = json.loads(done(python, "-m", "pip", "list", "--format", "json", "--disable-pip-version-check"))
    installed = sorted(one["name"] for one in listed if one["name"] not in ("pip", "setuptools"))
    assert "upcall" in installed
    assert len(installed) <= MOST, installed

    told = done(tmp_path / "empty" / "bin" / "upcall", "demo")

    assert "Who asked whom:" in told
    assert "Traceback" not in told


@pytest.mark.slow
def test_importing_the_package_imports_nothing_heavy() -> None:
    show = "import upcall, sys; print(*sys.modules)"
    env = {name: value for name, value in os.environ.items() if not name.startswith("COVERAGE_")}  # it imports some
    done = subprocess.run(
        [sys.executable, "-I", "-c", show], env=env, capture_output=True, text=True, check=True, timeout=60
    )
    assert HEAVY & set(done.stdout.split()) == set()


@pytest.mark.slow
def test_importing_the_package_prints_nothing() -> None:
    done = subprocess.run(
        [sys.executable, "-I", "-W", "error", "-c", "import upcall"], capture_output=True, check=True, timeout=60
    )
    assert done.stdout + done.stderr == b""
