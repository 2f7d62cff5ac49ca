"""The official conformance suite drives an agent with our MCP client. All that both revisions require passes.

Not scored by the suite, and not offered: client credentials, enterprise-managed authorization, DPoP and workload
identity, which are extensions.
"""

from __future__ import annotations

import asyncio
import os
import sys
from pathlib import Path

import pytest

from mcp_client.peers import HERE, NODE, PACKAGES

SUITE = PACKAGES / "conformance" / "dist" / "index.js"
PATIENCE = 500


@pytest.mark.slow
@pytest.mark.timeout(PATIENCE + 60)
@pytest.mark.parametrize(("revision", "scenarios"), [("2025-11-25", 18), ("2026-07-28", 32)])
async def test_the_client_conforms_to_a_revision(tmp_path: Path, revision: str, scenarios: int) -> None:
    process = await asyncio.create_subprocess_exec(
        NODE, str(SUITE), "client", "--command", f"{sys.executable} {HERE / 'conformance_client.py'}",
        "--requirements", revision, "--timeout", str(PATIENCE * 1000), cwd=tmp_path,
        stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.STDOUT,
        env={**os.environ, "PATH": f"{Path(NODE).parent}:{os.environ['PATH']}", "SLOTS": str(tmp_path / "slot")},
    )  # fmt: skip
    out, _ = await process.communicate()

    summary = out.decode().partition("=== SUITE SUMMARY ===")[2]
    required, _, not_scored = summary.partition("Not scored")
    failed = [
        line for line in required.splitlines() if line.startswith("✗") and line.split(":")[0][2:] not in not_scored
    ]
    assert process.returncode == 0, summary
    assert failed == []
    assert sum(line.startswith("✓") for line in required.splitlines()) >= scenarios
