"""The table of bounds in docs/security.md names tests that exist."""

from __future__ import annotations

import re
from pathlib import Path

TESTS = Path(__file__).parent.parent


def table_rows() -> list[list[str]]:
    text = (TESTS.parent / "docs" / "security.md").read_text().partition("## Bounds")[2]
    lines = [line for line in text.split("\n## ")[0].splitlines() if line.startswith("|")]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines[2:]]


def test_every_row_of_the_table_of_bounds_names_tests_that_exist() -> None:
    known = {name for path in TESTS.rglob("test_*.py") for name in re.findall(r"def (test_\w+)", path.read_text())}

    assert len(table_rows()) > 5
    for what, bound, change, tests in table_rows():
        assert what
        assert bound
        assert change, what
        named = re.findall(r"`(test_\w+)`", tests)
        assert named, what
        assert {*named} <= known, what
