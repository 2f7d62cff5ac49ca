"""Require approval for calls, by tool and arguments or by a preset's name. Children inherit the rules."""

from __future__ import annotations

import unicodedata
from collections.abc import Callable, Mapping, Sequence
from fnmatch import fnmatchcase
from typing import Any, cast

import msgspec

from upcall.agent import Kit
from upcall.errors import BadKit
from upcall.hooks import Hooks, Rule, approval_rule, inherited
from upcall.safety.bounds import PATH
from upcall.tools import SchemaTool, Tool, is_own_tool

EDITS = ("edit_file", "run_python", "shell", "write_file")
"""The built-in tools that can change something. The preset `edits_ask` requires approval for them, and for tools
that others describe by a schema and that are not known to be read-only."""

_FILE_TOOLS = ("edit_file", "glob", "grep", "ls", "read_file", "write_file")
"""The built-in tools with a path in the workspace, which can be written in several ways."""

_COMPARED = 100_000
"""Characters of an argument that is compared with globs; as many as a command of the tool `shell` may have."""

Globs = str | Sequence[str]
Rules = Mapping[str, bool | Mapping[str, Globs]]


def approve(rules: Rules | str) -> Kit:
    """Require approval before calls run, in this agent's sessions and in all their descendants.

    rules: a dict, or the name of a preset. The dict maps a tool's name, or a glob of names, to True, False, or
        globs for arguments, by name: all named arguments must match; of a list of globs, one must match. A tool's
        own name takes precedence over globs. A `path` of the built-in file tools matches however it is written:
        `/a/x`, `a/x` and `/b/../a/x` are the same. An argument of more than 100,000 characters, or a path of more
        than 4,096, is not compared: it counts as a match. Presets: `read_only` (ask for all tools that are not
        marked `read_only`), `edits_ask` (for the built-in tools that change something, and for tools made of a
        schema that are not marked `read_only`), `all_ask`.
    """
    rule = _preset(rules) if isinstance(rules, str) else _by_name(_validate_rules(rules))
    return Kit(Hooks(before_tool=[inherited(approval_rule(rule))]))


def _preset(name: str) -> Rule:
    presets: dict[str, Rule] = {
        "read_only": lambda tool, args: not tool.read_only and not is_own_tool(tool),
        "edits_ask": lambda tool, args: tool.name in EDITS or (isinstance(tool, SchemaTool) and not tool.read_only),
        "all_ask": lambda tool, args: not is_own_tool(tool),
    }
    if name not in presets:
        raise BadKit(
            "approve", f"{name!r} is not a preset; use one of {', '.join(presets)}, or give a dict of rules"
        )
    return presets[name]


def _by_name(rules: Rules) -> Rule:
    globs = [(name, condition) for name, condition in rules.items() if any(sign in name for sign in "*?[")]
    by_tool: dict[str, list[Any]] = {name: [condition] for name, condition in rules.items()}

    def rule(tool: Tool, args: Mapping[str, Any]) -> bool:
        conditions = by_tool.get(tool.name)
        if conditions is None:
            conditions = by_tool[tool.name] = [
                condition for name, condition in globs if fnmatchcase(tool.name, name)
            ]
        return bool(conditions) and any(
            _needs_approval(condition, {**tool.defaults, **args}, tool.name in _FILE_TOOLS)
            for condition in conditions
        )

    return rule


def _needs_approval(condition: bool | Mapping[str, Globs], args: Mapping[str, Any], has_path: bool) -> bool:
    if isinstance(condition, bool):
        return condition
    return all(_matches(args, name, has_path and name == "path", globs) for name, globs in condition.items())


def _matches(args: Mapping[str, Any], name: str, is_path: bool, globs: Globs) -> bool:
    """Return whether an argument matches; one that is missing or too long can't be checked, so it does."""
    if name not in args:
        return True
    text = _text(args[name])
    if len(text) > (PATH if is_path else _COMPARED):
        return True
    forms = _forms(text, is_path)
    patterns = [globs] if isinstance(globs, str) else globs
    # a name may be written in several ways, in a rule too
    wanted = {form for glob in patterns for form in ((glob, _composed(glob)) if is_path else (glob,))}
    return any(fnmatchcase(form, glob) for glob in wanted for form in forms)


def _composed(path: str) -> str:
    return unicodedata.normalize("NFC", path)


def _forms(text: str, is_path: bool) -> Sequence[str]:
    """Return the texts to match: of a workspace path as it is written, from the root, and without the first `/`."""
    if not is_path:
        return (text,)
    parts: list[str] = []
    for part in _composed(text).split("/"):
        if part == "..":
            del parts[-1:]
        elif part not in ("", "."):
            parts.append(part)
    plain = "/".join(parts)
    return (text, f"/{plain}", plain)


def _text(value: Any) -> str:
    return value if isinstance(value, str) else msgspec.json.encode(value, enc_hook=str).decode()


def _validate_rules(rules: Any) -> Rules:
    if not isinstance(rules, Mapping):
        raise BadKit("approve", f"give a dict of rules, such as {{'write_file': True}}, not {rules!r}")
    for tool, condition in cast("Mapping[Any, Any]", rules).items():
        if not isinstance(tool, str) or not tool:
            raise BadKit("approve", f"{tool!r} is not a valid tool name")
        if isinstance(condition, bool):
            continue
        if not isinstance(condition, Mapping) or not condition:
            raise BadKit(
                "approve", f"{tool!r}: give True, False, or a dict of arguments and globs: {{'command': 'rm *'}}"
            )
        for name, globs in cast("Mapping[Any, Any]", condition).items():
            patterns: Any = [globs] if isinstance(globs, str) else globs
            if not isinstance(name, str) or not isinstance(patterns, list | tuple) or not _all_text(patterns):
                raise BadKit("approve", f"{tool!r}: {name!r}: {globs!r} is neither a glob nor a list of globs")
    return dict(cast("Rules", rules))


def _all_text(globs: Any) -> bool:
    check: Callable[[Any], bool] = lambda glob: isinstance(glob, str)  # noqa: E731
    return bool(globs) and all(map(check, globs))
