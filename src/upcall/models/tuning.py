"""The settings of a request, merged with the model's own and checked against its provider."""

from __future__ import annotations

from collections.abc import Collection

from upcall.errors import ModelRefused, UnknownSetting
from upcall.messages import Request
from upcall.settings import Settings

EVERY_SETTING = Settings.__struct_fields__
ANTHROPIC_KNOWS = tuple(name for name in EVERY_SETTING if name != "seed")
LOCAL_KNOWS = tuple(name for name in EVERY_SETTING if name not in ("reasoning_effort", "extra_headers"))


def known_by_name(model: str) -> tuple[str, ...] | None:
    """Return the settings that the provider of a model name supports; None if only the provider knows."""
    by_provider = {"openai": EVERY_SETTING, "anthropic": ANTHROPIC_KNOWS, "local": LOCAL_KNOWS}
    return by_provider.get(model.partition(":")[0])


def check_settings(model: str, settings: Settings | None, known: Collection[str]) -> Settings | None:
    """Return the settings. Raises UnknownSetting for those that the provider does not support."""
    unknown = [name for name in settings.given() if name not in known] if settings is not None else []
    if unknown:
        raise UnknownSetting(model, unknown, [name for name in EVERY_SETTING if name in known])
    return settings


def merge_settings(model: str, own: Settings | None, request: Request, known: Collection[str]) -> Request:
    """Merge the model's own settings into the request. Raises before anything is sent.

    A forced tool choice applies to turns only: otherwise no summary or answer could be written.
    """
    if request.settings is None and own is None:
        return request
    if own is not None and request.purpose != "turn":
        own = own.replace(tool_choice=None)
    settings = own if request.settings is None else request.settings.over(own)
    check_settings(model, settings, known)
    _check_tool_choice(model, settings, request)
    return request.replace(settings=settings)


def _check_tool_choice(model: str, settings: Settings | None, request: Request) -> None:
    choice = settings.tool_choice if settings is not None else None
    names = [spec.name for spec in request.tools]
    if choice in (None, "auto", "none") or choice in names or (choice == "required" and names):
        return
    has = f"has only {', '.join(names)}" if names else "has no tools"
    what = "a tool" if choice == "required" else f"the tool {choice!r}"
    raise ModelRefused(model, f"the setting tool_choice requires a call to {what}, but the request {has}")
