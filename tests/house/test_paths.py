"""The files and folders that the pages for contributors name are there."""

from __future__ import annotations

import re

import pytest

from house.measure import ROOT, SOURCE

PAGES = ("CONTRIBUTING.md", "docs/design.md", "docs/where-to-change-what.md")
PATH = re.compile(r"(?<![\w/.-])((?:[a-z_-]+/)+(?:[a-z_-]+(?:\.py|\.md|\.toml|\.sql)?)?|[a-z_]+\.py)(?![\w/…])")
PATTERNS = {"a/b"}  # shown as an ignore rule, not as a path


@pytest.mark.parametrize("page", PAGES)
def test_every_path_that_a_page_names_exists(page: str) -> None:
    text = (ROOT / page).read_text(encoding="utf-8")
    named = {hit[1] for hit in PATH.finditer(text)} - PATTERNS
    core = SOURCE / "core"
    beside = (
        ROOT,
        SOURCE,
        SOURCE.parent,
        ROOT / "docs",
        core,
        *(folder for folder in core.iterdir() if folder.is_dir()),
    )
    missing = [path for path in named if not any((folder / path).exists() for folder in beside)]
    assert missing == []
