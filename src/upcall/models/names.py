"""Turn a model's name into a model. Besides the command line, only this module reads the environment."""

from __future__ import annotations

import difflib
import importlib.util
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

from upcall.contracts import Emit, Model
from upcall.errors import ModelRefused
from upcall.messages import Request, Response
from upcall.models.anthropic import Anthropic
from upcall.models.local import Local
from upcall.models.openai import OpenAIChat
from upcall.models.providers import Provided
from upcall.models.script import Script


def resolve_model(name: str, folder: Path | None = None) -> Model:
    """Return the model of a name. Keys, base URLs and files are read at its first request.

    name: `provider:model`, such as `openai:gpt-6` or `local:file.gguf`
    folder: the folder to which files are relative; by default the current one
    """
    provider, colon, rest = name.partition(":")
    if not colon or not provider or not rest:
        raise ModelRefused(
            name, "is not a valid model name; write provider:model, such as openai:gpt-6 or local:file.gguf"
        )
    where = (folder or Path()) / rest
    builders: dict[str, Callable[[], Model]] = {
        "openai": lambda: _openai(name, rest),
        "anthropic": lambda: _anthropic(name, rest),
        "local": lambda: Local(where),
        "script": lambda: load_script(name, where),
    }
    if provider not in builders and (near := difflib.get_close_matches(provider, builders, 1, 0.8)):
        raise ModelRefused(name, f"unknown provider {provider!r}; did you mean {near[0]}:{rest}?")
    return Named(name, builders.get(provider, lambda: Provided(name)))


class Named:
    """A model that is created at its first request."""

    def __init__(self, name: str, build: Callable[[], Model]) -> None:
        self.name = name
        self._build = build
        self._model: Model | None = None

    def __repr__(self) -> str:
        return f"resolve_model({self.name!r})"

    async def respond(self, request: Request, emit: Emit | None) -> Response:
        """Answer one request; the first one creates the model."""
        if self._model is None:
            self._model = self._build()
        return await self._model.respond(request, emit)

    async def close(self) -> None:
        """Close what the model has opened in this event loop."""
        if (close := getattr(self._model, "close", None)) is not None:
            await close()


def _openai(name: str, model: str) -> Model:
    key, base_url = _settings(name, "OPENAI_API_KEY", "OPENAI_BASE_URL")
    return OpenAIChat(model, api_key=key, base_url=base_url) if base_url else OpenAIChat(model, api_key=key)


def _anthropic(name: str, model: str) -> Model:
    key, base_url = _settings(name, "ANTHROPIC_API_KEY", "ANTHROPIC_BASE_URL")
    return Anthropic(model, api_key=key, base_url=base_url) if base_url else Anthropic(model, api_key=key)


def _settings(name: str, key_variable: str, url_variable: str) -> tuple[str | None, str]:
    key, base_url = os.environ.get(key_variable, "").strip(), os.environ.get(url_variable, "").strip()
    if not key and not base_url:
        raise ModelRefused(
            name, f"needs a key: set {key_variable}, or set {url_variable} if your server needs no key"
        )
    return key or None, base_url


def load_script(name: str, path: Path) -> Model:
    """Load the model that a Python file has as `script`. Raises ModelRefused if the file can't be used."""
    if not path.is_file():
        raise ModelRefused(name, f"file not found: {path}")
    spec = importlib.util.spec_from_file_location(f"upcall_script_{path.stem}", path)
    if spec is None or spec.loader is None:
        raise ModelRefused(name, f"{path} is not a Python file")
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # types in the file look their annotations up there
    try:
        spec.loader.exec_module(module)
    except (Exception, SystemExit) as error:  # a file that calls sys.exit() must not end the program
        raise ModelRefused(name, f"{path} can't be loaded: {type(error).__name__}: {error}") from error
    script: Any = getattr(module, "script", None)
    if script is None:
        raise ModelRefused(name, f"{path} has no attribute `script`, such as script = Script([...])")
    return cast("Model", script) if hasattr(script, "respond") else Script(script)
