"""Read the `settings:` of an agent file's front matter."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from upcall.core.error_texts import did_you_mean
from upcall.settings import Settings, setting_problem

if TYPE_CHECKING:
    import yaml

NAMES = Settings.__struct_fields__

Report = Callable[[int, str, str], None]
"""Reports a mistake: its line, its key and a text."""


def read_settings(
    node: yaml.Node, line: Callable[[yaml.Node], int], report: Report
) -> tuple[Settings, dict[str, int]]:
    """Return the settings without mistakes, and the line of each."""
    import yaml

    values: dict[str, Any] = {}
    lines: dict[str, int] = {}
    if not isinstance(node, yaml.MappingNode):
        report(line(node), "settings", "must be keys with values, such as {temperature: 0}")
        return Settings(), lines
    for key, value in node.value:
        name, at = str(key.value), line(key)
        if name not in NAMES:
            allowed = f"unknown key; allowed are {', '.join(NAMES)}.{did_you_mean(name, NAMES)}"
            report(at, f"settings.{name}", allowed)
        elif name in lines:
            report(at, f"settings.{name}", f"is written twice; first on line {lines[name]}")
        else:
            lines[name] = at
            _read_setting(
                values, name, value, lambda problem, at=at, name=name: report(at, f"settings.{name}", problem)
            )
    return Settings(**values), lines


def _read_setting(values: dict[str, Any], name: str, node: yaml.Node, report: Callable[[str], None]) -> None:
    import yaml

    constructor: Any = yaml.constructor.SafeConstructor()
    try:
        value = constructor.construct_document(node)
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        report(f"can't be read: {str(error).splitlines()[0]}")
        return
    if problem := setting_problem(name, value):
        report(problem)
    else:
        values[name] = value


def unknown_to(model: str, settings: Settings | None) -> dict[str, str]:
    """Return an error text for each setting that the model's provider, known by the name, does not have."""
    if settings is None:
        return {}
    from upcall.models.tuning import known_by_name

    known = known_by_name(model)
    text = f"{model} does not support this setting; it supports {', '.join(known or ())}"
    return {name: text for name in settings.given() if known is not None and name not in known}
