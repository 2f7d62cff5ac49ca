"""The command as it starts: its version, and an interrupt before it has come to itself."""

from __future__ import annotations

import os
import subprocess
import sys
import tomllib
from importlib.metadata import version
from pathlib import Path

import msgspec
import pytest

import upcall
from cli.command import environment
from cli.command import upcall as command
from house.measure import ROOT

INTERRUPTED = """\
import os, signal, sys


class Finder:
    def find_spec(self, name, path=None, target=None):
        if name == os.environ["INTERRUPT_AT"]:
            os.kill(os.getpid(), signal.SIGINT)


sys.meta_path.insert(0, Finder())
"""


def interrupted(at: str, *command: str, cwd: Path) -> tuple[int, str]:
    """Have Ctrl-C reach a command as it imports a module; returns its exit code and all that it prints."""
    (cwd / "sitecustomize.py").write_text(INTERRUPTED)
    path = os.pathsep.join([str(cwd), *filter(None, [os.environ.get("PYTHONPATH")])])
    env = environment(INTERRUPT_AT=at, PYTHONPATH=path)
    env.pop("COVERAGE_PROCESS_CONFIG", None)  # the interrupt would reach what measures coverage, too
    done = subprocess.run(
        [sys.executable, *command, "sessions"],
        cwd=cwd,
        env=env,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=60,
        check=False,
    )
    return done.returncode, done.stdout


@pytest.mark.slow
@pytest.mark.parametrize("at", ["upcall", "upcall.errors", "msgspec", "upcall.cli.inbox", "argparse"])
def test_an_interrupt_while_the_command_is_imported_ends_it_quietly(at: str, tmp_path: Path) -> None:
    scripts = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["scripts"]
    module, _, function = scripts["upcall"].partition(":")
    script = f"import sys; from {module} import {function}; sys.exit({function}())"
    assert interrupted(at, "-c", script, cwd=tmp_path) == (130, "")


@pytest.mark.slow
@pytest.mark.parametrize("at", ["upcall.cli", "upcall.cli.inbox"])
def test_an_interrupt_while_the_module_is_run_ends_it_quietly(at: str, tmp_path: Path) -> None:
    assert interrupted(at, "-m", "upcall", cwd=tmp_path) == (130, "")


@pytest.mark.slow
def test_an_interrupt_that_is_ignored_stays_ignored(tmp_path: Path) -> None:
    nohup = "import signal; signal.signal(2, signal.SIG_IGN); import upcall.__main__"
    code, said = interrupted("upcall.cli.inbox", "-c", nohup, cwd=tmp_path)
    assert (code, said.startswith("no log here yet")) == (0, True)


def test_sources_that_are_not_installed_have_no_known_version(tmp_path: Path) -> None:
    (tmp_path / "msgspec").symlink_to(Path(msgspec.__file__).parent)
    done = subprocess.run(
        [sys.executable, "-S", "-c", "import upcall; print(upcall.__version__)"],
        env=environment(PYTHONPATH=f"{ROOT / 'src'}{os.pathsep}{tmp_path}"),
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert (done.stdout, done.stderr) == ("0+unknown\n", "")


def test_the_version_is_that_of_the_installed_package(tmp_path: Path) -> None:
    assert upcall.__version__ == version("upcall")
    assert command("--version", cwd=tmp_path).stdout == f"upcall {upcall.__version__}\n"
