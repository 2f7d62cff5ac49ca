"""A team: a manager plans, workers carry the plan out in sequence or side by side, a reviewer reports."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal, cast, get_args

import msgspec

from upcall.agent import Agent, Kit
from upcall.callbacks import Callback
from upcall.core.routing.policy import name_problem
from upcall.core.turns.side_turn import SIDE_TOOLS
from upcall.core.turns.turn import ChildSpec
from upcall.errors import BadAgent, PlanRefused, UnknownAgent
from upcall.events import ContextSet, Planned, SessionStarted, StepEnded
from upcall.safety.json_text import read_off_loop
from upcall.teams.coordinator import Coordination, Coordinator, Step
from upcall.teams.plan import Assignment, Rules, name_workers, next_sequence, read_plan
from upcall.teams.prompts import REVIEWER_PROMPT, bad_plan, join_instructions, manager_prompt, replan, worker_prompt
from upcall.teams.report import assignments, results, review

OnFailure = Literal["stop", "go_on", "replan"]
MANAGER, REVIEWER = "manager", "reviewer"
REPLANS = 2
_COUNTS = "upcall.workers"


class Team(Coordinator):
    """A manager plans, workers of several roles carry the plan out, and a reviewer reports.

    A team is accepted wherever an agent is. The plan is a JSON array of `{role, task, sequence, caller}`.

    manager: the agent that plans and answers the workers' questions
    roles: the agents that do the work, by role
    reviewer: the agent that reports at the end; without one the reply lists the results
    name: the team's name, different from its agents'
    on_failure: what to do after a sequence in which a worker failed: `go_on` with the plan, `stop` and report, or
        `replan`
    entries: the most entries that a plan may have
    task_chars: the most characters that a task may have
    tries: how often a plan that can't be run goes back to the manager
    description: what agents above read when they choose whom to give work to
    """

    def __init__(
        self,
        manager: Agent,
        roles: Mapping[str, Agent],
        reviewer: Agent | None = None,
        name: str = "team",
        on_failure: OnFailure = "go_on",
        *,
        entries: int = 50,
        task_chars: int = 20_000,
        tries: int = 3,
        description: str = "",
    ) -> None:
        _check(
            name,
            manager,
            roles,
            reviewer,
            on_failure,
            {"entries": entries, "task_chars": task_chars, "tries": tries},
        )
        self.manager, self.roles, self.reviewer = manager, dict(roles), reviewer
        self.on_failure: OnFailure = on_failure
        self.entries, self.task_chars, self.tries = entries, task_chars, tries
        self._members: dict[tuple[str, str, bool], Agent] = {}
        below = {id(a): a for a in (manager, *roles.values(), *([reviewer] if reviewer else []))}
        structure = ["team", manager.name, {r: a.name for r, a in roles.items()}, reviewer and reviewer.name]
        super().__init__(name, list(below.values()), description, [*structure, on_failure])

    # --- the program ----------------------------------------------------------------------

    async def coordinate(self, work: Coordination, prompt: str) -> str:
        """Plan, work sequence by sequence, report."""
        plan = await self._plan(work, 1, prompt)
        ends: list[tuple[Assignment, StepEnded]] = []
        replans, stopped = 0, False
        while plan and not stopped:
            now, plan = next_sequence(plan)
            ended = await work.run_parallel([self._worker(work, a) for a in now])
            ends += zip(now, ended, strict=True)
            if self.on_failure == "go_on" or all(e.status == "done" for e in ended):
                continue
            if self.on_failure == "replan" and replans < REPLANS:
                replans += 1
                plan = await self._plan(work, 1 + replans, replan(results(ends), assignments(plan)))
            else:
                stopped = True
        return await self._report(work, prompt, ends, plan, stopped)

    async def _plan(self, work: Coordination, number: int, prompt: str) -> list[Assignment]:
        """Return the manager's plan, accepted once. A bad plan is sent back to the manager with every mistake."""
        name = f"plan{number}"
        accepted = work.logged(Planned, name)
        refused = work.logged(Planned, f"{name}.refused")
        tries = (refused.value if refused is not None else 0) + self.tries
        rules = Rules(self.manager.name, tuple(self.roles), self.entries, self.task_chars, empty=number > 1)
        problems: list[str] = []
        for count in range(1, tries + 1):
            if accepted is not None:
                break
            reply = await work.step(
                self._manager_step(f"{name}.{count}", bad_plan(problems) if problems else prompt)
            )
            entries, problems = await read_off_loop(lambda text: read_plan(text, rules), reply.text)
            if not problems:
                return await self._accept(work, name, entries)
        if accepted is not None:
            return msgspec.convert(accepted.value, list[Assignment])
        work.log.add(Planned(f"{name}.refused", tries))
        raise PlanRefused(self.manager.name, self.tries, problems)

    async def _accept(self, work: Coordination, name: str, entries: Sequence[dict[str, Any]]) -> list[Assignment]:
        counts = dict(work.state.context.get(_COUNTS, {}))
        plan = name_workers(entries, counts)
        work.log.add(ContextSet(_COUNTS, counts))
        await work.decide(name, lambda: plan)
        return plan

    async def _report(
        self, work: Coordination, task: str, ends: list[tuple[Assignment, StepEnded]], not_started:
        list[Assignment],
        stopped: bool,
    ) -> str:  # fmt: skip
        if self.reviewer is None:
            tail = (
                f"\n\nStopped after a failure. Not started:\n{assignments(not_started) or '- nothing'}"
                if stopped
                else ""
            )
            return results(ends) + tail
        callbacks = await _callbacks_below(work, [a.worker for a, _ in ends])
        text = review(task, ends, not_started, callbacks, stopped)
        spec = ChildSpec(self.reviewer.name, REVIEWER, self.name)
        step = Step(REVIEWER, self._reviewer(), text, REVIEWER, spec)
        return (await work.step(step)).text

    # --- members --------------------------------------------------------------------------

    def rebuilt(self, change: Callable[[Agent], Agent]) -> Team:
        """Return a team with the same arguments and changed members."""
        return Team(
            change(self.manager),
            {role: change(agent) for role, agent in self.roles.items()},
            change(self.reviewer) if self.reviewer is not None else None,
            self.name,
            self.on_failure,
            entries=self.entries,
            task_chars=self.task_chars,
            tries=self.tries,
            description=self.description,
        )

    def _manager_step(self, name: str, prompt: str) -> Step:
        spec = ChildSpec(self.manager.name, MANAGER, self.name)
        return Step(name, self._manager(), prompt, MANAGER, spec)

    def _worker(self, work: Coordination, assignment: Assignment) -> Step:
        caller = f"{work.id}~{MANAGER}" if assignment.asks else ""
        spec = ChildSpec(assignment.worker, assignment.role, self.name, caller)
        agent = self._member(assignment.worker, assignment.role, assignment.asks)
        return Step(assignment.worker, agent, assignment.task, assignment.worker, spec, required=False)

    def member_for(self, header: SessionStarted) -> Agent:
        """Return the member whose session has this header."""
        if (header.agent, header.role) == (self.manager.name, MANAGER):
            return self._manager()
        if self.reviewer is not None and (header.agent, header.role) == (self.reviewer.name, REVIEWER):
            return self._reviewer()
        return self._member(header.agent, header.role, header.above != "")

    def _manager(self) -> Agent:
        agent, team_prompt = self.manager, manager_prompt(self.manager.name, self.roles, self.entries)
        side_tools = [tool for tool in SIDE_TOOLS if tool.name not in agent.toolbox]
        tools = (*agent.toolbox.values(), *agent.toolsets, *side_tools)
        return self._derived(
            agent,
            MANAGER,
            True,
            instructions=join_instructions(agent.instructions, team_prompt),
            tools=tools,
            hooks=agent.hooks,
            kit=(Kit(results=agent.results),),
        )

    def _reviewer(self) -> Agent:
        assert self.reviewer is not None
        if self.reviewer.run_program is not None:
            return self.reviewer
        instructions = join_instructions(self.reviewer.instructions, REVIEWER_PROMPT)
        return self._derived(self.reviewer, REVIEWER, True, instructions=instructions)

    def _member(self, worker: str, role: str, asks: bool) -> Agent:
        agent = self.roles.get(role)
        if agent is None:
            raise UnknownAgent(role, self.roles)
        if agent.run_program is not None:  # a team or chain has its own members
            return agent
        instructions = join_instructions(
            agent.instructions, worker_prompt(agent, self.manager.name) if asks else ""
        )
        return self._derived(agent, worker, asks, name=worker, instructions=instructions)

    def _derived(self, agent: Agent, member: str, asks: bool, **changes: Any) -> Agent:
        key = (agent.name, member, asks)
        if key not in self._members:
            derived = agent.replace(**({"callback_policy": agent.policy} | changes))
            vars(derived)["derived_from"] = agent
            self._members[key] = derived
        return self._members[key]


