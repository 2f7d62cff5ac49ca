"""Hatchling, which asks for Node where a wheel has to build the page and the system has none that is new enough.

A build hook could ask, too, but hatchling would then ask for an editable install as well, which builds no page.
"""

from __future__ import annotations

from typing import Any

import build_page
from hatchling import build as hatchling
from hatchling.build import *  # noqa: F403


def get_requires_for_build_wheel(config_settings: dict[str, Any] | None = None) -> list[str]:
    """What building a wheel needs."""
    needed = [] if build_page.is_current() or build_page.find_node() else [build_page.NODE_WHEEL]
    return [*hatchling.get_requires_for_build_wheel(config_settings), *needed]
