"""The two eras of the Model Context Protocol, and the error codes by which they differ."""

from __future__ import annotations

from typing import Literal

Era = Literal["2026", "legacy"]
"""`2026`: no handshake, questions are results of a call. `legacy`: a handshake, the server sends requests."""

MODERN_VERSION = "2026-07-28"
LEGACY_VERSION = "2025-11-25"

INVALID_PARAMS = -32602
CONNECTION_CLOSED = -32000
REQUEST_TIMEOUT = -32001
HEADER_MISMATCH = -32020
URL_REQUIRED = -32042
"""A legacy server wants the person to open a page before it runs the call (2025-11-25 only)."""
