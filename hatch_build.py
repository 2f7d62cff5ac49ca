"""Put the built page into the wheel. An editable install builds nothing, and `make demo` needs no Node."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

sys.path.insert(0, str(Path(__file__).parent / "page"))
import build_page


class PageHook(BuildHookInterface):  # type: ignore[type-arg]
    """Builds the page for a wheel."""

    PLUGIN_NAME = "custom"

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Build the page and add it to the wheel."""
        if version != "editable":
            build_data["force_include"][str(build_page.build())] = "upcall/hosts/web/page"
