"""The page is built once, however many processes run the tests, and each of them starts one browser."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Generator

import pytest

from page.browser import HERE, ROOT, started_browser


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """A browser takes its time."""
    for item in items:
        if item.path.is_relative_to(HERE):
            item.add_marker(pytest.mark.slow)


@pytest.fixture(scope="session", autouse=True)
def built_page() -> None:
    """The page as its sources are now."""
    subprocess.run([sys.executable, ROOT / "page" / "build_page.py"], check=True, timeout=600)


@pytest.fixture(scope="session", autouse=True)
def chromium(tmp_path_factory: pytest.TempPathFactory) -> Generator[None]:
    """The browser of all tests."""
    with started_browser(tmp_path_factory.mktemp("chromium")):
        yield
