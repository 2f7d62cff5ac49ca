"""No text makes a regular expression read it again and again: a megabyte of anything takes little time."""

from __future__ import annotations

import contextlib
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from pace import within
from upcall.agentfiles.sidecar import key_lines
from upcall.errors import UpcallError
from upcall.kit.skillfile import load_skill
from upcall.links.mcp.config import ServerConfig
from upcall.mcp_wire.names import clean, server_prefix
from upcall.models.failures import Endpoint
from upcall.observe.bare_text import bare_text, begun_sequence
from upcall.observe.plain import one_line, plain
from upcall.observe.redact import Redactor
from upcall.safety.bounds import is_too_deep
from upcall.safety.framing import framed, harmless_memory
from upcall.safety.secrets import without_login, without_password
from upcall.safety.toml_text import read_toml

from .attacks import RUNS

pytestmark = pytest.mark.slow

SIZE = 1_000_000

MOST_SECONDS = 1.5
"""Seconds of CPU for a megabyte. An expression that starts anew at each place needs minutes."""

ENDPOINT = Endpoint("a server", "a model", "https://shop.example", "")


def _expanded(text: str) -> object:
    return ServerConfig("s", command=text[:200_000]).expanded({"a": "b"})


def _skill(text: str) -> object:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "SKILL.md")
        path.write_text(f"---\n{text[:999_000]}")
        return load_skill(path)


READERS: dict[str, Callable[[str], Any]] = {
    "is it nested too deeply": lambda text: is_too_deep("[" * 200 + text),
    "a team.toml": lambda text: read_toml(text[:150_000]),
    "a sidecar's lines": lambda text: key_lines(text[:20_000]),
    "variables without logins": lambda text: without_login(f"https://a:b@c/?token=d{text} @"),
    "a command without passwords": lambda text: without_password(f"a://b:c@{text}?token=d{text}"),
    "a description of a server": _expanded,
    "an error of a provider": ENDPOINT.clean,
    "a frame": lambda text: framed("child", text),
    "a memory": harmless_memory,
    "a screen": plain,
    "a line": lambda text: one_line(text, 200),
    "a text as the eye reads it": lambda text: (bare_text(text), begun_sequence(text)),
    "a name of a server": lambda text: (server_prefix(text), clean(text, 1000)),
    "hidden secrets": lambda text: Redactor().text(f"{text} @"),
    "a skill": _skill,
}


@pytest.mark.parametrize("reader", READERS)
def test_a_megabyte_of_any_beginning_is_read_in_little_time(reader: str) -> None:
    for name, run in RUNS.items():
        text = (run * (SIZE // len(run) + 1))[:SIZE]
        errors = contextlib.suppress(UpcallError, ValueError, RecursionError, IndexError)
        with within(MOST_SECONDS, of=name), errors:
            READERS[reader](text)
