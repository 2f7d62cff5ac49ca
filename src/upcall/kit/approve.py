"""Which calls somebody has to approve: by tool and arguments, or by a preset's name. Children inherit it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from fnmatch import fnmatchcase
from typing import Any, cast

import msgspec

from upcall.agent import Kit
from upcall.errors import BadKit
from upcall.hooks import Hooks, Rule, approval_rule, inherited
from upcall.tools import Tool, is_own_tool

EDITS = ("edit_file", "run_python", "shell", "write_file")
"""What `edits_ask` has approved: the tools that ship and can change something."""

Globs = str | Sequence[str]
Rules = Mapping[str, bool | Mapping[str, Globs]]


def approve(rules: Rules | str) -> Kit:
    """Have calls approved before they run, in this agent's sessions and in all that they start.

    rules: a dict, or the name of a preset. The dict maps a tool's name, or a glob of names, to True, False, or
        globs for arguments, by name: all named arguments must match, and of a list of globs one. A tool's own name
        counts before globs. Presets: `read_only` (ask for all tools that are not marked `read_only`), `edits_ask`
        (for the tools that ship and change something), `all_ask`.
    """
    rule = _preset(rules) if isinstance(rules, str) else _by_name(_checked(rules))
    return Kit(Hooks(before_tool=[inherited(approval_rule(rule))]))


def _preset(name: str) -> Rule:
    presets: dict[str, Rule] = {
        "read_only": lambda tool, args: not tool.read_only and not is_own_tool(tool),
        "edits_ask": lambda tool, args: tool.name in EDITS,
        "all_ask": lambda tool, args: not is_own_tool(tool),
    }
    if name not in presets:
        raise BadKit(
            "approve", f"{name!r} is not a preset; the presets are {', '.join(presets)}, or give a dict of rules"
        )
    return presets[name]


def _by_name(rules: Rules) -> Rule:
    globs = [(name, wanted) for name, wanted in rules.items() if any(sign in name for sign in "*?[")]
    each: dict[str, list[Any]] = {name: [wanted] for name, wanted in rules.items()}  # by a tool's own name

    def rule(tool: Tool, args: Mapping[str, Any]) -> bool:
        found = each.get(tool.name)
        if found is None:
            found = each[tool.name] = [wanted for name, wanted in globs if fnmatchcase(tool.name, name)]
        return bool(found) and any(_asks(wanted, {**tool.defaults, **args}) for wanted in found)

    return rule


def _asks(wanted: bool | Mapping[str, Globs], args: Mapping[str, Any]) -> bool:
    if isinstance(wanted, bool):
        return wanted
    # an argument that is not there can't be seen to be harmless
    return all(name not in args or _fits(_text(args[name]), globs) for name, globs in wanted.items())


def _fits(text: str, globs: Globs) -> bool:
    return any(fnmatchcase(text, glob) for glob in ([globs] if isinstance(globs, str) else globs))


def _text(value: Any) -> str:
    return value if isinstance(value, str) else msgspec.json.encode(value, enc_hook=str).decode()


def _checked(rules: Any) -> Rules:
    if not isinstance(rules, Mapping):
        raise BadKit("approve", f"give a dict of rules, such as {{'write_file': True}}, not {rules!r}")
    for tool, wanted in cast("Mapping[Any, Any]", rules).items():
        if not isinstance(tool, str) or not tool:
            raise BadKit("approve", f"{tool!r} is not a valid tool name")
        if isinstance(wanted, bool):
            continue
        if not isinstance(wanted, Mapping) or not wanted:
            raise BadKit("approve", f"{tool!r}: give True, or globs by argument: {{'command': 'rm *'}}")
        for name, globs in cast("Mapping[Any, Any]", wanted).items():
            each: Any = [globs] if isinstance(globs, str) else globs
            if not isinstance(name, str) or not isinstance(each, list | tuple) or not _all_text(each):
                raise BadKit("approve", f"{tool!r}: {name!r}: {globs!r} is neither a glob nor a list of globs")
    return dict(cast("Rules", rules))


def _all_text(globs: Any) -> bool:
    check: Callable[[Any], bool] = lambda glob: isinstance(glob, str)  # noqa: E731
    return bool(globs) and all(map(check, globs))
