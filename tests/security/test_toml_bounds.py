"""TOML that came with a repository: no team.toml below its size takes long or much memory."""

from __future__ import annotations

import tomllib
from pathlib import Path

import pytest

from pace import within
from upcall import load_agents
from upcall.errors import SetupError, UpcallError
from upcall.observe.option_files import read_mapping
from upcall.safety.toml_text import read_toml

from .measuring import grown

_PARTS = 45_000

LONG_KEYS = {
    "a key": "a." * _PARTS + "a=1",
    "a header": "[" + "a." * _PARTS + "a]",
    "a header of a list": "[[" + "a." * _PARTS + "a]]",
    "quoted parts": '"a".' * 20_000 + "a=1",
    "parts in single quotes": "'a' . " * 15_000 + "a=1",
    "an inline table": "b = {" + "a." * _PARTS + "a=1}",
    "after a comment with a quote": "# it's \"\n" + "a." * _PARTS + "a=1",
    "after a text with a comment": 'b = "#"\n' + "a." * _PARTS + "a=1",
}


@pytest.mark.parametrize("name", LONG_KEYS)
def test_a_key_of_many_parts_is_refused_before_it_is_read(name: str, tmp_path: Path) -> None:
    (tmp_path / "a.md").write_text("---\nname: a\ndescription: x\n---\nhello\n")
    (tmp_path / "team.toml").write_text(LONG_KEYS[name])
    with within(1), grown() as took, pytest.raises(UpcallError, match="has more than 10 parts"):
        load_agents(tmp_path)
    took.check()


@pytest.mark.parametrize(
    "text",
    [
        'about = "see a.b.c.d.e.f.g.h.i.j.k.l.m"\n',
        "about = '''\na.b.c.d.e.f.g.h.i.j.k.l.m=1\n'''\n",
        'about = """\n\\"""a.b.c.d.e.f.g.h.i.j.k.l.m=1\n"""\n',
        "# a.b.c.d.e.f.g.h.i.j.k.l.m = 1\na.b.c.d.e.f.g.h.i.j = 1\n",
        "numbers = [1.5, 2.5, 3.5, 1.5, 1.5, 1.5, 1.5, 1.5, 1.5, 1.5, 1.5, 1.5, 1.5]\n",
    ],
)
def test_what_only_looks_like_a_key_of_many_parts_is_read(text: str) -> None:
    assert read_toml(text) == tomllib.loads(text)


@pytest.mark.parametrize(
    "text", ["a" * 99_000, "a " * 49_000, '"' * 99_000, "'''" + "'" * 90_000, '"""' + "\\" * 90_000]
)
def test_looking_for_such_keys_takes_little_time(text: str) -> None:
    with within(1), pytest.raises(ValueError, match=r"\S"):
        read_toml(text)


def test_a_file_of_options_has_no_key_of_many_parts_either(tmp_path: Path) -> None:
    path = tmp_path / "prices.toml"
    path.write_text(LONG_KEYS["a key"])
    with pytest.raises(SetupError, match=r"prices\.toml can't be read as prices: .* has more than 10 parts"):
        read_mapping(path, "prices")
