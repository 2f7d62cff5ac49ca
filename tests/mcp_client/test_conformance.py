"""The official conformance suite drives an agent with our MCP client. All that both revisions require passes.

Not scored by the suite, and not offered: client credentials, enterprise-managed authorization, DPoP and workload
identity, which are extensions.
"""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from mcp_client.peers import HERE, NODE, PACKAGES

pytestmark = pytest.mark.slow

SUITE = PACKAGES / "conformance" / "dist" / "index.js"
PATIENCE = 300
"""Seconds for a whole revision. The suite starts all scenarios at once; a few run at the same time."""


@asynccontextmanager
async def clients(path: Path) -> AsyncGenerator[str]:
    """Have clients run in forks of one process, and yield the command that starts one."""
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "mcp_client.conformance_server", str(path), cwd=HERE.parent,
        env={**os.environ, "PYTHONPATH": str(HERE.parent)}, start_new_session=True,
    )  # fmt: skip
    try:
        while not path.exists():
            assert process.returncode is None
            await asyncio.sleep(0.05)
        yield f"{sys.executable} -I -S {HERE / 'conformance_start.py'} {path}"
    finally:
        os.killpg(process.pid, signal.SIGKILL)
        await process.wait()


@pytest.mark.timeout(PATIENCE + 60)
@pytest.mark.parametrize(("revision", "scenarios"), [("2025-11-25", 18), ("2026-07-28", 32)])
async def test_the_client_conforms_to_a_revision(tmp_path: Path, revision: str, scenarios: int) -> None:
    async with clients(tmp_path / "socket") as command:
        process = await asyncio.create_subprocess_exec(
            NODE, str(SUITE), "client", "--command", command, "--requirements", revision,
            "--timeout", str(PATIENCE * 1000), cwd=tmp_path,
            stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.STDOUT,
            env={**os.environ, "PATH": f"{Path(NODE).parent}:{os.environ['PATH']}"},
        )  # fmt: skip
        out, _ = await process.communicate()

    summary = out.decode().partition("=== SUITE SUMMARY ===")[2]
    required, _, not_scored = summary.partition("Not scored")
    lines = [line for line in required.splitlines() if line[:1] in "✗✓" and line]
    failed = [line for line in lines if line[0] == "✗" and line.split(":")[0][2:] not in not_scored]
    assert process.returncode == 0, summary
    assert failed == []
    assert sum(line[0] == "✓" for line in lines) >= scenarios
