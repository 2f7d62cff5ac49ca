"""The nine points of an agent's life at which a function may change or replace a value."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from inspect import Parameter, Signature, signature
from typing import Any, TypeVar, dataclass_transform

import msgspec

from upcall.callbacks import Answer, Callback
from upcall.contracts import Reply, SessionAccess
from upcall.errors import BadHook
from upcall.messages import Call, Message, Request, Response, Result
from upcall.tools import Tool

T = TypeVar("T")
Maybe = Awaitable[T | None] | T | None

Rule = Callable[[Tool, Mapping[str, Any]], bool]
"""Returns whether a call of this tool with these arguments needs an approval."""

POINTS: dict[str, tuple[str, ...]] = {
    "begin_session": ("session",),
    "pre_request": ("session", "message"),
    "before_model": ("session", "request"),
    "model_failed": ("session", "request", "error"),
    "post_response": ("session", "response"),
    "before_tool": ("session", "call"),
    "after_tool": ("session", "call", "result"),
    "on_callback": ("session", "callback"),
    "end_turn": ("session", "reply"),
}
"""The arguments of the hooks at each point."""


@dataclass_transform(frozen_default=True, kw_only_default=True)
class _Points:
    """Checks hooks when they are declared. The subclass declares the points."""

    __signature__ = Signature([Parameter(p, Parameter.KEYWORD_ONLY, default=()) for p in POINTS])

    def __init__(self, **given: Any) -> None:
        for point, hooks in given.items():
            if point not in POINTS:
                import difflib

                near = difflib.get_close_matches(point, POINTS, 1, 0.0)[0]
                known = f"did you mean {near}? The hook points are: {', '.join(POINTS)}"
                raise BadHook("", point, f"is not a hook point; {known}")
            if isinstance(hooks, str) or callable(hooks) or hooks is None:
                raise BadHook(name_of(hooks), point, f"give a list of hooks: {point}=[{name_of(hooks)}]")
            if hooks:
                self.__dict__[point] = tuple(_checked(hook, point, POINTS[point]) for hook in hooks)

    def __setattr__(self, name: str, value: object) -> None:
        raise AttributeError("Hooks can't be changed; `adding` and `+` return new ones")

    def __delattr__(self, name: str) -> None:
        raise AttributeError("Hooks can't be changed; `adding` and `+` return new ones")

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Points) and vars(self) == vars(other)

    def __hash__(self) -> int:
        return hash(frozenset(vars(self).items()))


class Hooks(_Points):
    """Functions at the nine points of an agent's life. A value never changes: `adding` and `+` return new ones.

    Each argument is a list of functions, sync or async, which run in order. None changes nothing; a return value
    replaces what passes through.

    begin_session: (session), once, when a session is created
    pre_request: (session, message), once a turn, before the first model call; returns a Message or text
    before_model: (session, request), before each model call; returns a Request, or a Response in place of the call
    model_failed: (session, request, error), after a model call failed; returns a Request to try again, or a
        Response
    post_response: (session, response), after each model call; returns a Response or text
    before_tool: (session, call), before each tool call; returns a Call, or a Result in place of the call
    after_tool: (session, call, result), after each tool call, also a failed one; returns a Result or text
    on_callback: (session, callback), when an agent below asks; returns an Answer to settle it
    end_turn: (session, reply), after the reply is stored; returns a Reply or text for the caller
    """

    begin_session: Sequence[Callable[[SessionAccess], Maybe[Any]]] = ()
    pre_request: Sequence[Callable[[SessionAccess, Message], Maybe[Message | str]]] = ()
    before_model: Sequence[Callable[[SessionAccess, Request], Maybe[Request | Response | str]]] = ()
    model_failed: Sequence[Callable[[SessionAccess, Request, Exception], Maybe[Request | Response | str]]] = ()
    post_response: Sequence[Callable[[SessionAccess, Response], Maybe[Response | str]]] = ()
    before_tool: Sequence[Callable[[SessionAccess, Call], Maybe[Call | Result]]] = ()
    after_tool: Sequence[Callable[[SessionAccess, Call, Result], Maybe[Result | str]]] = ()
    on_callback: Sequence[Callable[[SessionAccess, Callback], Maybe[Answer]]] = ()
    end_turn: Sequence[Callable[[SessionAccess, Reply], Maybe[Reply | str]]] = ()

    def adding(self, **more: Sequence[Callable[..., Any]]) -> Hooks:
        """Return a new value with these hooks after the ones already there.

        **more: lists of hooks, by point, as `Hooks` takes them
        """
        return self + Hooks(**more)  # pyright: ignore[reportArgumentType]

    def __add__(self, other: Hooks) -> Hooks:
        if other is NO_HOOKS:
            return self
        return Hooks(**{p: (*getattr(self, p), *getattr(other, p)) for p in vars(self) | vars(other)})

    def inheritable(self) -> Hooks:
        """Return only the hooks that children inherit."""
        kept = {p: [h for h in at if isinstance(h, Inherited)] for p, at in vars(self).items()}
        return Hooks(**kept) if any(kept.values()) else NO_HOOKS

    def split_approval_rules(self) -> tuple[Hooks, tuple[Rule, ...]]:
        """Split the hooks, own and inherited, from the approval rules, which only the gate calls."""
        each = {p: [h.hook if isinstance(h, Inherited) else h for h in at] for p, at in vars(self).items()}
        rules = [h for h in each.get("before_tool", ()) if isinstance(h, ApprovalRule)]
        each["before_tool"] = [h for h in each.get("before_tool", ()) if h not in rules]
        return Hooks(**each), tuple(h.rule for h in rules)

    def inheriting_from(self, parents: Hooks) -> Hooks:
        """Return these hooks for a child: inherited ones first, without duplicates."""
        own = vars(self).items()
        return parents + Hooks(**{p: [h for h in at if h not in getattr(parents, p)] for p, at in own})


class Inherited(msgspec.Struct, frozen=True):
    """A hook that children of the session run too."""

    hook: Callable[..., Any]

    def __call__(self, *args: Any) -> Any:
        """Call the hook itself."""
        return self.hook(*args)


class ApprovalRule(msgspec.Struct, frozen=True, eq=False):
    """A before_tool hook that changes nothing: the gate calls its rule after all hooks, with the final call."""

    rule: Rule

    def __call__(self, session: SessionAccess, call: Call) -> None:
        """Do nothing at this point."""


def approval_rule(rule: Rule) -> Callable[[SessionAccess, Call], None]:
    """Return a `before_tool` hook that requires approval for calls.

    Wherever it is in the list, it is asked after all other hooks, about the final call. If it raises, the tool does
    not run.

    rule: a plain function of the Tool and its checked arguments; true means that the call needs an approval
    """
    return ApprovalRule(rule)


def inherited(hook: Callable[..., T]) -> Callable[..., T]:
    """Mark a hook so that children run it too. A child can't escape it by being a child.

    hook: a hook for any point
    """
    return hook if isinstance(hook, Inherited) else Inherited(hook)


def name_of(hook: object) -> str:
    """Return a hook's name for errors."""
    while isinstance(hook, Inherited):
        hook = hook.hook
    return getattr(hook, "__qualname__", None) or type(hook).__qualname__


def _checked(hook: object, point: str, names: tuple[str, ...]) -> Callable[..., Any]:
    if not callable(hook):
        raise BadHook(repr(hook), point, f"a hook must be a function: def hook({', '.join(names)})")
    target = hook.hook if isinstance(hook, Inherited) else hook
    if isinstance(target, ApprovalRule) and point != "before_tool":
        raise BadHook("approval_rule", point, "an approval rule can only be a before_tool hook")
    try:
        takes = signature(target)
    except (TypeError, ValueError):  # some built-in callables have no signature
        return hook
    try:
        bound = takes.bind(*names).arguments
        fits = all(name == value for name, value in bound.items() if name in names)  # else in another order
    except TypeError:
        fits = False
    if not fits:
        right = f"def {name_of(hook).rpartition('.')[2]}({', '.join(names)})"
        raise BadHook(name_of(hook), point, f"has the parameters {takes}; declare it as {right}")
    return hook


NO_HOOKS = Hooks()
