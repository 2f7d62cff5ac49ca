"""The reference is complete: every name, hook point, event type, error and sidecar key is in it."""

from __future__ import annotations

import inspect
import re
from typing import get_args

import upcall
from house.measure import ROOT
from upcall import errors, events, hooks, kit, models, observe
from upcall.agentfiles import team_toml as teamfile
from upcall.cli import build_commands
from upcall.cli.options import long_options
from upcall.core.routing import policy

REFERENCE = ROOT / "docs" / "reference.md"
LIST = """\
docs/reference.md has a section `## Names` in which each line that begins with `- ` or `| ` and a name in backticks
documents that name of `upcall.__all__`: "- `Agent`: what it is"."""


def undocumented(names: set[str]) -> set[str]:
    """Those that the reference, once there is one, does not have in backticks."""
    if not REFERENCE.exists():
        return set()
    quoted = " ".join(re.findall(r"`+([^`]+)`+", REFERENCE.read_text(encoding="utf-8")))
    return names - set(re.findall(r"\w+", quoted))


def test_every_hook_point_is_in_the_reference() -> None:
    assert set(inspect.signature(hooks.Hooks).parameters) == set(hooks.POINTS)
    assert not undocumented(set(hooks.POINTS))


def test_every_event_type_is_in_the_reference() -> None:
    assert not undocumented({str(event.__struct_config__.tag) for event in get_args(events.AnyEvent)})


def error_classes() -> dict[str, type[Exception]]:
    """Every error that the module declares, by name."""
    declared = [one for _, one in inspect.getmembers(errors, inspect.isclass) if one.__module__ == errors.__name__]
    return {one.__name__: one for one in declared if issubclass(one, Exception)}


def error_section() -> str:
    """The reference's section about errors: their tree and their table."""
    section = re.search(
        r"^## Errors$(.*?)(?=^## )", REFERENCE.read_text(encoding="utf-8"), re.DOTALL | re.MULTILINE
    )
    assert section
    return section[1]


def drawn_tree(text: str) -> dict[str, str]:
    """The errors of a tree that is drawn in a text, each with the one above it; "" for the root."""
    tree: dict[str, str] = {}
    above: list[str] = []
    for lines, name in re.findall(r"^((?:[│ ]   )*(?:[├└]── )?)([A-Z]\w+)", text, re.MULTILINE):
        if lines or name == errors.UpcallError.__name__:
            del above[len(lines) // 4 :]
            assert name not in tree
            tree[name] = above[-1] if above else ""
            above.append(name)
    return tree


def test_the_errors_are_drawn_as_the_tree_that_they_are() -> None:
    classes = error_classes()
    real = {name: one.__bases__[0].__name__ for name, one in classes.items()} | {"UpcallError": ""}
    assert drawn_tree(error_section().split("```")[1].removeprefix("text\n")) == real
    assert drawn_tree(errors.__doc__ or "") == real


def test_every_error_that_is_raised_has_a_row_in_the_reference_with_its_fields() -> None:
    rows: dict[str, str] = {}
    for line in error_section().splitlines():
        for name in re.findall(r"`([A-Z]\w+)`", line.split(" | ")[0]) if line.startswith("| `") else ():
            rows[name] = line.split(" | ")[1]
    missing: list[str] = []
    for name, one in error_classes().items():
        if not one.__subclasses__():
            missing += [name] if name not in rows else []
        declared = vars(one).get("__init__")
        fields = re.findall(r"self\.(\w+)", inspect.getsource(declared)) if declared else []
        known = rows.get(name, "") if name != "StoreError" else rows["StoreDamaged"]
        missing += [f"{name}.{field}" for field in dict.fromkeys(fields) if f"`{field}`" not in known]
    assert not missing


def test_every_sidecar_key_is_in_the_reference() -> None:
    assert not undocumented({part for key in policy.KEYS for part in key.split(".")})


def test_every_key_of_a_team_file_is_in_the_reference() -> None:
    assert not undocumented(set(teamfile.KEYS))


def test_every_command_has_a_row_in_the_reference_with_all_its_options() -> None:
    rows: dict[str, str] = {}
    for line in REFERENCE.read_text(encoding="utf-8").splitlines():
        if found := re.match(r"\| `([a-z]+)[ `]", line):
            rows[found[1]] = rows.get(found[1], "") + line
    missing: list[str] = []
    for command in build_commands().all:
        known = rows.get(command.name)
        missing += [command.name] if known is None else []
        own = set(long_options(command.parser)) - {"--help", "--store", "--trace"}
        missing += [f"{command.name} {option}" for option in sorted(own) if f"`{option}" not in (known or "")]
    assert not missing


def test_every_exported_name_exists_and_is_in_the_reference() -> None:
    exported: list[str] = list(getattr(upcall, "__all__", ()))
    assert sorted(exported) == sorted(set(exported))
    assert not [name for name in exported if not hasattr(upcall, name)]
    if REFERENCE.exists():
        text = REFERENCE.read_text(encoding="utf-8")
        section = re.search(r"^## Names$(.*?)(?=^## |\Z)", text, re.DOTALL | re.MULTILINE)
        assert section, LIST
        listed = set(re.findall(r"^[-|] `(\w+)", section[1], re.MULTILINE))
        assert listed == set(exported), LIST


def test_every_piece_of_the_kit_and_every_model_is_in_the_reference() -> None:
    assert not undocumented({*kit.__all__, *models.__all__})


def test_every_name_of_what_is_shown_is_in_the_reference() -> None:
    assert not [name for name in observe.__all__ if not hasattr(observe, name)]
    text = REFERENCE.read_text(encoding="utf-8")
    section = re.search(r"^## What is shown$(.*?)(?=^## |\Z)", text, re.DOTALL | re.MULTILINE)
    assert section
    assert set(re.findall(r"^\| `(\w+)", section[1], re.MULTILINE)) == set(observe.__all__)
