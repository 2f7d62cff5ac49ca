"""Read TOML that somebody else wrote.

`tomllib` takes time and memory by the square of the parts of a key: `a.a.a…` of 200 kB needs gigabytes.
"""

from __future__ import annotations

import re
import tomllib
from typing import Any

_MOST_PARTS = 10
_LONG_TEXT = r'"""(?s:\\.|[^\\])*?(?:"""|\\?\Z)|' + r"'''(?s:.)*?(?:'''|\Z)"
_TEXT = _LONG_TEXT + r'|"(?:[^"\\\n]++|\\.)*+"?' + r"|'[^'\n]*+'?"
"""A text that does not end reaches to the end, or to the end of its line, so that it is read only once."""

_TEXT_OR_COMMENT = re.compile(f"({_TEXT})|#[^\n]*+")
_END = r"\s.=\[\]{},"
_LONG_KEY = re.compile(rf"(?<![^{_END}])(?:[^{_END}]++[ \t]*+\.[ \t]*+){{{_MOST_PARTS}}}")


def read_toml(text: str) -> dict[str, Any]:
    """Return the table in a text. ValueError (TOMLDecodeError too) and RecursionError say why it can't be read."""
    bare = _TEXT_OR_COMMENT.sub(lambda found: "x" if found[1] else "", text)
    if found := _LONG_KEY.search(bare):
        problem = f"the key that begins with {found[0][:40]!r} has more than {_MOST_PARTS} parts"
        line = bare.count("\n", 0, found.start()) + 1
        raise ValueError(f"{problem} (near line {line})")
    return tomllib.loads(text)
