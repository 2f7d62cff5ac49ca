"""What people read: every snippet and every example runs as printed, and every link leads somewhere."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from house.measure import ROOT
from house.offline import blocks
from quick import slow_but

PAGES = sorted([ROOT / "README.md", ROOT / "CHANGELOG.md", *(ROOT / "docs").glob("**/*.md")])
FIRST_READ = [ROOT / "README.md", ROOT / "docs" / "tour.md", ROOT / "docs" / "how-to" / "hooks.md"]
"""What `make check` runs; `make docs` and `make test` run every page."""

OFFLINE = Path(__file__).with_name("offline.py")


def run_offline(path: Path, folder: Path) -> None:
    """Run a page or a program in an empty folder, with no network and no keys; it has a minute."""
    clean = {k: v for k, v in os.environ.items() if not k.endswith("_API_KEY") and not k.startswith("UPCALL_")}
    done = subprocess.run(
        [sys.executable, "-W", "error", str(OFFLINE), str(path)],
        cwd=folder,
        env=clean,
        capture_output=True,
        text=True,
        timeout=60,
        stdin=subprocess.DEVNULL,
        check=False,
    )
    said = (done.stdout + done.stderr).replace(str(OFFLINE), "offline.py")
    assert done.returncode == 0, f"{path.relative_to(ROOT)} ended with {done.returncode}:\n{said[-4000:]}"


@pytest.mark.parametrize("page", slow_but(FIRST_READ, PAGES), ids=lambda p: str(p.relative_to(ROOT)))
def test_every_python_snippet_of_a_page_runs(page: Path, tmp_path: Path) -> None:
    if any(True for _ in blocks(page.read_text(encoding="utf-8"))):
        run_offline(page, tmp_path)


@pytest.mark.slow
def test_the_tour_can_be_pasted_into_the_asyncio_console(tmp_path: Path) -> None:
    tour = (ROOT / "docs" / "tour.md").read_text(encoding="utf-8")
    typed = "\n".join(block.text for block in blocks(tour))

    done = subprocess.run(
        [sys.executable, "-m", "asyncio"],
        cwd=tmp_path,
        input=typed,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )

    assert not re.findall(r"^\w*(?:Error|Warning|Exception|Traceback)\b.*", done.stderr, re.MULTILINE), done.stderr
    assert "Hello, reader!" in done.stdout


@pytest.mark.slow
def test_every_example_runs_offline(subtests: pytest.Subtests, tmp_path: Path) -> None:
    for program in sorted((ROOT / "examples").glob("*.py")):
        with subtests.test(program.name):
            folder = tmp_path / program.stem
            folder.mkdir()
            run_offline(program, folder)


def test_the_page_about_web_services_shows_the_program_of_the_examples() -> None:
    page = (ROOT / "docs" / "how-to" / "web-service.md").read_text(encoding="utf-8")
    for program in sorted((ROOT / "examples" / "web_service").glob("*.py")):
        _, *parts = program.read_text(encoding="utf-8").strip().split("\n\n\n")  # the first one is the imports
        assert parts
        assert [part for part in parts if f"\n{part}\n" not in page] == []


@pytest.mark.parametrize("page", PAGES, ids=lambda p: str(p.relative_to(ROOT)))
def test_every_link_between_pages_leads_to_a_file(page: Path) -> None:
    targets = re.findall(r"\]\(([^)\s#]+)[^)]*\)", prose(page))
    near = [t for t in targets if "://" not in t and not t.startswith("mailto:")]
    assert not [t for t in near if not (page.parent / t).exists()]


@pytest.mark.parametrize("page", PAGES, ids=lambda p: str(p.relative_to(ROOT)))
def test_every_link_to_a_heading_leads_to_one(page: Path) -> None:
    lost: list[str] = []
    for target, heading in re.findall(r"\]\(([^)\s#]*)#([^)\s]+)\)", prose(page)):
        other = page.parent / target if target else page
        if "://" not in target and other.suffix == ".md" and heading not in headings(other):
            lost.append(f"{target}#{heading}")
    assert not lost


def prose(page: Path) -> str:
    """The text of a page without its blocks of code."""
    return re.sub(r"```.*?```", "", page.read_text(encoding="utf-8"), flags=re.DOTALL)


def headings(page: Path) -> set[str]:
    """The anchors of a page's headings, as GitHub makes them."""
    titles = re.findall(r"^#+ (.+)$", prose(page), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") for title in titles}


def test_the_readme_has_fewer_than_600_words() -> None:
    assert len((ROOT / "README.md").read_text(encoding="utf-8").split()) < 600


def test_blocks_share_a_page_and_one_marked_as_not_run_is_only_compiled(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    parts = ["```python\nx = 1\n```", "<!-- not run: a key is needed -->\n\n```python\n1 / 0\n```"]
    parts.append("- in a list:\n  ```python\n  import asyncio\n  await asyncio.sleep(0)\n  assert x == 1\n  ```")
    page.write_text("\n\n".join(parts))

    found = list(blocks(page.read_text()))

    assert [(b.line, b.runs) for b in found] == [(1, True), (7, False), (12, True)]
    subprocess.run([sys.executable, str(OFFLINE), str(page)], check=True, timeout=60)


@pytest.mark.slow
def test_a_failing_snippet_names_its_page_and_line(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text("# Title\n\n```python\nx = 1\nx / 0\n```\n")

    done = subprocess.run(
        [sys.executable, str(OFFLINE), str(page)], check=False, timeout=60, capture_output=True, text=True
    )

    assert done.returncode == 1
    assert 'page.md", line 5' in done.stderr


@pytest.mark.slow
def test_a_program_that_reaches_for_the_network_fails(tmp_path: Path) -> None:
    program = tmp_path / "program.py"
    program.write_text("import socket\nsocket.create_connection(('example.org', 80), timeout=1)\n")

    done = subprocess.run(
        [sys.executable, str(OFFLINE), str(program)], check=False, timeout=60, capture_output=True, text=True
    )

    assert done.returncode == 1
    assert "tried to reach example.org" in done.stderr
