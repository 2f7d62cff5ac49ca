"""Tools made in tests from an annotation, and their schemas as a validator wants them."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from typing import Any, cast

import fastjsonschema

from upcall.tools import Tool, tool


def taking(**annotations: Any) -> Tool:
    """A tool with these keyword-only parameters."""

    def taker(**args: Any) -> Any:
        return args

    parameters: list[inspect.Parameter] = []
    for name, annotation in annotations.items():
        parameters.append(inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, annotation=annotation))
    taker.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    taker.__annotations__ = {p.name: p.annotation for p in parameters}
    return tool(taker)


def validator(schema: Mapping[str, Any]) -> Callable[[Any], Any]:
    """A function that raises where a value does not fit. Tuples are said the older way, which it understands."""
    return cast(
        "Callable[[Any], Any]", fastjsonschema.compile(_older(schema), formats={"path": ".*"}, use_default=False)
    )  # type: ignore[no-untyped-call]


def _older(schema: Any) -> Any:
    if isinstance(schema, list):
        return [_older(item) for item in cast("list[Any]", schema)]
    if not isinstance(schema, dict):
        return schema
    out = {k: _older(v) for k, v in cast("dict[str, Any]", schema).items()}
    if "prefixItems" in out:
        out["items"], out["additionalItems"] = out.pop("prefixItems"), out.get("items", True)
    return out
