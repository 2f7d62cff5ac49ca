"""The `settings:` of an agent file's front matter."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from upcall.core.error_texts import did_you_mean
from upcall.settings import Settings, setting_problem

if TYPE_CHECKING:
    import yaml

NAMES = Settings.__struct_fields__

Wrong = Callable[[int, str, str], None]
"""Takes a mistake: its line, its key and what is wrong."""


def read_settings(
    node: yaml.Node, line: Callable[[yaml.Node], int], wrong: Wrong
) -> tuple[Settings, dict[str, int]]:
    """The settings without those that have mistakes, and the line of each."""
    import yaml

    given: dict[str, Any] = {}
    lines: dict[str, int] = {}
    if not isinstance(node, yaml.MappingNode):
        wrong(line(node), "settings", "must be keys with values, such as {temperature: 0}")
        return Settings(), lines
    for key, value in node.value:
        name, at = str(key.value), line(key)
        if name not in NAMES:
            allowed = f"unknown key; allowed are {', '.join(NAMES)}.{did_you_mean(name, NAMES)}"
            wrong(at, f"settings.{name}", allowed)
        elif name in lines:
            wrong(at, f"settings.{name}", f"is written twice; first on line {lines[name]}")
        else:
            lines[name] = at
            _take(given, name, value, lambda problem, at=at, name=name: wrong(at, f"settings.{name}", problem))
    return Settings(**given), lines


def _take(given: dict[str, Any], name: str, node: yaml.Node, wrong: Callable[[str], None]) -> None:
    import yaml

    constructor: Any = yaml.constructor.SafeConstructor()
    try:
        value = constructor.construct_document(node)
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        wrong(f"can't be read: {str(error).splitlines()[0]}")
        return
    if problem := setting_problem(name, value):
        wrong(problem)
    else:
        given[name] = value


def unknown_to(model: str, settings: Settings | None) -> dict[str, str]:
    """What is wrong with each setting that the model's provider does not know, where the name tells that."""
    if settings is None:
        return {}
    from upcall.models.tuning import known_by_name

    known = known_by_name(model)
    text = f"{model} does not know this setting; it knows {', '.join(known or ())}"
    return {name: text for name in settings.given() if known is not None and name not in known}
