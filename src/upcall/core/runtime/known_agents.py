"""The agents of a runtime: by name, with their models, and ready to run.

The log keeps an agent's name only. A session that is started with an agent object whose name, or the name of one
below it, belongs to another agent here keeps its own object: in this process, with all that it starts. Another
process finds the agent by its name.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from upcall.agent import Agent, all_agents, models_used
from upcall.contracts import Model
from upcall.core.declared import Declared, find
from upcall.core.runtime.needed_servers import close_toolsets
from upcall.core.runtime.session_options import check_model
from upcall.core.turns.builtin_tools import ask, task_tool
from upcall.core.turns.prepared_agent import PreparedAgent
from upcall.core.turns.side_turn import SIDE_TOOLS
from upcall.errors import BadAgent, SetupError, UnknownAgent
from upcall.events import SessionStarted
from upcall.hooks import NO_HOOKS, Hooks


class KnownAgents:
    """Agents by name: the runtime's, and a root session's own in their place.

    model: makes the model of an agent
    """

    def __init__(self, agents: Sequence[Agent], model: Callable[[Agent], Model]) -> None:
        self._agents: dict[str, Agent] = all_agents(agents)
        self._own: dict[str, Mapping[str, Agent]] = {}  # by the root session's id
        self._model = model
        self._models: dict[tuple[int, str], Model] = {}
        self._prepared: dict[tuple[int, int, bool, bool, str], PreparedAgent] = {}
        self._declarations: dict[Agent, Declared] = {}

    # --- by name --------------------------------------------------------------------------

    def get(self, name: str, root: str = "") -> Agent:
        """An agent by its name, as the run tree of this root knows it; UnknownAgent names those there are."""
        own = self._own.get(root)
        found = (own.get(name) if own else None) or self._agents.get(name)
        if found is None:
            raise UnknownAgent(name, self.names(root))
        return found

    def of(self, header: SessionStarted) -> Agent:
        """The agent of a session: a team says who its members are."""
        root = header.root or header.session
        return self.get(header.team, root).member_for(header) if header.team else self.get(header.agent, root)

    def names(self, root: str = "") -> tuple[str, ...]:
        """Every agent's name, as the run tree of this root knows them."""
        own = self._own.get(root)
        return tuple(self._agents) if own is None else tuple({**self._agents, **own})

    def has(self, name: str, root: str) -> bool:
        """Tell whether a run tree's agent is known."""
        return name in self._agents or root in self._own

    def register(self, agent: Agent) -> Mapping[str, Agent] | None:
        """Know an agent with all below it; if other agents have these names, return its own for `bind` instead."""
        if self._agents.get(agent.name) is agent:
            return None
        own = all_agents([agent])
        try:
            self._agents = all_agents([*self._agents.values(), agent])
        except BadAgent:
            return own
        return None

    def register_for_workers(self, agent: Agent) -> None:
        """Know an agent whose turns others run; SetupError if another one has its name: they find it by that."""
        if self.register(agent) is not None:
            raise SetupError(
                f"this runtime has another agent called {agent.name!r}, and workers find agents by name; rename one"
            )

    def all(self) -> list[Agent]:
        """Every agent, those of single sessions too."""
        return [*self._agents.values(), *(agent for own in self._own.values() for agent in own.values())]

    def models(self) -> Mapping[str, frozenset[str]]:
        """Every agent's name, with the names of the models that it and all below it use."""
        return {agent.name: models_used(agent) for agent in self.all()}

    def bind(self, session_id: str, own: Mapping[str, Agent]) -> None:
        """Have one session, with all that it starts, use these agents."""
        self._own[session_id] = own

    def bind_again(self, header: SessionStarted, root: str, agent: Agent) -> None:
        """Have a stored session use this agent; SetupError if the log names another one."""
        if agent.name != header.agent:
            raise SetupError(f"session {root!r} belongs to the agent {header.agent!r}, not to {agent.name!r}")
        self.bind(root, all_agents([agent]))

    def forget(self, session_ids: Sequence[str]) -> None:
        """Drop what sessions brought that are gone."""
        for session_id in session_ids:
            self._own.pop(session_id, None)

    # --- ready to run ---------------------------------------------------------------------

    def prepared(
        self, agent: Agent, inherited: Hooks, *, asks: bool, answers: bool = False, model: str = ""
    ) -> PreparedAgent:
        """The agent, ready to run: `asks` gives it the tool `ask`, `answers` those for answering.

        `model` is the name of one of its models; empty is its own.
        """
        key = (id(agent), id(inherited) if inherited is not NO_HOOKS else 0, asks, answers, model)
        found = self._prepared.get(key)
        if found is None:
            uses = self._model_of(agent.derived_from or agent, model)
            delegates = agent.agents and agent.run_program is None
            extra = [task_tool(list(agent.agents))] if delegates else []
            extra += [ask] if asks else []
            extra += SIDE_TOOLS if delegates or answers else ()
            hooks = agent.hooks.inheriting_from(inherited)
            found = self._prepared[key] = PreparedAgent(agent, uses, hooks, extra)
        return found

    def _model_of(self, agent: Agent, name: str) -> Model:
        """The agent's own model, or the one of that name, made once."""
        found = self._models.get((id(agent), name))
        if found is None:
            check_model(agent, name)
            chosen = agent.replace(model=agent.models[name]) if name else agent
            found = self._models[id(agent), name] = self._model(chosen)
        return found

    def declaration_of(self, agent: Agent) -> Declared:
        """The place where an agent is declared, looked up once: a module may have hundreds of attributes."""
        declared = self._declarations.get(agent)
        if declared is None:
            declared = Declared(agent.source) if agent.source else find(agent, agent.declared_in)
            self._declarations[agent] = declared
        return declared

    async def close(self) -> None:
        """Close the models and toolsets that can be closed."""
        for model in self._models.values():
            close = getattr(model, "close", None)
            if close is not None:
                await close()
        await close_toolsets(self.all())
