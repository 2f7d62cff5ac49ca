"""Where a test's sessions are kept: in memory and in a file, each test in both."""

from __future__ import annotations

from core.conftest import place

__all__ = ["place"]
