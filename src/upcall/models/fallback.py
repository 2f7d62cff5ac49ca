"""Combine models: if one fails, the next one is called."""

from __future__ import annotations

from upcall.contracts import Emit, Model
from upcall.errors import ContextTooLong, SetupError, UnknownSetting
from upcall.messages import Request, Response


def fallback_models(first: Model, *others: Model) -> Model:
    """Combine models: if one fails, the next one is asked.

    ContextTooLong is raised at once, because compacting helps and another model does not. So is UnknownSetting.

    first: the model that is asked first
    *others: the models that are asked after it, in order
    """
    if not others:
        raise SetupError("fallback_models needs at least two models, the first and one to fall back to")
    return _Fallback((first, *others))


class _Fallback:
    def __init__(self, models: tuple[Model, ...]) -> None:
        self._models = models

    @property
    def name(self) -> str:
        return " or ".join(m.name for m in self._models)

    def __repr__(self) -> str:
        return f"fallback_models({', '.join(map(repr, self._models))})"

    async def respond(self, request: Request, emit: Emit | None) -> Response:
        spoke = False

        def forward(kind: str, text: str) -> None:
            nonlocal spoke
            spoke = kind != "drop"
            if emit is not None:
                emit(kind, text)

        failures: list[Exception] = []
        for model in self._models:
            try:
                return await model.respond(request, forward if emit is not None else None)
            except (ContextTooLong, UnknownSetting):
                raise
            except Exception as error:
                failures.append(error)
            if spoke and model is not self._models[-1]:
                forward("drop", "")
        for failure in failures[:-1]:
            failures[-1].add_note(f"before it: {failure}")
        raise failures[-1]

    async def close(self) -> None:
        for model in self._models:
            if (close := getattr(model, "close", None)) is not None:
                await close()
