"""The import contracts: a module that imports a room above its own fails `make check`."""

from __future__ import annotations

import itertools
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from house.measure import ROOT

LINTER = Path(sys.executable).with_name("lint-imports")
CONTRACTS = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["tool"]["importlinter"][
    "contracts"
]


def _layers() -> list[list[str]]:
    return [[module.strip() for module in layer.split("|")] for layer in CONTRACTS[0]["layers"]]


def _lint(folder: Path) -> str:
    """Lint a copy of the package, and return what the linter reports."""
    # The copy is first on the path: the linter reads the package from there and not from where it is installed.
    done = subprocess.run(
        [LINTER, "--no-logo", "--no-cache"], cwd=folder, env={"PYTHONPATH": str(folder / "src")},
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    return done.stdout if done.returncode else ""


def _copy(folder: Path) -> Path:
    shutil.copytree(ROOT / "src", folder / "src", ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy(ROOT / "pyproject.toml", folder)
    return folder / "src"


def _add_import(source: Path, module: str, imported: str) -> str:
    """Make a module import another one, and return the line by which the linter reports that."""
    path = source / Path(*module.split("."))
    if path.is_dir():
        module, path = f"{module}.violation", path / "violation"
    with path.with_suffix(".py").open("a", encoding="utf-8") as file:
        file.write(f"\nimport {imported}\n")
    return f"{module} -> {imported}"


@pytest.mark.slow
def test_a_violation_in_each_room_is_reported(tmp_path: Path) -> None:
    source = _copy(tmp_path)
    layers = _layers()
    expected = [
        _add_import(source, room, above[0])
        for above, below in itertools.pairwise(layers)
        for room in below
    ]  # fmt: skip
    found = _lint(tmp_path)
    assert [line for line in expected if line not in found] == []


def test_an_adapter_that_imports_the_core_is_reported(tmp_path: Path) -> None:
    source = _copy(tmp_path)
    adapters = [module for contract in CONTRACTS[1:] for module in contract.get("source_modules", ())]
    expected = [_add_import(source, adapter, "upcall.core.log.request_diff") for adapter in adapters]
    found = _lint(tmp_path)
    assert [line for line in expected if line not in found] == []


@pytest.mark.slow
def test_a_host_that_imports_another_host_is_reported(tmp_path: Path) -> None:
    source = _copy(tmp_path)
    hosts = ["terminal", "web", "mcp", "acp"]
    expected = [
        _add_import(source, f"upcall.hosts.{host}", f"upcall.hosts.{other}")
        for host, other in zip(hosts, hosts[1:] + hosts[:1], strict=True)
    ]
    found = _lint(tmp_path)
    assert [line for line in expected if line not in found] == []


@pytest.mark.slow
def test_the_package_as_it_is_keeps_the_contracts(tmp_path: Path) -> None:
    _copy(tmp_path)
    assert _lint(tmp_path) == ""
