"""docs/security.md keeps its word: each promise names tests, the tests exist, and a hole can be reported."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent.parent
PAGE = (ROOT / "docs" / "security.md").read_text()


def section(title: str) -> str:
    """A section of the page, up to the next one of its level."""
    level = title.partition(" ")[0]
    return re.split(rf"\n(?=#{{1,{len(level)}}} )", PAGE[PAGE.index(f"\n{title}\n") + 1 :])[0]


def known_tests() -> set[str]:
    files = (ROOT / "tests").rglob("test_*.py")
    return {name for path in files for name in re.findall(r"def (test_\w+)", path.read_text())}


def test_every_test_that_the_page_names_exists() -> None:
    assert {*re.findall(r"`(test_\w+)`", PAGE)} <= known_tests()


def test_every_promise_names_a_test_or_links_to_where_they_are() -> None:
    promises = re.findall(r"^- .*?(?=^- |^\*\*|\Z)", section("### What is promised"), re.DOTALL | re.MULTILINE)
    assert len(promises) > 10
    for promise in promises:
        assert re.search(r"`test_\w+`|\(#bounds\)", promise), promise


@pytest.mark.parametrize(
    "who",
    [
        "a model's output",
        "a child's text",
        "a tool's result",
        "a repository",
        "a provider",
        "an MCP server",
        "other users",
    ],
)
def test_the_threat_model_says_what_each_hostile_party_controls_and_reaches(who: str) -> None:
    (row,) = [line for line in section("## Threat model").splitlines() if line.startswith(f"| {who}")]
    assert all(cell.strip() for cell in row.strip("|").split("|"))


def test_a_hole_is_reported_in_private_and_without_an_address() -> None:
    text = (ROOT / "SECURITY.md").read_text()
    assert "Report a vulnerability" in text
    assert not re.search(r"@|https?://|mailto:", text)
    assert "SECURITY.md" in (ROOT / "README.md").read_text()
    assert "SECURITY.md" in PAGE
