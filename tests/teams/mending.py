"""A small repository with a fault in it, for agents that mend."""

from __future__ import annotations

import shlex
import subprocess
import sys
from pathlib import Path

TESTS = f"{shlex.quote(sys.executable)} -B -m unittest -q"
BROKEN = "def mean(numbers):\n    return sum(numbers) / (len(numbers) + 1)\n"
MENDED = "def mean(numbers):\n    return sum(numbers) / len(numbers)\n"
CHECKS = """\
import unittest

from mean import mean


class Mean(unittest.TestCase):
    def test_mean(self):
        self.assertEqual(mean([1, 2, 3]), 2)
"""


def git(repository: Path, *words: str) -> str:
    """What git says."""
    who = ["-c", "user.name=a", "-c", "user.email=a@example.org", "-c", "commit.gpgsign=false"]
    return subprocess.run(["git", *who, *words], cwd=repository, capture_output=True, text=True, check=True).stdout


def make_repository(folder: Path, **more: str) -> Path:
    """A folder `repository` with the fault, a test that fails and files of other names, all committed."""
    repository = folder / "repository"
    repository.mkdir()
    for name, text in {"mean.py": BROKEN, "test_mean.py": CHECKS, **more}.items():
        (repository / name).write_text(text)
    git(repository, "init", "-q", "-b", "main")
    git(repository, "add", ".")
    git(repository, "commit", "-q", "-m", "begin")
    return repository
