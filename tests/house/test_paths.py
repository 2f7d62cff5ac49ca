"""The files and folders that the pages for contributors name are there, and so is what they name in a file."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from house.measure import ROOT, SOURCE

PAGES = ("CONTRIBUTING.md", "docs/design.md", "docs/where-to-change-what.md")
PATH = re.compile(r"(?<![\w/.-])((?:[a-z_-]+/)+(?:[a-z_-]+(?:\.py|\.md|\.toml|\.sql)?)?|[a-z_]+\.py)(?![\w/…])")
PATTERNS = {"a/b"}  # shown as an ignore rule, not as a path
NAME = r"`[\w.]+`"
NAMED = re.compile(rf"((?:{NAME}(?:,| and| or)\s+)*{NAME})\s+(?:in|of)\s+`((?:[\w-]+/)*\w+\.(?:py|sql))`")
"""Names and the file that a page says they are in: "`one`, `two` and `three` in `folder/file.py`"."""

CORE = SOURCE / "core"
BESIDE = (
    ROOT,
    SOURCE,
    SOURCE.parent,
    ROOT / "docs",
    CORE,
    *(folder for folder in CORE.iterdir() if folder.is_dir()),
)
"""The folders at which the paths of the pages begin."""


def places(path: str) -> list[Path]:
    return [folder / path for folder in BESIDE if (folder / path).exists()]


@pytest.mark.parametrize("page", PAGES)
def test_every_path_that_a_page_names_exists(page: str) -> None:
    text = (ROOT / page).read_text(encoding="utf-8")
    named = {hit[1] for hit in PATH.finditer(text)} - PATTERNS
    assert [path for path in named if not places(path)] == []


@pytest.mark.parametrize("page", PAGES)
def test_every_name_that_a_page_finds_in_a_file_is_in_it(page: str) -> None:
    text = (ROOT / page).read_text(encoding="utf-8")
    named = [(name, path) for names, path in NAMED.findall(text) for name in re.findall(r"`([\w.]+)`", names)]
    assert named
    missing = [(name, path) for name, path in named if not any(is_in(name, file) for file in places(path))]
    assert missing == []


def is_in(name: str, file: Path) -> bool:
    words = set(re.findall(r"\w+", file.read_text(encoding="utf-8")))
    return {*name.split(".")} <= words
