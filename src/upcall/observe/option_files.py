"""Files with which people say how things are shown: labels, prices, what to hide."""

from __future__ import annotations

import os
from typing import Any, cast

import msgspec

from upcall.errors import SetupError


def read_mapping(path: str | os.PathLike[str], what: str) -> dict[str, Any]:
    """Read a small JSON or TOML file that holds an object; SetupError names the file."""
    from upcall.safety.small_files import read_small

    try:
        body = read_small(os.fspath(path))
        if os.fspath(path).endswith(".toml"):
            from upcall.safety.toml_text import read_toml

            data: Any = read_toml(body.decode())
        else:
            data = msgspec.json.decode(body)
    except (OSError, ValueError, RecursionError, msgspec.MsgspecError) as error:
        raise SetupError(f"{path} can't be read as {what}: {error}") from None
    if not isinstance(data, dict):
        raise SetupError(f"{path} can't be read as {what}: it is not an object")
    return cast("dict[str, Any]", data)
