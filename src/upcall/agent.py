"""An agent is a declaration: who it is, what it may use, whom it may ask. Nothing runs here."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Generic, TypeGuard, TypeVar, cast, get_origin, overload

import msgspec

from upcall.contracts import Context, Model, OutputT_co, Toolset, Workspace
from upcall.core.declared import importing
from upcall.core.routing.policy import Policy, name_problem
from upcall.core.schema import shapes, whole_schema
from upcall.errors import BadAgent, UnknownAgent
from upcall.events import SessionStarted
from upcall.hooks import NO_HOOKS, Hooks, Maybe
from upcall.messages import Call, JsonSchema, Result, Value
from upcall.safety.bounds import brief
from upcall.safety.json_text import read_json, read_off_loop
from upcall.settings import Settings
from upcall.tools import Tool, as_tool, describe_tools

R = TypeVar("R")


class Limits(Value, frozen=True, kw_only=True):
    """The most that a turn may use; None is no limit. Waiting for an answer or a child does not count.

    The first five end the turn with status `limit`. The next three only affect calls.

    model_calls: model calls of one turn
    turn_seconds: running time of one turn
    tokens: input and output tokens of one turn
    children: children started in one turn
    depth: levels below the root, whose depth is 0
    tool_seconds: seconds after which a call is stopped; the model is told
    result_chars: characters above which a result becomes a preview
    open_questions: questions of one response that are open at once; calls that would ask more wait until others end
    toolset_seconds: seconds that toolsets have to list their tools; then the turn fails
    """

    model_calls: int | None = 100
    turn_seconds: float | None = 3600.0
    tokens: int | None = 5_000_000
    children: int | None = 100
    depth: int | None = 5
    tool_seconds: float | None = 600.0
    result_chars: int | None = 400_000
    open_questions: int | None = 100
    toolset_seconds: float | None = 30.0

    def __post_init__(self) -> None:
        for name in self.__struct_fields__:
            value = getattr(self, name)
            least = 0 if name in ("children", "depth") else 1e-9
            if value is not None and not (type(value) in (int, float) and value >= least):
                allowed = "0 or more" if least == 0 else "above 0"
                raise BadAgent("Limits", f"{name}={value!r} must be a number, {allowed}; None means no limit")


ResultKeeper = Callable[[Context, Call, Any], Maybe[Result | str]]


class Kit(Value, frozen=True):
    """Hooks and tools that belong together, for `Agent(kit=[...])`.

    hooks: the hooks; they run before the agent's own
    tools: tools, typed functions, or Toolsets
    results: functions of the tool's Context, the Call and what the tool returned, called before that is stored. The
        first Result or text that one returns replaces the value.
    """

    hooks: Hooks = NO_HOOKS
    tools: Sequence[Any] = ()
    results: Sequence[ResultKeeper] = ()


class Output:
    """The type that a reply must have: its schema for the model, and the check of replies.

    `str` is plain text: nothing is asked of the model, and the reply's text is the value.
    """

    def __init__(self, agent: str, kind: Any) -> None:
        plain = isinstance(kind, type) and get_origin(kind) is None
        self.name: str = kind.__name__ if plain else str(kind).removeprefix("typing.")
        self.schema: JsonSchema | None = None
        self.convert: Callable[[Any], Any] = str
        if kind is str:
            return
        try:
            found, defs = shapes({"output": kind})
        except (TypeError, NameError) as error:
            raise BadAgent(agent, f"output={kind!r} can't be described as JSON: {error}") from error
        self.convert = found["output"].convert
        self.schema = whole_schema(found["output"].schema, defs)

    def parse(self, text: str) -> Any:
        """Return the one JSON value in a reply, without the prose around it; ValueError says what is wrong."""
        if self.schema is None:
            return text
        value = read_json(text)
        try:
            return self.convert(value)
        except (ValueError, TypeError, RecursionError) as error:
            raise ValueError(f"the reply is JSON, but not a valid {self.name}: {error}") from None

    async def read(self, text: str) -> Any:
        """Return what `parse` returns. A long reply does not hold the event loop."""
        return text if self.schema is None else await read_off_loop(self.parse, text)

    def correction(self, problem: str) -> str:
        """Return the message for the model after a wrong reply.

        It contains the schema, so that no model has to guess.
        """
        schema = msgspec.json.encode(self.schema).decode()
        return f"{problem}. Reply with nothing but JSON that fits this schema: {schema}"


class Agent(Generic[OutputT_co]):
    """An agent: who it is, what it may use and whom it may ask.

    An agent is a declaration. Making one does nothing: no file, no network, no thread. It never changes; `replace`
    returns a changed copy. A Runtime, or `upcall.run`, runs it.

    name: its name: letters, digits, `_`, `-` and `.`, at most 100, and not `user` or `fail`. The log knows agents
        by name.
    instructions: the system prompt
    model: a model's name, such as `anthropic:claude-sonnet-5`, or a model such as `Script([...])`
    models: further models by name, of which a session may use one: `start(agent, options=SessionOptions("deep"))`.
        Without `model`, the first of them is the agent's own
    settings: how the model is asked, as a Settings value: temperature, token limit, tool choice and so on
    tools: tools, typed functions, or Toolsets, which are asked for theirs before each model call
    agents: the agents, teams and chains below it; with some, it has the tool `task` and gives them work
    hooks: functions that change what passes through, as a Hooks value
    kit: Kit values, whose hooks and tools are added before its own
    output: a type for the reply: `reply.output` is then a value of it, also for type checkers
    limits: what a turn may use, as a Limits value
    workspace: where its files are, such as `Folder("work")`; agents below without one use it, too
    description: what agents above read when they choose whom to give work to
    ask: whether its model gets the tool `ask`, if there is somebody to ask
    can_query_caller: whether it may ask the agents above it
    can_use_host_interaction: whether it may ask a person
    callback_policy: who else is asked and what it may approve, as a dict: `max_bubble_hops`, `fallback_target`,
        `passthrough_child_callbacks`, `may_approve`, `timeout`, `side_turn_model_calls`
    """

    run_program: Any = None
    """Runs instead of a model: teams and chains have such a method."""
    setup: str = ""
    """A digest of a team's or a chain's steps, which instructions, tools and policy do not show."""

    @overload
    def __init__(
        self: Agent[None],
        name: str,
        *,
        instructions: str = "",
        model: str | Model | None = None,
        models: Mapping[str, str | Model] | None = None,
        settings: Settings | None = None,
        tools: Sequence[Tool | Toolset | Callable[..., Any]] = (),
        agents: Sequence[Any] = (),
        hooks: Hooks = NO_HOOKS,
        kit: Sequence[Kit] = (),
        output: None = None,
        limits: Limits | None = None,
        workspace: Workspace | None = None,
        description: str = "",
        ask: bool = True,
        can_query_caller: bool = True,
        can_use_host_interaction: bool = True,
        callback_policy: Mapping[str, Any] | Policy | None = None,
    ) -> None: ...

    @overload
    def __init__(
        self,
        name: str,
        *,
        instructions: str = "",
        model: str | Model | None = None,
        models: Mapping[str, str | Model] | None = None,
        settings: Settings | None = None,
        tools: Sequence[Tool | Toolset | Callable[..., Any]] = (),
        agents: Sequence[Any] = (),
        hooks: Hooks = NO_HOOKS,
        kit: Sequence[Kit] = (),
        output: type[OutputT_co],
        limits: Limits | None = None,
        workspace: Workspace | None = None,
        description: str = "",
        ask: bool = True,
        can_query_caller: bool = True,
        can_use_host_interaction: bool = True,
        callback_policy: Mapping[str, Any] | Policy | None = None,
    ) -> None: ...

    @overload
    def __init__(
        self: Agent[Any],
        name: str,
        *,
        instructions: str = "",
        model: str | Model | None = None,
        models: Mapping[str, str | Model] | None = None,
        settings: Settings | None = None,
        tools: Sequence[Tool | Toolset | Callable[..., Any]] = (),
        agents: Sequence[Any] = (),
        hooks: Hooks = NO_HOOKS,
        kit: Sequence[Kit] = (),
        output: object,
        limits: Limits | None = None,
        workspace: Workspace | None = None,
        description: str = "",
        ask: bool = True,
        can_query_caller: bool = True,
        can_use_host_interaction: bool = True,
        callback_policy: Mapping[str, Any] | Policy | None = None,
    ) -> None: ...

    def __init__(
        self,
        name: str,
        *,
        instructions: str = "",
        model: str | Model | None = None,
        models: Mapping[str, str | Model] | None = None,
        settings: Settings | None = None,
        tools: Sequence[Tool | Toolset | Callable[..., Any]] = (),
        agents: Sequence[Any] = (),
        hooks: Hooks = NO_HOOKS,
        kit: Sequence[Kit] = (),
        output: Any = None,
        limits: Limits | None = None,
        workspace: Workspace | None = None,
        description: str = "",
        ask: bool = True,
        can_query_caller: bool = True,
        can_use_host_interaction: bool = True,
        callback_policy: Mapping[str, Any] | Policy | None = None,
    ) -> None:
        self._given = {k: v for k, v in locals().items() if k != "self"}
        _check(name, instructions, model, hooks, kit, tools, limits, workspace)
        _check_settings(name, settings)
        self.models = _checked_models(name, models)
        _check_names(name, agents)
        self.name, self.instructions = name, instructions
        self.model = next(iter(self.models.values()), None) if model is None else model
        self.agents, self.kit, self.description = tuple(agents), tuple(kit), description
        self.settings, self.workspace, self.ask = settings, workspace, ask
        self.limits = limits or Limits()
        self.output = None if output is None else Output(name, output)
        if isinstance(callback_policy, Policy):
            self.policy = callback_policy
        else:
            self.policy = Policy.build(can_query_caller, can_use_host_interaction, callback_policy, agent=name)
        self.can_query_caller = self.policy.can_query_caller
        self.can_use_host_interaction = self.policy.can_use_host_interaction
        self.callback_policy = self.policy.callback_policy
        self.hooks = sum((piece.hooks for piece in kit), NO_HOOKS) + hooks
        self.results = tuple(keeper for piece in kit for keeper in piece.results)
        given = [*(t for k in kit for t in k.tools), *tools]
        self.toolsets: tuple[Toolset, ...] = tuple([one for one in given if is_toolset(one)])
        self.toolbox = _toolbox(name, [one for one in given if not is_toolset(one)])
        _check_tools(name, self.toolbox, self.agents, ask)
        self.tools = tuple(self.toolbox.values())
        self.source = ""
        self.declared_in = importing()
        self.derived_from: Agent | None = None
        self._complete = True

    def __setattr__(self, name: str, value: object) -> None:
        """Refuse to change what was declared: other agents and sessions that run may share it."""
        if "_complete" in self.__dict__:
            raise AttributeError(self._unchanged(name))
        super().__setattr__(name, value)

    def __delattr__(self, name: str) -> None:
        """Refuse to delete what was declared."""
        raise AttributeError(self._unchanged(name))

    def _unchanged(self, name: str) -> str:
        how = f"agent.replace({name}=...) gives a changed copy" if name in self._given else "build another one"
        how = how if self.run_program is None else "build it again with other arguments"
        return f"{type(self).__name__} {self.name!r} is immutable, so {name} can't be set; {how}"

    @overload
    def replace(self, *, output: None, **changes: Any) -> Agent[None]: ...

    @overload
    def replace(self, *, output: type[R], **changes: Any) -> Agent[R]: ...

    @overload
    def replace(self, *, output: object, **changes: Any) -> Agent[Any]: ...

    @overload
    def replace(self, **changes: Any) -> Agent[OutputT_co]: ...

    def replace(self, **changes: Any) -> Agent[Any]:
        """Return a copy with these arguments changed.

        **changes: arguments of `Agent`
        """
        copy: Agent[Any] = Agent(**{**self._given, **changes})
        vars(copy)["source"] = self.source
        return copy

    @property
    def declared_tools(self) -> tuple[Any, ...]:
        """What `Agent(tools=...)` was given, without the tools of its kit."""
        return tuple(self._given.get("tools", ()))

    def member_for(self, header: SessionStarted) -> Agent:
        """Return the member of this team whose session has this header; a plain agent has no members."""
        raise UnknownAgent(header.agent, [self.name])

    def with_members(self, change: Callable[[Agent], Agent]) -> Agent:
        """Return the same team or chain with each member changed; a plain agent has no members."""
        return self

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.name!r})"


def is_workspace(value: Any) -> bool:
    """Return whether an object can be opened as a workspace: a `pathlib.Path`, or a class, has an `open` too."""
    return hasattr(value, "open") and not hasattr(value, "__fspath__") and not isinstance(value, type)


def _check(
    name: Any, instructions: Any, model: Any, hooks: Any, kit: Any, tools: Any, limits: Any, workspace: Any
) -> None:
    if not isinstance(name, str) or not name:
        raise BadAgent(str(name), "the first argument must be the agent's name, a string")
    if problem := name_problem(name):
        raise BadAgent(name, problem)
    if not isinstance(instructions, str):
        raise BadAgent(name, f"instructions must be a string, not {type(instructions).__name__}")
    if isinstance(tools, str | Tool) or callable(tools):
        raise BadAgent(name, f"tools must be a list of functions: tools=[{getattr(tools, 'name', 'read_file')}]")
    if not isinstance(hooks, Hooks):
        raise BadAgent(name, "hooks must be a Hooks value: hooks=Hooks(before_tool=[guard])")
    if limits is not None and not isinstance(limits, Limits):
        raise BadAgent(name, "limits must be a Limits value: limits=Limits(model_calls=20)")
    if model is not None and not _is_model(model):
        raise BadAgent(
            name, f"model must be a name such as 'openai:gpt-6', or Script(...), not {type(model).__name__}"
        )
    if workspace is not None and not is_workspace(workspace):
        raise BadAgent(name, f"workspace must be a Workspace, such as Folder('work'), not {workspace!r}")
    for piece in kit:
        if not isinstance(piece, Kit):
            raise BadAgent(
                name, f"kit must be a list of Kit values; {brief(piece)} is not one (did you forget to call it?)"
            )


def _is_model(value: Any) -> bool:
    return isinstance(value, str) or hasattr(value, "respond")


def _checked_models(name: str, models: Any) -> dict[str, Any]:
    if models is None:
        return {}
    if not isinstance(models, Mapping):
        raise BadAgent(
            name, f'models must map names to models, such as {{"deep": "openai:gpt-6"}}, not {brief(models)}'
        )
    given = dict(cast("Mapping[Any, Any]", models))
    for called, model in given.items():
        if not isinstance(called, str) or not called or not _is_model(model):
            raise BadAgent(name, f"models must map names to models, not {brief(called)} to {brief(model)}")
    return given


def _check_settings(name: str, settings: Any) -> None:
    if settings is not None and not isinstance(settings, Settings):
        raise BadAgent(name, "settings must be a Settings value: settings=Settings(temperature=0)")


def _check_names(name: str, agents: Sequence[Any]) -> None:
    seen: dict[str, Any] = {}
    for one in agents:
        below = getattr(one, "name", None)
        if not isinstance(below, str):
            raise BadAgent(
                name, f"agents must be a list of agents, but it contains a value of type {type(one).__name__}"
            )
        if seen.setdefault(below, one) is not one:
            raise BadAgent(name, f"two of the agents below it are called {below!r}; rename one of them")


def is_toolset(given: object) -> TypeGuard[Toolset]:
    """Return whether an object is a Toolset rather than a tool or a function."""
    return hasattr(given, "list_tools") and not isinstance(given, Tool | type)


def _toolbox(name: str, tools: Sequence[Any]) -> dict[str, Tool]:
    box: dict[str, Tool] = {}
    for given in tools:
        made = as_tool(given)
        if box.setdefault(made.name, made) is not made:
            raise BadAgent(name, f"two of its tools are called {made.name!r}; rename one with @tool(name=...)")
    return describe_tools(box)


ANSWERING = ("answer_callback", "pass_up_callback", "reword_callback")
"""The names of the tools by which an agent answers callbacks; every agent may be asked."""


def _check_tools(name: str, toolbox: Mapping[str, Tool], agents: Sequence[Any], ask: bool) -> None:
    """Refuse a tool with the name of a built-in one: the model would see only one of the two."""
    built_in: dict[str, str] = dict.fromkeys(ANSWERING, "the built-in tool by which an agent answers callbacks")
    if agents:
        built_in["task"] = "the built-in tool by which it gives work to its agents=[...]"
    if ask:
        built_in["ask"] = "the built-in tool by which its model asks (ask=False leaves that out)"
    for own in toolbox.values():
        if own.name in built_in and not own.built_in:
            clash = f"its tool {own.name!r} has the same name as {built_in[own.name]}"
            raise BadAgent(name, f"{clash}; rename it: @tool(name=...)")


def models_used(agent: Any) -> frozenset[str]:
    """Return the names of the models that an agent and all below it use by default."""
    models = [one.model for one in all_agents([agent]).values()]
    return frozenset(one if isinstance(one, str) else str(one.name) for one in models if one is not None)


def all_agents(roots: Sequence[Any]) -> dict[str, Any]:
    """Return every agent by name: the roots and all below them. Two different ones with one name are refused."""
    found: dict[str, Any] = {}
    queue = list(roots)
    for one in queue:  # the list grows during the loop
        if one.name not in found:
            found[one.name] = one
            queue.extend(cast("Sequence[Any]", one.agents))
        elif found[one.name] is not one:
            raise BadAgent(
                one.name,
                "two different agents have this name, but a log identifies agents only by name; rename one of them",
            )
    return found