async def _callbacks_below(work: Coordination, workers: Sequence[str]) -> list[Callback]:
    """Return the callbacks that sessions below the team raised in this turn, in the plan's order."""
    prompt, root = work.state.turn.prompt, work.state.header.root or work.id
    since = prompt.pos if prompt is not None else 0
    below = f"{work.id}~"
    callbacks = await work.log.store.callbacks(root=root, limit=100_000)
    mine = [one for one in callbacks if one.session_id.startswith(below) and one.pos > since]

    def place(callback: Callback) -> tuple[int, int]:
        who = callback.session_id.removeprefix(below).partition("~")[0]
        return (workers.index(who) if who in workers else -1, callback.pos)

    return sorted(mine, key=place)


def _check(name: str, manager: Any, roles: Any, reviewer: Any, on_failure: Any, limits: Mapping[str, Any]) -> None:
    if not isinstance(manager, Agent) or manager.run_program is not None:
        why = "its model has to plan, and to answer the workers' questions"
        raise BadAgent(name, f"the manager must be a plain agent, not a team or a chain: {why}")
    if not isinstance(roles, Mapping) or not roles:
        raise BadAgent(name, "roles must be a dict with at least one role: roles={'developer': developer}")
    declared = cast("Mapping[Any, Any]", roles)
    _check_roles(name, declared)
    if reviewer is not None and not isinstance(reviewer, Agent):
        raise BadAgent(name, f"the reviewer must be an agent, not {reviewer!r}")
    if on_failure not in get_args(OnFailure):
        raise BadAgent(name, f"on_failure must be one of {', '.join(get_args(OnFailure))}, not {on_failure!r}")
    for key, value in limits.items():
        if type(value) is not int or value < 1:
            raise BadAgent(name, f"{key}={value!r} is not a whole number of 1 or more")
    names = [manager.name, *(a.name for a in declared.values()), *([reviewer.name] if reviewer else [])]
    for agent_name in names:
        if any(re.fullmatch(rf"{re.escape(role)}\d\d+", agent_name) for role in declared):
            clash = f"the agent {agent_name!r} has the same name as a worker, which is a role and a number"
            raise BadAgent(name, f"{clash}; rename the agent")


def _check_roles(name: str, roles: Mapping[Any, Any]) -> None:
    for role, agent in roles.items():
        if not isinstance(role, str):
            raise BadAgent(name, f"role {role!r}: the name of a role must be a string")
        if problem := name_problem(role, "role"):
            raise BadAgent(name, problem)
        if not isinstance(agent, Agent):
            raise BadAgent(name, f"role {role!r} must be an agent, a team or a chain, not {agent!r}")
        longer = next((r for r in roles if re.fullmatch(rf"{re.escape(role)}\d+", str(r))), None)
        if longer is not None:
            clash = f"workers of {role!r} and {longer!r} could get the same name, because they are numbered by role"
            raise BadAgent(name, f"{clash}; rename one of the roles")
