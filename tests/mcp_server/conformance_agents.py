"""Agents with the names and the behaviour of the tools that the conformance suite expects."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from typing import Any

from upcall import Context, ModelUnavailable, tool
from upcall.models import call

PERSON: dict[str, Any] = {"kind": "request_user_input"}
TITLED = [
    {"const": f"value{at}", "title": f"{word} Option"} for at, word in ((1, "First"), (2, "Second"), (3, "Third"))
]
PLAIN = {"type": "string", "enum": ["option1", "option2", "option3"]}
DEFAULTS: dict[str, Any] = {
    "name": {"type": "string", "default": "John Doe"},
    "age": {"type": "integer", "default": 30},
    "score": {"type": "number", "default": 95.5},
    "status": {"type": "string", "enum": ["active", "inactive", "pending"], "default": "active"},
    "verified": {"type": "boolean", "default": True},
}
ENUMS: dict[str, Any] = {
    "untitledSingle": PLAIN,
    "titledSingle": {"type": "string", "oneOf": TITLED},
    "legacyEnum": {"type": "string", "enum": ["opt1", "opt2", "opt3"], "enumNames": ["One", "Two", "Three"]},
    "untitledMulti": {"type": "array", "items": PLAIN},
    "titledMulti": {"type": "array", "items": {"anyOf": TITLED}},
}


def _object(**properties: Any) -> dict[str, Any]:
    return {"type": "object", "properties": properties}


@tool
async def fill_in(form: str, ctx: Context) -> str:
    """Ask for a form."""
    schemas = {
        "user": _object(username={"type": "string"}, email={"type": "string"}),
        "defaults": _object(**DEFAULTS),
        "enums": _object(**ENUMS),
        "name": _object(name={"type": "string"}),
        "color": _object(color={"type": "string"}),
        "confirm": _object(confirm={"type": "boolean"}),
        "any": _object(ok={"type": "boolean"}),
    }
    answer = await ctx.raise_callback(f"Please fill in {form}.", "user_input", schema=schemas[form], **PERSON)
    return json.dumps(answer)


@tool
async def work(seconds: float) -> str:
    """Work for a while."""
    await asyncio.sleep(seconds)
    return f"worked {seconds} s"


def _results(request: Any) -> list[str]:
    return [one.text for message in request.messages for one in message.results]


def _given(request: Any) -> dict[str, Any]:
    """The arguments that the suite gave, which the proxy wrote into the prompt."""
    return json.loads(request.messages[0].text)


def _asks(*forms: str) -> Callable[[Any], Any]:
    """Ask for one form after the other."""

    def play(request: Any) -> Any:
        results = _results(request)
        return (
            call("fill_in", form=forms[len(results)]) if len(results) < len(forms) else f"got {' '.join(results)}"
        )

    return play


def _progress(request: Any) -> Any:
    return call("work", seconds=0.3) if len(_results(request)) < 3 else "Execution is complete."


def _compute(request: Any) -> Any:
    return "computed" if _results(request) else call("work", seconds=_given(request).get("seconds", 0))


def _fail_later(request: Any) -> Any:
    return ModelUnavailable("script", "the job failed") if _results(request) else call("work", seconds=1)


def _fail(request: Any) -> Any:
    return ModelUnavailable("script", "this tool intentionally returns an error")


def _both(request: Any) -> Any:
    return (
        f"got {_results(request)}"
        if _results(request)
        else [call("fill_in", form="name"), call("fill_in", form="confirm")]
    )


PLAYS: dict[str, Callable[[Any], Any]] = {
    "test_simple_text": lambda request: "This is a simple text response for testing.",
    "test_error_handling": _fail,
    "test_tool_with_progress": _progress,
    "test_elicitation": _asks("user"),
    "test_elicitation_sep1034_defaults": _asks("defaults"),
    "test_elicitation_sep1330_enums": _asks("enums"),
    "test_input_required_result_elicitation": _asks("name"),
    "test_input_required_result_request_state": _asks("confirm"),
    "test_input_required_result_multi_round": _asks("name", "color"),
    "test_input_required_result_tampered_state": _asks("any"),
    "test_streaming_elicitation": _asks("name"),
    "test_logging_tool": lambda request: "Nothing was logged.",
    "greet": lambda request: f"Hello, {_given(request)['name']}!",
    "slow_compute": _compute,
    "failing_job": _fail_later,
    "protocol_error_job": _fail_later,
    "confirm_delete": _asks("confirm"),
    "multi_input": _both,
    "test_tool_with_task": _asks("name"),
}
