#!/usr/bin/env python3
"""Make the environments that the benchmark's peers run in: .venvs/<peer> beside this file.

    python3 venvs.py [--peers a,b]

What each holds is in peers.txt. Upcall is installed from this repository like the others, not linked to it, so
that its size and import time are measured the same way. What is up to date is left as it is.
"""

from __future__ import annotations

import argparse
import hashlib
import os
import subprocess
import sys
import venv
from pathlib import Path

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent
VENVS = Path(os.environ.get("BENCH_VENVS") or HERE / ".venvs")
PIP = ["-m", "pip", "install", "-qq", "--disable-pip-version-check", "--no-input"]


def wanted() -> dict[str, list[str]]:
    """What pip installs for each peer."""
    lines = [line.split() for line in (HERE / "peers.txt").read_text().splitlines()]
    found = {words[0]: words[1:] for words in lines if words and words[0] != "#"}
    ours = {"upcall": [str(ROOT)], "upcall_code": [f"{ROOT}[code]"], "upcall_postgres": [f"{ROOT}[postgres]"]}
    return {**ours, **found}


def made_from(packages: list[str]) -> str:
    """What an environment depends on: the names, and for Upcall its own files."""
    if not packages[0].startswith(str(ROOT)):
        return " ".join(packages)
    files = [ROOT / "pyproject.toml", *sorted(f for kind in ("*.py", "*.sql") for f in (ROOT / "src").rglob(kind))]
    return hashlib.sha256(b"\0".join(f.read_bytes() for f in files)).hexdigest()


def make(name: str, packages: list[str]) -> bool:
    """Create or renew one environment unless it is up to date; returns whether it is there now."""
    python, stamp = VENVS / name / "bin" / "python", VENVS / name / "made-from"
    line = made_from(packages)
    if stamp.exists() and stamp.read_text() == line:
        return True
    print(f"bench: installing {name}", flush=True)
    if not python.exists():
        venv.create(VENVS / name, with_pip=True, clear=True)
    if subprocess.run([python, *PIP, "--upgrade", *packages]).returncode:
        print(f"bench: {name} could not be installed; it is left out", flush=True)
        return False
    stamp.write_text(line)
    return True


def main() -> None:
    ap = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    ap.add_argument("--peers", default="", help="default: all")
    o = ap.parse_args()
    packages = wanted()
    chosen = [p for p in o.peers.split(",") if p] or list(packages)
    chosen = list(dict.fromkeys("upcall" if p == "upcall_deep" else p for p in chosen))
    more = [f"{p}_{part}" for p in chosen for part in ("code", "postgres")]
    chosen += [name for name in more if name in packages and name not in chosen]
    if any(name.endswith("_postgres") for name in chosen) and "postgres" not in chosen:
        chosen.append("postgres")
    unknown = [p for p in chosen if p not in {*packages, "bare"}]
    if unknown:
        ap.error(f"no such peer: {', '.join(unknown)}; there are {', '.join([*packages, 'bare'])}")
    made = [make(name, packages[name]) for name in chosen if name != "bare"]
    sys.exit(1 if made and not any(made) else 0)


if __name__ == "__main__":
    main()
