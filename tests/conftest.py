"""Set-up that every test shares: how hard Hypothesis tries, where files go, and which folder is slow."""

from __future__ import annotations

import gc
import os
import re
import shutil
import signal
import tempfile
from collections.abc import Generator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

from delayed import delay_every_store

CHAOS, PAGE = (Path(__file__).parent / name for name in ("chaos", "page"))
ALL_SLOW = re.compile(r"^pytestmark = \[?pytest\.mark\.slow", re.MULTILINE)

settings.register_profile("dev", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.register_profile("ci", settings.get_profile("dev"), derandomize=True, print_blob=True)
settings.register_profile("full", settings.get_profile("dev"), max_examples=2000)
usual = "ci" if os.environ.get("CI") else "dev"
settings.register_profile("quick", settings.get_profile(usual), max_examples=20)
settings.load_profile("full" if os.environ.get("UPCALL_CHAOS") == "full" else usual)

# A commit waits for the disk, and there are many thousands: where memory can hold the files of the tests, it does.
MEMORY = Path("/dev/shm")
if MEMORY.is_dir() and shutil.disk_usage(MEMORY).free > 2 * 2**30:
    os.environ.setdefault("PYTEST_DEBUG_TEMPROOT", str(MEMORY))


# Logs are noted in the user's state folder: the tests have one of their own, and what they start inherits it.
_STATE = tempfile.TemporaryDirectory(prefix="upcall-tests-state-", dir=os.environ.get("PYTEST_DEBUG_TEMPROOT"))
os.environ["XDG_STATE_HOME"] = _STATE.name


def pytest_addoption(parser: pytest.Parser) -> None:
    """`--delayed`: no append is done at once. `--postgres`: logs are in databases, not in files."""
    parser.addoption("--delayed", action="store_true", help="run on stores whose appends are always delayed")
    parser.addoption("--postgres", action="store_true", help="run on stores in PostgreSQL in place of files")


def pytest_configure(config: pytest.Config) -> None:
    """Prepare signals and stores before any test module is imported."""
    if (
        signal.getsignal(signal.SIGINT) is signal.SIG_IGN
    ):  # started in the background: what tests start would ignore it
        signal.signal(signal.SIGINT, signal.default_int_handler)
    if config.getoption("--delayed"):
        delay_every_store()
    if config.getoption("--postgres"):
        from postgres import put_every_store_in_postgres

        put_every_store_in_postgres()


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """Keep the garbage collector away from modules and tests, which live as long as the process does."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.collect()
        gc.freeze()
        gc.enable()


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Leave out the modules all of whose tests are slow: some import a browser or an SDK, which takes long."""
    if config.option.markexpr != "not slow":
        return None
    if collection_path in (CHAOS, PAGE):
        return True
    is_test = collection_path.suffix == ".py" and collection_path.name.startswith("test_")
    return True if is_test and ALL_SLOW.search(collection_path.read_text(encoding="utf-8")) else None


@pytest.fixture(autouse=True)
def own_databases(request: pytest.FixtureRequest) -> Generator[None]:
    """Take back the databases that a test used, if any."""
    yield
    if request.config.getoption("--postgres"):
        from postgres import drop_databases

        drop_databases()


def pytest_sessionfinish() -> None:
    """Let the last collection find whatever is still open."""
    gc.unfreeze()


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_auto_num_workers(config: pytest.Config) -> int:
    """As many as there are cores, and one more for the slow tests, which wait for processes and clocks."""
    return (os.cpu_count() or 1) + (config.option.markexpr != "not slow")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """What kills processes takes its time. With `--postgres` there are no files."""
    for item in items:
        if item.path.is_relative_to(CHAOS):
            item.add_marker(pytest.mark.slow)
    if config.getoption("--postgres"):
        items[:] = [item for item in items if item.get_closest_marker("in_file") is None]
